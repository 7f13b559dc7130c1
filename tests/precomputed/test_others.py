"""A later request may not take back what an earlier one did: rows that stay stand in for rows that are gone."""

import math
import pickle
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import torch
from torch import nn

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.datasets import load
from spotlessnet.methods import NTK, Newton
from spotlessnet.precomputed import step as steps
from spotlessnet.precomputed.after_request import after_request
from spotlessnet.precomputed.effect import Effect, as_text, from_text
from spotlessnet.precomputed.fold_models import FoldModels
from spotlessnet.precomputed.others import FURTHEST, LEAST_LEFT, QUANTILE, TAKEN, Others, _losses
from spotlessnet.precomputed.precompute import precompute
from spotlessnet.training.fit import fit
from tests.precomputed.test_step import problem

ROWS, ASKED, DECAY = 300, 8, 1e-3


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    batches = list(load("digits").train.batches())
    x, y = (torch.cat([getattr(b, name) for b in batches])[:ROWS] for name in ("x", "y"))
    return x.flatten(1), y


def taken_back(seed: int) -> tuple[int, int, int]:
    """Of rows with wrong labels, asked for one by one: how many lose over half of what their request did, of how many;
    and how many requests were served. Weak decay, so that steps are long."""
    x, y = digits()
    torch.manual_seed(seed)
    y = y.clone()
    y[:ASKED] = (y[:ASKED] + 1 + torch.randint(0, 9, (ASKED,))) % 10
    data, model = Data.of((x, y)), nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))
    recipe = Recipe(epochs=150, lr=0.1, weight_decay=DECAY, batch_size=50)
    now = fit(Trained.of(model, init=model, recipe=recipe), data, seed=seed)
    statistics, first = precompute(now, data, rank=40, diagonal=None), now.losses(x[:ASKED], y[:ASKED]).detach()
    after: list[float] = []
    lost = pairs = 0
    for k in range(ASKED):
        rest, forget = data.select(range(k + 1, ROWS)), data.select([k])
        found = NTK(statistics=statistics)(now, Split(forget=forget, kept=rest))
        if found.diagnostics["retrain_now"]:
            break
        statistics = after_request(statistics, now, forget, found.mean, retain=rest)
        now = now.at(found.mean)
        losses = now.losses(x[:ASKED], y[:ASKED]).detach()
        for j, own in enumerate(after):
            gain = own - float(first[j])
            pairs += gain > 0.05
            lost += gain > 0.05 and (own - float(losses[j])) / gain > 0.5
        after.append(float(losses[k]))
    return lost, pairs, len(after)


def test_a_later_request_takes_nothing_back(monkeypatch):
    lost, _, served = taken_back(0)
    assert lost == 0
    assert served > 1
    monkeypatch.setattr(steps, "_others_moved", lambda *_: None)
    assert taken_back(0)[0] >= 5


@pytest.mark.parametrize("method", [NTK, lambda **own: NTK(damping=1e-4, **own), Newton])
def test_without_retained_rows_there_is_no_second_request(method):
    trained, data = problem(3)
    statistics = precompute(trained, data, rank=trained.size, diagonal=None)
    assert method(statistics=statistics)(trained, Split(forget=data.select([0]))).diagnostics["retrain_now"] is False
    rest = data.select(range(1, 40))
    later = after_request(statistics, trained, data.select([0]), trained.weights, retain=rest)
    for kept, refused in ((None, True), (data.select(range(2, 40)), False)):
        split = Split(forget=data.select([1])) if kept is None else Split(forget=data.select([1]), kept=kept)
        told = method(statistics=later)(trained, split).diagnostics
        assert told["retrain_now"] is refused
    assert "others_moved" not in told  # it would tell of the rows of the first one


def classifier(seed: int) -> tuple[Trained, Data]:
    torch.manual_seed(seed)
    data = Data.of((torch.randn(60, 4, dtype=torch.float64), torch.randint(3, (60,))))
    return Trained.of(nn.Linear(4, 3).double()), data


def test_the_share_is_that_of_a_loss_moved_like_the_margins_of_stand_ins():
    """Against a reference that draws groups anew, and takes margins from probabilities."""
    trained, data = classifier(0)
    step, others = 0.7 * torch.randn_like(trained.weights), Others.of(trained, data)
    p, q = (trained.outputs(data.fetch(data.rows).x, w).softmax(1) for w in (trained.weights, trained.weights + step))
    labels = torch.stack(others.labels)
    assert all(sorted(labels[k].tolist()) == sorted(data.labels().tolist()) for k in range(len(labels)))
    i = torch.arange(60).repeat(len(labels))
    c = labels.flatten()
    odds = q[i, c] / (1 - q[i, c]) / (p[i, c] / (1 - p[i, c])) / (torch.tensor(0.7).double().exp() - 1)
    falls = (0.7 + (odds / (1 + odds)).log()).detach()
    after = _losses(trained.at(trained.weights + step), others.rows, others.labels)
    torch.testing.assert_close(others._falls(after, 0.7), falls, rtol=0, atol=1e-6)
    drawn = torch.randint(len(falls), (4000, 3), generator=torch.Generator().manual_seed(99))
    groups = falls[drawn].mean(dim=1) / 0.25 / TAKEN
    found = others.taken_back(step, (Effect(size=3, raised=0.25, loss=0.7),))
    assert float(groups.quantile(QUANTILE - 0.05)) < found < float(groups.quantile(QUANTILE + 0.05))


