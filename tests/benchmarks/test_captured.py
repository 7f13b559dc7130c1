"""Steps that a GPU captures, on a CPU: they are those of `fit`."""

import pytest
import torch
from benchmarks.captured import Captured
from torch import nn

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained, buffers_of
from spotlessnet.training.fit import fit


def rows() -> Data:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(50, 2, 6, 6, generator=draw)
    return Data.of((x, torch.randint(0, 3, (50,), generator=draw)))


def begun(recipe: Recipe, seed: int = 0) -> Trained:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    return Trained.of(model, init=model, recipe=recipe)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("toward", ["init", "zero"])
def test_steps_are_those_of_fit(frozen: bool, coupled: bool, toward: str) -> None:
    recipe = Recipe(epochs=3, lr=0.1, batch_size=16, weight_decay=0.05, schedule="one-cycle", label_smoothing=0.1,
                    freeze_statistics=frozen, decay_toward=toward)  # type: ignore[arg-type]  # fmt: skip
    whole = rows()
    part = whole.select(torch.arange(3, 50))
    captured = Captured(begun(recipe), whole)
    for seed in (5, 6):  # a second training must not go on from the first
        start = begun(recipe, seed)
        order = whole if coupled else None
        expected = fit(start, part, seed=seed, order_of=order)
        found = captured.fit(start, part, seed=seed, order_of=order)
        assert torch.allclose(found.weights, expected.weights, atol=1e-5)
        assert not torch.allclose(found.weights, start.weights, atol=1e-2)
        for name, value in buffers_of(expected.model).items():
            assert torch.allclose(buffers_of(found.model)[name].double(), value.double(), atol=1e-5), name
        assert found.init is not None
        assert torch.equal(found.init, start.weights)


def test_augmented_anew_in_every_epoch() -> None:
    seen = []

    def moved(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.rand(()).item())
        return x + 0.1 * torch.randn_like(x)

    recipe = Recipe(epochs=3, lr=0.1, batch_size=16, augment=moved)
    captured = Captured(begun(recipe), rows())
    first = captured.fit(begun(recipe), rows(), seed=1)
    assert len(set(seen)) == 3
    assert torch.equal(captured.fit(begun(recipe), rows(), seed=1).weights, first.weights)
    assert not torch.allclose(captured.fit(begun(recipe), rows(), seed=2).weights, first.weights)
