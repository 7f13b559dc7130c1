"""Rewind: the certified distance against quadratic losses in closed form, and against descent on a small network."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor, float64, nn

import spotlessnet as sn
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, NeedError, SettingError
from spotlessnet.core.gaussian_dp import delta_of
from spotlessnet.core.loss import SquaredError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split, rows
from spotlessnet.core.trained import Trained
from spotlessnet.methods.rewind import Rewind
from spotlessnet.requests.case import Case
from spotlessnet.requests.loading import load_network
from spotlessnet.store.checkpoints import following, is_following
from spotlessnet.training.fit import fit


def quadratic(weight_decay: float = 0.0) -> tuple[Trained, Split]:
    """One weight, inputs of one: row i loses ½(w − y_i)²; ten rows, two of which must go."""
    y = torch.tensor([4.0, 3.0, *[-1.0] * 4, *[1.0] * 4], dtype=float64).unsqueeze(1)
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    recipe = Recipe(epochs=12, lr=0.1, momentum=0.0, batch_size=100, weight_decay=weight_decay)
    trained = Trained.of(model, SquaredError(), init=model, recipe=recipe)
    return trained, rows([0, 1])((torch.ones_like(y), y))


def kept_at(trained: Trained, data: Data, epoch: int, path) -> tuple[Trained, str]:
    """The network after training on all rows, and the file that was written on the way."""
    found = fit(trained, data, trained.recipe.but(epochs=epoch))  # type: ignore[union-attr]  # it has one
    sn.write_weights(path, found.module())
    return fit(trained, data), str(path)


@pytest.mark.parametrize("epoch", [1, 5, 12])
def test_a_quadratic_ends_where_the_closed_form_says_and_within_the_distance(tmp_path, epoch):
    """Descent on ½(w − ȳ)² is w ← ȳ + (1 − η)(w − ȳ): on all rows first, then on those that stay."""
    trained, split = quadratic()
    original, path = kept_at(trained, split.whole, epoch, tmp_path / "w.safetensors")
    y = split.whole.labels()
    everyone, stay, eta, T = float(y.mean()), float(split.retain.labels().mean()), 0.1, 12
    at_checkpoint = everyone - (1 - eta) ** epoch * everyone
    end = stay + (1 - eta) ** (T - epoch) * (at_checkpoint - stay)
    # |w − y_i| stays below 5, the second derivative is one.
    scrub = Rewind(path, epoch, smoothness=1.0, gradient_bound=5.0, strong_convexity=1.0)
    found = scrub(original, split)
    assert float(found.mean) == pytest.approx(end, rel=1e-9)
    retrained = stay - (1 - eta) ** T * stay
    limit = scrub.distance(eta, T, 10, 2)
    assert abs(end - retrained) <= limit
    assert limit == pytest.approx(2 * eta * 2 * 5.0 / 10 * (1 - 0.9**epoch) / 0.1 * 0.9 ** (T - epoch))
    # By how much too wide: rows' gradients are not at opposite ends of their bound.
    assert limit <= 2 * 5.0 / abs(everyone - stay) * 2 / 10 * abs(end - retrained) * (1 + 1e-9)
    facts = found.diagnostics["rewind"]
    assert facts["distance"] == pytest.approx(limit)
    assert delta_of(limit / facts["sigma"], scrub.epsilon) <= scrub.delta
    assert float(found.covariance.diagonal()) == pytest.approx(facts["sigma"] ** 2)


def test_the_distance_is_reached_where_rows_pull_against_the_others_as_hard_as_they_may(tmp_path):
    """Losses ±w do not curve: forgotten rows pull one way with G, the others the other way. c = 1, and D is reached."""
    lr, T, t, n, m, G = 0.1, 8, 5, 10, 2, 1.0
    on_all = lr * ((n - m) * -G + m * G) / n
    on_kept = lr * -G
    end, retrained = -(t * on_all + (T - t) * on_kept), -T * on_kept
    scrub = Rewind("x", t, smoothness=1e-12, gradient_bound=G)
    assert scrub.distance(lr, T, n, m) == pytest.approx(abs(end - retrained), rel=1e-9)


@pytest.mark.parametrize(("mu", "L"), [(None, 2.0), (0.0, 2.0), (0.5, 2.0), (None, 0.3)])
def test_the_distance_is_that_of_stepping_it_out(mu, L):
    lr, T, t, n, m, G = 0.2, 9, 4, 50, 3, 1.7
    eigenvalues = np.linspace(-L if mu is None else mu, L, 101)
    stretch = np.abs(1 - lr * eigenvalues).max()  # of every symmetric Hessian between these
    apart = 0.0
    for step in range(T):
        apart = stretch * apart + (2 * lr * m * G / n if step < t else 0.0)
    scrub = Rewind("x", t, smoothness=L, gradient_bound=G, strong_convexity=mu)
    assert scrub.distance(lr, T, n, m) == pytest.approx(apart, rel=1e-12)


def network(seed: int = 0) -> tuple[Trained, Split]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 4, generator=draw, dtype=float64)
    y = torch.randint(2, (40,), generator=draw)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    recipe = Recipe(epochs=10, lr=0.05, momentum=0.0, batch_size=40, weight_decay=0.01)
    return Trained.of(model, init=model, recipe=recipe), rows(range(3))((x, y))


def test_a_network_ends_within_the_distance_of_retraining(tmp_path):
    trained, split = network()
    original, path = kept_at(trained, split.whole, 4, tmp_path / "w.safetensors")
    # Measured, from the path itself: Hessian and single gradients at the weights that both trainings meet.
    L, G = bounds_on_the_way(trained, split)
    scrub = Rewind(path, 4, smoothness=L, gradient_bound=G)
    end, retrained = scrub(original, split), fit(trained, split.retain)
    apart = float((end.mean - retrained.weights).norm())
    facts = end.diagnostics["rewind"]
    assert 0 < apart <= facts["distance"]
    assert facts["steps_back"] == 6
    assert end.diagnostics["assumed"]
    reference = scrub.reference_for(end, retrained, split)
    assert torch.equal(reference.covariance.diagonal(), end.covariance.diagonal())
    # One that says less than is met is refused, rather than certified.
    with pytest.raises(SettingError, match=r"`Rewind.gradient_bound` is 0.01, but .* was met"):
        replace(scrub, gradient_bound=0.01)(original, split)
    with pytest.raises(SettingError, match=r"`Rewind.smoothness` is 0.001, but .* was met"):
        replace(scrub, smoothness=1e-3)(original, split)


def bounds_on_the_way(trained: Trained, split: Split) -> tuple[float, float]:
    """The largest curvature of the mean loss and the longest gradient of a row, at all weights of both trainings."""
    seen: list[Tensor] = []
    for data in (split.whole, split.retain):
        fit(trained, data, watch=lambda _, now: seen.append(now.weights))
    batch = next(iter(split.whole.batches(100)))
    assert isinstance(batch.x, Tensor)
    x, y = batch.x, batch.y

    def loss(w: Tensor, i: int | slice) -> Tensor:
        return trained.losses(x[i], y[i], w).mean()

    curvature = max(
        float(torch.linalg.eigvalsh(torch.func.hessian(lambda w: loss(w, slice(None)))(w)).abs().max()) for w in seen
    )
    slope = torch.func.grad(loss)
    longest = max(float(slope(w, slice(i, i + 1)).norm()) for w in seen for i in range(40))
    return 1.5 * curvature + 0.01, 1.1 * longest


def test_without_a_checkpoint_it_is_retraining(tmp_path):
    trained, split = network()
    found = Rewind()(fit(trained, split.whole), split)
    assert found.is_noiseless
    assert torch.equal(found.mean, fit(trained, split.retain, order_of=split.whole).weights)
    assert not Rewind().is_noisy


def test_what_certifies_nothing_is_refused(tmp_path):
    trained, split = network()
    _, path = kept_at(trained, split.whole, 4, tmp_path / "w.safetensors")
    scrub = Rewind(path, 4, smoothness=1.0, gradient_bound=9.0)
    with pytest.raises(SettingError, match="certifies nothing by itself"):
        Rewind(path, 4, smoothness=1.0)
    with pytest.raises(SettingError, match="both or neither"):
        Rewind(epoch=3)
    with pytest.raises(SettingError, match="between 0 and `smoothness`"):
        replace(scrub, strong_convexity=2.0)
    for other, named in (({"momentum": 0.9}, "momentum"), ({"batch_size": 8}, "batch_size"), ({"augment": abs}, "aug")):
        recipe = trained.recipe.but(**other)  # type: ignore[union-attr]  # it has one
        with pytest.raises(NeedError, match=f"plain gradient descent.*differs in {named}"):
            scrub(replace(trained, recipe=recipe), split)
    with pytest.raises(SettingError, match="has 10 epochs, but the checkpoint is of 11"):
        replace(scrub, epoch=11)(trained, split)
    with pytest.raises(SettingError, match="no finite bound"):
        replace(scrub, smoothness=1e300)(trained, split)
    with pytest.raises(NeedError, match="trainer"):
        scrub(replace(trained, recipe=None, trainer=lambda model, examples, seed: model), split)


def test_a_checkpoint_that_such_steps_cannot_have_led_to_is_refused(tmp_path):
    """Of another training, or of a later epoch than was said: the distance to retraining is then not certified."""
    trained, split = network()
    original, path = kept_at(trained, split.whole, 4, tmp_path / "w.safetensors")
    L, G = bounds_on_the_way(trained, split)
    other = trained.module()
    with torch.no_grad():
        for value in other.parameters():
            value.add_(1.0)
    sn.write_weights(tmp_path / "other.safetensors", other)
    scrub = Rewind(path, 4, smoothness=L, gradient_bound=G)
    far = fit(trained, split.whole, trained.recipe.but(epochs=300))  # type: ignore[union-attr]  # it has one
    sn.write_weights(tmp_path / "late.safetensors", far.module())
    for name, epoch in (("other", 4), ("late", 1)):
        wrong = replace(scrub, checkpoint=str(tmp_path / f"{name}.safetensors"), epoch=epoch, gradient_bound=3 * G)
        with pytest.raises(SettingError, match=r"lead at most .* away, but the checkpoint lies"):
            wrong(original, split)
    with torch.no_grad():
        next(other.parameters())[0, 0] = torch.nan
    diverged = tmp_path / "nan.safetensors"
    # As other code writes it: `write_weights` refuses what is not finite.
    diverged.write_bytes(save(dict(other.state_dict())))
    with pytest.raises(DataError, match="must be finite"):
        replace(scrub, checkpoint=str(diverged))(original, split)


def test_a_bound_that_single_rows_break_is_refused(tmp_path):
    """Their mean may be short where each of them is long: it is single ones that go."""
    trained, split = network()
    original, path = kept_at(trained, split.whole, 4, tmp_path / "w.safetensors")
    L, _ = bounds_on_the_way(trained, split)
    mean = 0.5  # above all that descent itself meets
    with pytest.raises(SettingError, match=r"`Rewind.gradient_bound` is 0.5, but .* was met"):
        Rewind(path, 4, smoothness=L, gradient_bound=mean)(original, split)


def test_convexity_that_the_way_refutes_is_refused(tmp_path):
    trained, split = network()
    original, path = kept_at(trained, split.whole, 4, tmp_path / "w.safetensors")
    L, G = bounds_on_the_way(trained, split)
    with pytest.raises(SettingError, match=r"`Rewind.strong_convexity` is .*, but .* was met"):
        Rewind(path, 4, smoothness=L, gradient_bound=G, strong_convexity=L)(original, split)


def test_a_second_request_from_the_first_training_is_refused(tmp_path):
    """The checkpoint saw the rows of the first, and the noise would be that for one row: they would come back."""
    trained, split = network()
    original, path = kept_at(trained, split.whole, 4, tmp_path / "w.safetensors")
    L, G = bounds_on_the_way(trained, split)
    scrub = Rewind(path, 4, smoothness=L, gradient_bound=G)
    batch = next(iter(split.whole.batches(100)))
    assert isinstance(batch.x, Tensor)
    start = trained.module()
    known: dict[str, Any] = {"init": start, "recipe": trained.recipe, "accept_damage": True}
    first = sn.unlearn(original.module(), (batch.x, batch.y), forget=range(3), method="retrain", **known)
    left = batch.x[3:], batch.y[3:]
    with pytest.raises(NeedError, match="has served a request"):
        sn.unlearn(first.model, left, forget=[0], method=scrub, **known)
    sn.unlearn(first.model, left, forget=[0], method=Rewind(), **known)
    # Told of the rows that went before, it counts them.
    later = split.next_request(split.whole.select([3]))
    done = scrub(Trained.of(first.model, init=start, recipe=trained.recipe), later)
    assert done.diagnostics["rewind"]["distance"] == pytest.approx(scrub.distance(0.05, 10, 40, 4))


def test_a_network_read_from_the_file_of_a_request_is_known_to_have_served_one(tmp_path, monkeypatch):
    """So that the command refuses such a second request too."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text("from torch import nn\n\n\ndef build():\n    return nn.Linear(2, 2)\n", encoding="utf-8")
    model = nn.Linear(2, 2)
    sn.write_weights("plain.safetensors", model)
    sn.write_weights("scrubbed.safetensors", following(model))
    for name, served in (("plain", False), ("scrubbed", True)):
        found = load_network(Case(model="net.py:build", weights=Path(f"{name}.safetensors")))
        assert is_following(found.trained.model) is served