def test_the_worst_of_all_earlier_requests_counts_and_nothing_is_taken_back_by_no_step():
    trained, data = classifier(1)
    others, step = Others.of(trained, data), torch.randn_like(trained.weights)
    small, large = Effect(1, 0.1, 0.5), Effect(1, 5.0, 5.5)
    alone = [others.taken_back(step, (one,)) for one in (small, large)]
    assert others.taken_back(step, (large, small)) == pytest.approx(max(alone), rel=0.1)
    assert alone[0] > alone[1] > 0
    assert others.taken_back(0 * step, (small, large)) == pytest.approx(0, abs=1e-9)
    assert others.taken_back(step, ()) == 0


def test_larger_cohorts_lose_less_for_their_rows_move_apart():
    trained, data = classifier(2)
    others, step = Others.of(trained, data), torch.randn_like(trained.weights)
    one, many = (others.taken_back(step, (Effect(size, 0.5, 1.0),)) for size in (1, 100))
    assert many < one


def test_squared_errors_fall_with_their_residual():
    trained, data = problem(4)
    others, step = Others.of(trained, data), 1e-4 * torch.randn_like(trained.weights)
    near, far = (others.taken_back(step, (Effect(1, 1.0, loss),)) for loss in (0.01, 1.0))
    assert far == pytest.approx(10 * near, rel=0.3)
    assert near > 0


def test_an_effect_tells_of_the_rows_that_carry_it():
    trained, data = classifier(3)
    after, rows = trained.at(trained.weights + 2 * torch.randn_like(trained.weights)), data.select(range(20))
    x, y = rows.fetch(rows.rows).x, rows.labels()
    a, b = (nn.functional.cross_entropy(trained.outputs(x, t.weights), y, reduction="none") for t in (trained, after))
    d = (b - a).detach().clamp(min=0)
    found = Effect.of(trained, after, rows)
    assert found is not None
    assert found.size == round(float(d.sum() ** 2 / d.square().sum()))
    assert found.raised == pytest.approx(float(d.square().sum() / d.sum()))
    assert found.loss == pytest.approx(float((d * b.detach()).sum() / d.sum()))
    back = (a - b).detach().clamp(min=0)
    carried = float(back.square().sum() / back.sum()) if float(back.sum()) else 0.0
    assert (Effect.of(after, trained, rows) is not None) == (float((a - b).mean()) > 0.05 or carried > 0.2)
    assert Effect.of(trained, trained, rows) is None
    now = datetime(2030, 1, 1, tzinfo=UTC)
    kept = replace(found, due="2030-02-01T00:00:00+00:00")
    assert from_text(as_text(kept, "../first"), now) == (kept, "../first")
    assert from_text(as_text(None, ""), now) == (None, "")
    assert from_text(as_text(replace(kept, due="2029-12-31T00:00:00+00:00"), ""), now) is None
    for bad in ('"size": 0, "raised": 1, "loss": 1', '"size": 1, "raised": NaN, "loss": 1'):
        with pytest.raises(ValueError, match="no positive number"):
            from_text(f'{{"effect": {{{bad}, "due": "2030-02-01T00:00:00+00:00"}}, "before": ""}}', now)


def test_what_was_done_to_one_row_of_many_is_told():
    """A wrong label among thirty ordinary rows: the mean loss rose by less than noise, its own by a nat."""
    torch.manual_seed(0)
    x = torch.eye(31, dtype=torch.float64)
    y = torch.zeros(31, dtype=torch.long)
    trained = Trained.of(nn.Linear(31, 2, bias=False).double())
    after = trained.at(
        trained.weights - torch.eye(31, dtype=torch.float64)[0].repeat(2) * torch.tensor([1.0] * 31 + [-1.0] * 31)
    )
    rows = Data.of((x, y))
    rise = (after.losses(x, y) - trained.losses(x, y)).detach()
    assert float(rise.mean()) < 0.05
    found = Effect.of(trained, after, rows)
    assert found is not None
    assert found.size == 1
    assert found.raised == pytest.approx(float(rise[0]))


