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
from spotlessnet.scrubs import Unlabel
from spotlessnet.scrubs.price import Price
from spotlessnet.training.fit import fit
from spotlessnet.training.tutors import train_tutors

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
    began = Trained.of(network, recipe=Recipe(epochs=20, rate=0.01, batch=32))
    gone = y == 0
    if not whole:
        gone &= torch.arange(900) < 450
    held = Data.of((torch.randn(100, 4), torch.zeros(100, dtype=torch.long)))
    request = Request(mislabelled=mislabelled)
    rows = [part.nonzero().squeeze(1) for part in (gone, ~gone)]
    split = Split(data.pick(rows[0]), data.pick(rows[1]), validation=held, request=request)
    return fit(replace(began, start=began.weights), data, began.recipe), split


@pytest.mark.parametrize("taught", [True, False])
@pytest.mark.parametrize(("whole", "mislabelled"), [(False, False), (True, False), (False, True)])
def test_a_counter_of_operations_agrees(whole: bool, mislabelled: bool, taught: bool) -> None:
    trained, split = problem(whole, mislabelled)
    tutors = train_tutors(trained, split.whole, parts=2, divisions=2) if taught else None
    scrub = Unlabel(epochs=4, cost=0.08, tutors=tutors)
    with FlopCounterMode(display=False) as counter:
        facts = scrub(trained, split).about
    with FlopCounterMode(display=False) as once:
        trained.outputs(split.forget.fetch(split.forget.rows[:1]).x)
    found = counter.get_total_flops() / (3 * once.get_total_flops() * 900 * 20)
    assert facts["cost_in_trainings"] <= 0.08
    # The first layer passes nothing further back, so a counter finds a little less.
    assert 0.95 * facts["cost_in_trainings"] < found <= facts["cost_in_trainings"] * 1.005
    assert facts["rows_in_a_round"] > 30
    same = replace(scrub, cost=None, rows=facts["rows_in_a_round"])(trained, split)
    assert same.about["cost_in_trainings"] == facts["cost_in_trainings"]
    assert torch.equal(same.mean, scrub(trained, split).mean)


def test_what_must_hold_is_said():
    trained, split = problem(whole=False, mislabelled=True)
    with pytest.raises(SettingError, match=r"says how many rows are visited, but `rows` does too. Give one of them."):
        Unlabel(cost=0.1, rows=3)
    with pytest.raises(SettingError, match=r"`Unlabel.cost` must be positive"):
        Unlabel(cost=0.0)
    with pytest.raises(NeedError, match=r"`Unlabel.cost` is in trainings, but the recipe is not known"):
        Unlabel(cost=0.1)(replace(trained, recipe=None), split)
    with pytest.raises(SettingError, match=r"each of its 5 rounds, but a cost of 0.0001 trainings does not pay"):
        Unlabel(cost=1e-4)(trained, split)
