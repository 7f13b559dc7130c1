"""Many networks at once against the same ones trained one by one."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError, NeedError, NumericsError, SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained
from spotlessnet.models import MLP, AllCNN
from spotlessnet.training import fit, fit_many


def problem(dtype: torch.dtype = torch.float64) -> tuple[Trained, Data]:
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=dtype)
    data = Data.of((x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()))
    return Trained.of(MLP(5, 3, hidden=(7,), activation="tanh").to(dtype)), data


def masks(count: int, share: float) -> torch.Tensor:
    keep = torch.rand(count, 40, generator=torch.Generator().manual_seed(1)) < share
    keep[:, 0] = True
    return keep


def one_by_one(trained, data, recipe, seeds, keep, starts=None):
    made = []
    for s, seed in enumerate(seeds):
        begin = trained if starts is None else replace(trained, weights=starts[s], init=starts[s])
        made.append(fit(begin, data.select(keep[s].nonzero().flatten()), recipe, seed=seed, order_of=data).weights)
    return torch.stack(made)


@given(
    batch=st.sampled_from([1, 3, 16, 64]),
    share=st.sampled_from([0.1, 0.6, 1.0]),
    weight_decay=st.sampled_from([0.0, 0.2]),
    schedule=st.sampled_from(["constant", "cosine", "one-cycle", "step"]),
    at_once=st.sampled_from([1, 2, 128]),
)
@settings(max_examples=12, deadline=None)
def test_together_is_one_by_one(batch, share, weight_decay, schedule, at_once):
    trained, data = problem()
    recipe = Recipe(epochs=2, lr=0.1, batch_size=batch, weight_decay=weight_decay, schedule=schedule)
    seeds, keep = [3, 0, 3], masks(3, share)
    together = fit_many(trained, data, recipe, seeds=seeds, keep=keep, at_once=at_once)
    assert torch.allclose(together, one_by_one(trained, data, recipe, seeds, keep), rtol=0, atol=1e-13)


def test_rows_that_are_not_sorted_are_met_in_the_same_order():
    trained, data = problem()
    recipe, seeds, keep = Recipe(epochs=3, lr=0.1, batch_size=7), [3, 0], masks(2, 0.7)
    mixed = torch.randperm(40, generator=torch.Generator().manual_seed(2))
    together = fit_many(trained, data.select(mixed), recipe, seeds=seeds, keep=keep[:, mixed])
    assert torch.allclose(together, fit_many(trained, data, recipe, seeds=seeds, keep=keep), rtol=0, atol=1e-13)
    by_hand = one_by_one(trained, data.select(mixed), recipe, seeds, keep[:, mixed])
    assert torch.allclose(together, by_hand, rtol=0, atol=1e-13)


def test_in_float32_too():
    trained, data = problem(torch.float32)
    recipe, seeds, keep = Recipe(epochs=5, lr=0.1, batch_size=8, weight_decay=0.01), range(4), masks(4, 0.7)
    together = fit_many(trained, data, recipe, seeds=seeds, keep=keep)
    assert torch.allclose(together, one_by_one(trained, data, recipe, seeds, keep), rtol=0, atol=1e-5)


def test_networks_stop_each_at_its_own_time():
    trained, data = problem()
    recipe, seeds, keep = Recipe(epochs=60, lr=0.1, batch_size=8, patience=1), range(4), masks(4, 0.3)
    ends = [0] * 4
    for s in seeds:

        def watch(epoch: int, now: Trained, s: int = s) -> None:
            ends[s] = epoch

        rows = data.select(keep[s].nonzero().flatten())
        fit(trained, rows, recipe, seed=s, order_of=data, watch=watch)
    assert len(set(ends)) > 1
    together = fit_many(trained, data, recipe, seeds=seeds, keep=keep)
    assert torch.allclose(together, one_by_one(trained, data, recipe, seeds, keep), rtol=0, atol=1e-12)


def test_each_can_have_its_own_start():
    trained, data = problem()
    recipe, keep = Recipe(epochs=2, batch_size=8, weight_decay=0.3), masks(3, 0.7)
    starts = trained.weights + torch.randn(3, trained.size, generator=torch.Generator().manual_seed(2)).double()
    before = starts.clone()
    together = fit_many(trained, data, recipe, seeds=range(3), keep=keep, starts=starts)
    assert torch.allclose(together, one_by_one(trained, data, recipe, range(3), keep, starts), rtol=0, atol=1e-13)
    assert torch.equal(starts, before)


def test_a_known_start_is_the_anchor_of_all():
    trained, data = problem()
    trained = replace(trained, init=trained.weights + 1)
    recipe, keep = Recipe(epochs=2, batch_size=8, weight_decay=0.3), masks(2, 1.0)
    together = fit_many(trained, data, recipe, seeds=range(2))
    assert torch.allclose(together, one_by_one(trained, data, recipe, range(2), keep), rtol=0, atol=1e-13)


def test_a_convolutional_network_with_frozen_statistics():
    x = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = Data.of((x, torch.arange(12) % 3))
    trained, recipe = Trained.of(AllCNN(3, filters=(2, 3)).double()), Recipe(epochs=1, batch_size=5)
    together = fit_many(trained, data, recipe, seeds=[0, 1])
    single = torch.stack([fit(trained, data, recipe, seed=s).weights for s in (0, 1)])
    assert torch.allclose(together, single, rtol=0, atol=1e-12)


def test_named_inputs():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = MLP(5, 3, hidden=(7,), activation="tanh")

        def forward(self, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": self.inner(pixels)}

    trained, data = problem()
    batch = data.fetch(data.rows)
    named = Data.of(({"pixels": batch.x}, batch.y))
    made = fit_many(Trained.of(Named().double()), named, Recipe(epochs=1), seeds=[0, 1])
    assert torch.equal(made, fit_many(trained, data, Recipe(epochs=1), seeds=[0, 1]))


def test_what_cannot_be_trained_together_is_refused():
    trained, data = problem()
    recipe = Recipe(epochs=1)
    with pytest.raises(NeedError, match="Training needs a recipe"):
        fit_many(trained, data, seeds=[0])
    with pytest.raises(SettingError, match="needs at least one seed"):
        fit_many(trained, data, recipe, seeds=[])
    with pytest.raises(MismatchError, match=r"2 networks and 40 rows, but has shape \(3, 40\)"):
        fit_many(trained, data, recipe, seeds=[0, 1], keep=masks(3, 1.0))
    with pytest.raises(MismatchError, match=r"`starts` must hold 2 vectors of 66 weights, but has shape \(1, 66\)"):
        fit_many(trained, data, recipe, seeds=[0, 1], starts=trained.weights.unsqueeze(0))
    with pytest.raises(DataError, match="Network 1 has no row"):
        fit_many(trained, data, recipe, seeds=[0, 1], keep=torch.tensor([[True], [False]]).expand(2, 40))
    with pytest.raises(SettingError, match="`at_once` must be positive"):
        fit_many(trained, data, recipe, seeds=[0], at_once=0)
    dropping = Trained.of(MLP(5, 3, dropout=0.5).double())
    with pytest.raises(SettingError, match=r"Dropout cannot be repeated.*but\(dropout=False\)"):
        fit_many(dropping, data, recipe, seeds=[0])
    fit_many(dropping, data, recipe.but(dropout=False), seeds=[0])
    normed = Trained.of(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)).double())
    with pytest.raises(SettingError, match=r"share their BatchNorm statistics.*freeze_statistics=True"):
        fit_many(normed, data, recipe.but(freeze_statistics=False), seeds=[0])
    starts = trained.weights.repeat(2, 1)
    starts[1, 0] = torch.nan
    with pytest.raises(NumericsError, match=r"1 of 2 networks diverged in epoch 1, first the one with seed 5. Lower"):
        fit_many(trained, data, recipe, seeds=[4, 5], starts=starts)
