"""Visits in parts: never worse than before them, whatever the rate, and one bad part does not cost the request."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.targets import WeightedDistillation, with_weights
from spotlessnet.core.trained import Trained
from spotlessnet.methods.out_of_fold import sweep as module
from spotlessnet.methods.out_of_fold.sweep import PARTS, Swept, sweep
from spotlessnet.training.fit import fit


def problem(rows: int = 160) -> tuple[Trained, Data]:
    """Squares on a linear network, whose curvature is about 1 / 3."""
    torch.manual_seed(0)
    x, w = torch.randn(rows, 4, dtype=float64), torch.ones(rows, dtype=float64)
    pupil = replace(Trained.of(nn.Linear(4, 3, bias=False).double()), loss=WeightedDistillation())
    goal = 20 * x @ torch.randn(4, 3, dtype=float64)
    return pupil, Data.of((x, with_weights(torch.cat([goal, torch.full((rows, 1), math.inf)], 1), w)))


def off(pupil: Trained, told: Data, weights: Tensor) -> float:
    batch = told.fetch(told.rows)
    return float(WeightedDistillation()(pupil.at(weights).predict(told), batch.y).mean())


def swept(lr: float, momentum: float = 0.9, seed: int = 0) -> tuple[float, float, Swept]:
    """The objective before and after."""
    pupil, told = problem()
    recipe = Recipe(epochs=1, lr=lr, momentum=momentum, batch_size=4)
    found = sweep(pupil, told, recipe, lambda g, w, done: None, lambda w: off(pupil, told, w), seed=seed)
    return off(pupil, told, pupil.weights), off(pupil, told, found.weights), found


def test_all_visits_at_a_good_rate():
    before, after, found = swept(0.2)
    assert found.taken_back == 0
    assert after < 0.05 * before


@settings(deadline=None, max_examples=25)
@given(st.floats(-4, 8), st.sampled_from([0.0, 0.5, 0.9]), st.integers(0, 5))
def test_never_worse_than_before(power: float, momentum: float, seed: int) -> None:
    before, after, found = swept(10.0**power, momentum, seed)
    assert after <= before
    assert found.weights.isfinite().all()


@pytest.mark.parametrize("lr", [3.0, 10.0])
def test_a_part_that_diverges_is_taken_back(lr: float) -> None:
    before, after, found = swept(lr)
    assert 0 < found.taken_back < PARTS
    assert after < 0.7 * before


def test_what_is_no_number_counts_as_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = iter([True, False, False, False])

    def broken_fit(pupil: Trained, *args: object, **more: object) -> Trained:
        made = fit(pupil, *args, **more)  # type: ignore[arg-type]
        return replace(made, weights=math.nan * made.weights) if next(broken) else made

    monkeypatch.setattr(module, "fit", broken_fit)
    before, after, found = swept(0.1)
    assert found.taken_back == 1
    assert after < before