def test_what_earlier_requests_did_is_known_but_not_written(tmp_path):
    from spotlessnet.precomputed.statistics_files import read_statistics, write_statistics

    trained, data = classifier(4)
    statistics = precompute(trained, data, rank=5, diagonal=None)
    forget, rest = data.select(range(3)), data.select(range(3, 60))
    x, y = forget.fetch(forget.rows).x, forget.labels()
    w = trained.weights.clone().requires_grad_()
    away = torch.autograd.grad(nn.functional.cross_entropy(trained.outputs(x, w), y), w)[0]
    moved = trained.weights + 3 * away
    after = after_request(statistics, trained, forget, moved, retain=rest, due="2030-02-01")
    effect = Effect.of(trained, trained.at(moved), forget)
    assert effect is not None
    assert after.effects == (replace(effect, due="2030-02-01"),)
    write_statistics(tmp_path / "s.safetensors", after)
    again = read_statistics(tmp_path / "s.safetensors")
    assert again.effects is None
    # Whoever keeps the result as a pickle writes a file too.
    assert pickle.loads(pickle.dumps(after)).effects is None
    folds = FoldModels(w[None], after.keys, torch.zeros(1, 57, dtype=torch.long), effects=after.effects)
    assert pickle.loads(pickle.dumps(folds)).effects is None
    # Once it is gone, that of a later request alone is not told as if it were all.
    more = after_request(again, trained.at(moved), data.select([3]), moved, retain=data.select(range(4, 60)))
    assert more.effects is None


def test_where_it_is_gone_others_may_move_less():
    trained, data = problem(3)
    statistics = precompute(trained, data, rank=trained.size, diagonal=None)
    later = after_request(statistics, trained, data.select([0]), trained.weights, retain=data.select(range(1, 40)))
    split = Split(forget=data.select([1]), kept=data.select(range(2, 40)))
    assert later.effects == ()  # the request raised nothing
    known, gone = (NTK(statistics=s)(trained, split).diagnostics for s in (later, replace(later, effects=None)))
    assert gone["others_moved"] > 0
    assert "others_moved" not in known


def test_others_move_by_the_rise_of_their_log_odds():
    """Against a reference that takes margins from probabilities."""
    trained, data = classifier(0)
    step, others = 0.7 * torch.randn_like(trained.weights), Others.of(trained, data)
    p, q = (trained.outputs(data.fetch(data.rows).x, w).softmax(1) for w in (trained.weights, trained.weights + step))
    labels = torch.stack(others.labels)
    assert all(sorted(labels[k].tolist()) == sorted(data.labels().tolist()) for k in range(len(labels)))
    i, c = torch.arange(60).repeat(len(labels)), labels.flatten()
    rises = (q[i, c] / (1 - q[i, c])).log() - (p[i, c] / (1 - p[i, c])).log()
    expected = rises.detach().sort().values
    # The order statistic by hand, as the library interpolates it.
    at = QUANTILE * (len(expected) - 1)
    low, high = expected[int(at)], expected[int(at) + 1]
    by_hand = float(low + (at - int(at)) * (high - low)) / FURTHEST
    assert others.moved(step) == pytest.approx(by_hand, rel=1e-9)
    assert others.moved(0 * step) == pytest.approx(0, abs=1e-12)


def test_of_squared_errors_a_share_of_the_residual_must_be_left():
    trained, data = problem(4)
    others, step = Others.of(trained, data), 0.05 * torch.randn_like(trained.weights)
    x = data.fetch(data.rows).x
    before, after = (trained.outputs(x, w).detach() for w in (trained.weights, trained.weights + step))
    left = torch.cat([(after - y).norm(dim=1) / (before - y).norm(dim=1) for y in others.labels])
    assert others.moved(step) == pytest.approx(float((1 - left).quantile(QUANTILE)) / (1 - LEAST_LEFT), rel=1e-6)


def test_a_step_to_no_number_moves_others_without_end():
    trained, data = classifier(2)
    assert Others.of(trained, data).moved(torch.full_like(trained.weights, math.nan)) == math.inf


def test_nothing_is_kept_of_a_request_but_that_there_was_one(tmp_path):
    """Two requests for other rows leave the same statistics, if the network and the rows left are the same."""
    from spotlessnet.precomputed.statistics_files import read_statistics, write_statistics

    trained, data = classifier(4)
    first, second, rest = data.select([0]), data.select([1]), data.select(range(2, 60))
    kept: list[bytes] = []
    for forget in (first, second):
        x, y = (torch.cat([getattr(d.fetch(d.rows), name) for d in (forget, rest)]) for name in ("x", "y"))
        statistics = precompute(trained, Data.of((x, y)), rank=5, diagonal=None, salt=b"s" * 32)
        assert not statistics.after_requests
        left = after_request(statistics, trained, forget, trained.weights + 0.1, retain=rest, salt=b"t" * 32)
        assert left.after_requests
        write_statistics(tmp_path / f"{len(kept)}.safetensors", left)
        kept.append((tmp_path / f"{len(kept)}.safetensors").read_bytes())
        assert read_statistics(tmp_path / f"{len(kept) - 1}.safetensors").after_requests
    assert kept[0] == kept[1]


def test_ordinary_rows_come_back_where_retained_rows_are_held_to_their_labels():
    torch.manual_seed(5)
    network = nn.Linear(6, 3).double()
    x = torch.randn(200, 6, dtype=torch.float64)
    data = Data.of((x, network(x).argmax(dim=1)))
    trained = Trained.of(network)
    surer = trained.weights  # every row is answered as before, and more surely
    assert Others.with_own_labels(trained, data).moved(surer) > 1
    assert Others.with_own_labels(trained, data).limit == FURTHEST
