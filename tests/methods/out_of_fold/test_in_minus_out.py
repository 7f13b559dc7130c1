"""What a row taught: the difference of two means written out, and its shrinkage in closed form and on average."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained
from spotlessnet.methods.out_of_fold.in_minus_out import corrected, in_minus_out
from spotlessnet.precomputed.fold_models import measure_held_out, train_fold_models
from spotlessnet.training.fit import fit


def drawn(seed: int, n: int, C: int, K: int, tau: float, sigma: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Own logits, those of K models, the first third of which missed every row, who saw, and what is to be found."""
    draw = torch.Generator().manual_seed(seed)
    base, effect, more, *_ = torch.randn(4, n, C, generator=draw, dtype=float64)
    saw = (torch.arange(K) >= K // 3).unsqueeze(1).expand(K, n)
    said = base + saw.unsqueeze(2) * 5 * effect + sigma * torch.randn(K, n, C, generator=draw, dtype=float64)
    own = base + 5 * effect + tau * more + sigma * torch.randn(n, C, generator=draw, dtype=float64)
    truth = base + tau * more
    return own, said, saw, truth - truth.mean(dim=1, keepdim=True)


def test_the_correction_in_closed_form():
    own, said, saw, _ = drawn(0, n=5, C=4, K=6, tau=1.0, sigma=0.5)
    z, mine = said - said.mean(dim=2, keepdim=True), own - own.mean(dim=1, keepdim=True)
    inside, outside = z[2:].mean(dim=0), z[:2].mean(dim=0)
    plain = corrected(own, said, saw, ~saw, shrunk=False)
    torch.testing.assert_close(plain.answers, mine - (inside - outside))
    within = sum(float(((side - side.mean(0)) ** 2).sum()) for side in (z[:2], z[2:]))
    freedom = 5 * (1 + 3) * 3
    noise = within / freedom * (1 + 1 / 4)
    kept = 1 - (5 * 3 - 2) * freedom / (freedom + 2) * noise / float(((mine - inside) ** 2).sum())
    assert 0 < kept < 1
    found = corrected(own, said, saw, ~saw, shrunk=True)
    assert found.kept == pytest.approx(kept)
    assert found.noise == plain.noise == pytest.approx(noise)
    torch.testing.assert_close(found.answers, outside + kept * (mine - inside))


@pytest.mark.parametrize(("tau", "sigma"), [(0.5, 1.0), (1.0, 1.0), (2.0, 0.5), (0.0, 1.0)])
def test_it_keeps_the_share_that_a_bayesian_would_and_errs_less(tau: float, sigma: float):
    kept, errors = [], []
    for seed in range(20):
        own, said, saw, truth = drawn(seed, n=240, C=5, K=6, tau=tau, sigma=sigma)
        found, plain = (corrected(own, said, saw, ~saw, shrunk=shrunk) for shrunk in (True, False))
        kept.append(found.kept)
        errors.append([float((x.answers - truth).square().mean()) for x in (found, plain)])
    best = tau**2 / (tau**2 + sigma**2 * (1 + 1 / 4))
    assert sum(kept) / 20 == pytest.approx(best, abs=0.04)
    ours, theirs = torch.tensor(errors).mean(dim=0).tolist()
    assert ours < theirs


def test_without_two_models_on_a_side_nothing_is_shrunk():
    own, said, saw, _ = drawn(0, n=5, C=4, K=3, tau=1.0, sigma=0.5)
    pair = corrected(own, said[:2], saw[:2], ~saw[:2], shrunk=True)
    assert (pair.kept, pair.noise) == (1.0, None)


def test_from_fold_models_who_saw_and_who_did_not_is_right():
    torch.manual_seed(0)
    ids = ["ann"] * 3 + [str(i) for i in range(9)]
    data = Data.of((torch.randn(12, 4, dtype=float64), torch.randint(3, (12,))), columns={"id": ids})
    began = Trained.of(nn.Linear(4, 3).double(), recipe=Recipe(epochs=3, lr=0.1, momentum=0.5, batch_size=4))
    network = fit(replace(began, init=began.weights), data)
    made = train_fold_models(network, data, folds=3, repeats=2)
    request = data.select([0, 1, 2, 5])
    part = made.part[:, made.keys.find(request)]
    clean = [d for d in range(2) if len(part[d].unique()) == 1] or [0, 1]
    found = in_minus_out(made, network, request, request).answers
    for i in range(4):
        said = [made.fold(network, k).predict(request.select([i]))[0] for k in range(6)]
        said = [z - z.mean() for z in said]
        saw = [k for k in range(6) if int(part[k // 3, i]) != k]
        out = [k for k in range(6) if k not in saw and k // 3 in clean]
        own = network.predict(request.select([i]))[0]
        effect = sum(said[k] for k in saw) / len(saw) - sum(said[k] for k in out) / len(out)
        torch.testing.assert_close(found[i], own - own.mean() - effect)


def test_a_row_teaches_less_where_there_are_more():
    own, said, saw, _ = drawn(0, n=5, C=4, K=6, tau=1.0, sigma=0.5)
    z, mine = said - said.mean(dim=2, keepdim=True), own - own.mean(dim=1, keepdim=True)
    found = corrected(own, said, saw, ~saw, shrunk=False, ratio=0.6)
    torch.testing.assert_close(found.answers, mine - 0.6 * (z[2:].mean(dim=0) - z[:2].mean(dim=0)))
    assert found.noise == corrected(own, said, saw, ~saw, shrunk=False).noise


def test_ordinary_rows_in_units_of_the_network():
    """A fold model whose logits are twice as large says the same once held-out rows have told by how much."""
    torch.manual_seed(0)
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    data, held = Data.of((x, y)), Data.of((torch.randn(90, 4), torch.arange(90) % 3))
    began = Trained.of(nn.Linear(4, 3, bias=False), recipe=Recipe(epochs=5, lr=0.1, batch_size=10))
    trained = fit(replace(began, init=began.weights), data)
    made = train_fold_models(trained, data, folds=3, held=held)
    assert made.scales is not None
    louder = replace(made, weights=made.weights * torch.tensor([2.0, 1.0, 0.5]).unsqueeze(1))
    louder = measure_held_out(louder, trained, data, held)
    assert louder.scales is not None
    torch.testing.assert_close(louder.scales, made.scales / torch.tensor([2.0, 1.0, 0.5]))
    some = data.select(range(10))
    plain, other = (in_minus_out(one, trained, some, some.select([0]), ordinary=True) for one in (made, louder))
    torch.testing.assert_close(plain.answers, other.answers, rtol=1e-4, atol=1e-5)
    told = replace(made, gap_ratio=0.5)
    own = in_minus_out(made, trained, some, some.select([0]))
    assert not torch.allclose(in_minus_out(told, trained, some, some.select([0]), ordinary=True).answers, own.answers)
    torch.testing.assert_close(in_minus_out(told, trained, some, some.select([0])).answers, own.answers)


def test_rows_with_wrong_labels_only_make_fold_models_surer():
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(90, 4, generator=draw)
    data = Data.of((x, torch.arange(90) % 3))
    began = Trained.of(nn.Linear(4, 3), recipe=Recipe(epochs=3, lr=0.1))
    trained = fit(replace(began, init=began.weights), data)
    made = train_fold_models(trained, data, folds=3, groups=None)
    some = data.select(range(8))
    scales = torch.tensor([0.5, 2.0, 3.0])
    found = in_minus_out(replace(made, scales=scales, gap_ratio=0.5), trained, some, some.select([0])).answers
    part = made.part[0, made.keys.find(some)].tolist()
    for i, k in enumerate(part):
        said = [max(1.0, float(scales[j])) * made.fold(trained, j).predict(some)[i].double() for j in range(3)]
        inside = sum(said[j] for j in range(3) if j != k) / 2
        expected = trained.predict(some)[i].double() - (inside - said[k])
        torch.testing.assert_close(found[i].double(), expected - expected.mean(), rtol=1e-4, atol=1e-5)
