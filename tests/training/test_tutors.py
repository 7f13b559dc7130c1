"""Tutors: for every row there is a network that never saw it, and it is that one that answers."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import MismatchError, NeedError, SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import fit
from spotlessnet.training.tutors import Tutors, train_tutors


def problem(rows: int = 12, seed: int = 0) -> tuple[Trained, Data]:
    torch.manual_seed(seed)
    data = Data.of((torch.randn(rows, 4, dtype=float64), torch.randint(3, (rows,))))
    began = Trained.of(nn.Linear(4, 3).double(), recipe=Recipe(epochs=4, rate=0.1, momentum=0.5, batch=4))
    return fit(replace(began, start=began.weights), data), data


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), parts=st.integers(2, 4))
def test_each_row_is_answered_by_a_training_without_it(seed: int, parts: int) -> None:
    network, data = problem(seed=seed)
    made = train_tutors(network, data, parts=parts, seed=seed)
    begun = network.at(network.anchor)
    asked = data.pick(torch.randperm(12, generator=torch.Generator().manual_seed(seed))[:7])
    answers = made.answers(network, asked)
    for i, row in enumerate(asked.rows.tolist()):
        part = int(made.part[made.rows == row])
        others = data.pick((made.part[torch.searchsorted(made.rows, data.rows)] != part).nonzero().squeeze(1))
        assert row not in others.rows.tolist()
        alone = fit(begun, others, network.recipe, seed=seed + part)
        torch.testing.assert_close(answers[i : i + 1], alone.predict(asked.pick([i])), rtol=1e-10, atol=1e-12)


def test_another_label_leaves_the_answer_of_its_tutor_alone():
    """What it is all for: the answer about a row does not depend on the label that the row had."""
    network, data = problem()
    labels = data.labels().clone()
    labels[5] = (labels[5] + 1) % 3
    before, after = (train_tutors(network, d).answers(network, data.pick([5])) for d in (data, data.relabel(labels)))
    torch.testing.assert_close(before, after, rtol=0, atol=0)
    others = [train_tutors(network, d).weights for d in (data, data.relabel(labels))]
    assert not torch.equal(*others)


def test_rows_keep_their_tutor_in_any_order():
    network, data = problem()
    made = train_tutors(network, data.pick([7, 3, 9, 1, 0, 11]))
    assert made.rows.tolist() == [0, 1, 3, 7, 9, 11]
    forth, back = made.answers(network, data.pick([9, 1, 3])), made.answers(network, data.pick([3, 1, 9]))
    torch.testing.assert_close(forth, back.flip(0), rtol=0, atol=0)


def test_strangers_are_refused():
    network, data = problem()
    made = train_tutors(network, data.pick(range(6)))
    with pytest.raises(MismatchError, match="know only the rows they were trained beside"):
        made.answers(network, data.pick([7]))


def test_what_it_needs_is_said():
    network, data = problem()
    with pytest.raises(NeedError, match="start or recipe is not known"):
        train_tutors(replace(network, recipe=None), data)
    with pytest.raises(SettingError, match="parts` must be at least 2 and at most one per row, but got 1"):
        train_tutors(network, data, parts=1)
    assert isinstance(train_tutors(network, data), Tutors)
