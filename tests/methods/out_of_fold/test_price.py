"""What a request takes is known before: counted in rows, as a counter of operations finds it afterwards."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from spotlessnet.core.data import Data
from spotlessnet.core.errors import NeedError, SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Request, Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods import OutOfFoldDistillation
from spotlessnet.methods.out_of_fold.presets import CORRECTED
from spotlessnet.methods.out_of_fold.price import Price
from spotlessnet.precomputed.fold_models import train_fold_models
from spotlessnet.training.fit import fit

COUNTS = st.integers(1, 3000)


@settings(deadline=None)
@given(
    price=st.builds(Price, st.integers(1, 20), COUNTS, COUNTS, st.integers(0, 5), st.integers(0, 300)),
    cost=st.floats(1e-4, 3),
    epochs=st.integers(1, 30),
)
def test_the_most_rows_that_it_pays_for(price: Price, cost: float, epochs: int) -> None:
    most = max(price.forgotten, price.retained)
    within = [rows for rows in range(1, most + 1) if price.in_trainings(rows, epochs) <= cost]
    if within:
        assert price.rows_for(cost, epochs) == max(within)
    else:
        with pytest.raises(SettingError, match=r"does not pay for that: it takes .*\. Give more\."):
            price.rows_for(cost, epochs)


def test_by_hand():
    # Two rounds of three forgotten and three retained rows: twelve visits; six retained rows are read once; there are
    # only four forgotten ones, which are read twice; five others.
    price = Price(rounds=2, forgotten=4, retained=100, readings=2, others=5)
    assert price.of(3) == 3 * 12 + 6 + 2 * 4 + 5
    assert price.in_trainings(3, epochs=10) == price.of(3) / (3 * 10 * 104)


def problem(whole: bool, mislabelled: bool) -> tuple[Trained, Split]:
    torch.manual_seed(0)
    x, y = torch.randn(900, 4), torch.arange(900) % 3
    network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    data = Data.of((x, y))
    began = Trained.of(network, recipe=Recipe(epochs=20, lr=0.01, batch_size=32))
    gone = y == 0
    if not whole:
        gone &= torch.arange(900) < 450
    held = Data.of((torch.randn(100, 4), torch.zeros(100, dtype=torch.long)))
    request = Request(mislabelled=mislabelled)
    rows = [part.nonzero().squeeze(1) for part in (gone, ~gone)]
    split = Split(data.select(rows[0]), data.select(rows[1]), validation=held, request=request)
    return fit(replace(began, init=began.weights), data, began.recipe), split


@pytest.mark.parametrize("taught", [True, False])
@pytest.mark.parametrize(("whole", "mislabelled"), [(False, False), (True, False), (False, True)])
def test_a_counter_of_operations_agrees(whole: bool, mislabelled: bool, taught: bool) -> None:
    trained, split = problem(whole, mislabelled)
    fold_models = train_fold_models(trained, split.whole, folds=2, repeats=2) if taught else None
    scrub = OutOfFoldDistillation(epochs=4, compute_budget=0.08, fold_models=fold_models)
    with FlopCounterMode(display=False) as counter:
        facts = scrub(trained, split).diagnostics
    with FlopCounterMode(display=False) as once:
        trained.outputs(split.forget.fetch(split.forget.rows[:1]).x)
    found = counter.get_total_flops() / (3 * once.get_total_flops() * 900 * 20)
    assert facts["cost_in_trainings"] <= 0.08
    # The first layer passes nothing further back, so a counter finds a little less.
    assert 0.95 * facts["cost_in_trainings"] < found <= facts["cost_in_trainings"] * 1.005
    assert facts["rows_in_a_round"] > 30
    rounds, rows = facts["rounds"], facts["rows_in_a_round"]
    same = replace(scrub, compute_budget=None, epochs=rounds, examples_per_epoch=rows)(trained, split)
    assert same.diagnostics["cost_in_trainings"] == facts["cost_in_trainings"]
    assert torch.equal(same.mean, scrub(trained, split).mean)


def test_a_budget_says_how_many_rounds_of_forgotten_rows_there_are():
    trained, split = problem(whole=False, mislabelled=False)
    few = split.forget.select(range(10))
    split = replace(split, forget=few, kept=split.whole.without(few))
    fold_models = train_fold_models(trained, split.whole, folds=3)
    scrub = OutOfFoldDistillation(targets="in minus out", compute_budget=0.2, fold_models=fold_models)
    facts = scrub(trained, split).diagnostics
    assert facts["forget_weight"] == CORRECTED.forget_weight
    # Of 34 rows of a round ten are forgotten ones: three in ten, and each visit counts the same.
    assert facts["rows_in_a_round"] == 24
    assert facts["visits"] == facts["rounds"] * 34
    more = scrub.price(split, facts["rounds"] + 1).in_trainings(24, 20)
    assert facts["cost_in_trainings"] <= 0.2 < more
    tiny = replace(scrub, compute_budget=0.11)(trained, split).diagnostics
    assert tiny["cost_in_trainings"] <= 0.11


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 50), st.integers(51, 400), st.integers(0, 40), st.floats(1e-3, 3.0), st.integers(1, 60))
def test_the_most_rounds_are_found(forgotten: int, retained: int, others: int, cost: float, rows: int) -> None:
    price = Price(1, forgotten, retained, 3, others)
    most = max((k for k in range(1, 500) if replace(price, rounds=k).in_trainings(rows, 10) <= cost), default=0)
    assert min(price.rounds_for(cost, 10, rows), 499) == most


def test_what_must_hold_is_said():
    trained, split = problem(whole=False, mislabelled=True)
    with pytest.raises(
        SettingError, match=r"says how many rows are visited, but `examples_per_epoch` does too. Give one of them."
    ):
        OutOfFoldDistillation(compute_budget=0.1, examples_per_epoch=3)
    with pytest.raises(SettingError, match=r"`OutOfFoldDistillation.compute_budget` must be positive"):
        OutOfFoldDistillation(compute_budget=0.0)
    with pytest.raises(
        NeedError, match=r"`OutOfFoldDistillation.compute_budget` is in trainings, but the recipe is not known"
    ):
        OutOfFoldDistillation(compute_budget=0.1)(replace(trained, recipe=None), split)
    with pytest.raises(SettingError, match=r"each of its 5 rounds, but a cost of 0.0001 trainings does not pay"):
        OutOfFoldDistillation(compute_budget=1e-4)(trained, split)
