"""Tutors: for every row there is a network that never saw it, and it is that one that answers."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import MismatchError, NeedError, NumericsError, SettingError
from spotlessnet.core.loss import SquaredError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained
from spotlessnet.training import tutors
from spotlessnet.training.fit import fit
from spotlessnet.training.tutors import Tutors, train_tutors


def problem(rows: int = 12, seed: int = 0) -> tuple[Trained, Data]:
    torch.manual_seed(seed)
    data = Data.of((torch.randn(rows, 4, dtype=float64), torch.randint(3, (rows,))))
    began = Trained.of(nn.Linear(4, 3).double(), recipe=Recipe(epochs=4, rate=0.1, momentum=0.5, batch=4))
    return fit(replace(began, start=began.weights), data), data


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), parts=st.integers(2, 4), divisions=st.integers(1, 3))
def test_each_row_is_answered_by_trainings_without_it(seed: int, parts: int, divisions: int) -> None:
    network, data = problem(seed=seed)
    made = train_tutors(network, data, parts=parts, divisions=divisions, seed=seed)
    begun = network.at(network.anchor)
    asked = data.pick(torch.randperm(12, generator=torch.Generator().manual_seed(seed))[:7])
    answers, expected = made.answers(network, asked), torch.zeros(7, 3, dtype=float64)
    for i, row in enumerate(asked.rows.tolist()):
        for division in made.part:
            part = int(division[made.keys.find(data.pick([row]))])
            others = data.pick((division[made.keys.find(data)] != part).nonzero().squeeze(1))
            assert row not in others.rows.tolist()
            alone = fit(begun, others, network.recipe, seed=seed + part)
            expected[i] += alone.predict(asked.pick([i]))[0] / divisions
    torch.testing.assert_close(answers, expected, rtol=1e-10, atol=1e-12)
    assert made.part.unique().tolist() == list(range(parts * divisions))


def test_every_division_is_another():
    network, data = problem()
    part = train_tutors(network, data, divisions=2, salt=b"salt").part
    assert not torch.equal(part[0], part[1] - 2)
    assert torch.equal(part[0], train_tutors(network, data, salt=b"salt").part[0])


def test_another_label_leaves_the_answer_of_its_tutor_alone():
    """What it is all for: the answer about a row does not depend on the label that the row had."""
    network, data = problem()
    labels = data.labels().clone()
    labels[5] = (labels[5] + 1) % 3
    before, after = (train_tutors(network, d).answers(network, d.pick([5])) for d in (data, data.relabel(labels)))
    torch.testing.assert_close(before, after, rtol=0, atol=0)
    others = [train_tutors(network, d).weights for d in (data, data.relabel(labels))]
    assert not torch.equal(*others)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), divisions=st.integers(1, 2))
def test_they_are_as_sure_of_rows_that_nobody_saw_as_the_network(seed: int, divisions: int) -> None:
    network, data = problem(seed=seed)
    held = Data.of((torch.randn(9, 4, dtype=float64), torch.randint(3, (9,))))
    made, plain = (train_tutors(network, data, divisions=divisions, held=h, seed=seed) for h in (held, None))
    torch.testing.assert_close(made.answers(network, data), made.scale * plain.answers(network, data))
    leads = []
    for k in range(2):  # one tutor of every division together
        W = made.weights[k::2]
        assert len(W) == divisions
        z = torch.stack([network.at(w).predict(held) for w in W]).mean(dim=0).sort(dim=1).values
        leads.append(made.scale * (z[:, -1] - z[:, -2]).mean())
    z = network.predict(held).sort(dim=1).values
    torch.testing.assert_close(torch.stack(leads).mean(), (z[:, -1] - z[:, -2]).mean())


def test_a_tutor_whose_training_breaks_is_trained_in_another_order(monkeypatch):
    network, data = problem()
    whole, seeds = train_tutors(network, data), []

    def broken(*args, seed, **more):
        seeds.append(seed)
        if len(seeds) < fails + 1:
            raise NumericsError("It broke.")
        return fit(*args, seed=seed, **more)

    monkeypatch.setattr(tutors, "fit", broken)
    fails = 2
    with pytest.warns(UserWarning, match=r"The training of tutor 1 of 2 broke and begins again in another order\. It"):
        made = train_tutors(network, data)
    assert len(set(seeds)) == len(seeds) == 4
    torch.testing.assert_close(made.weights[1], whole.weights[1], rtol=0, atol=0)
    assert not torch.equal(made.weights[0], whole.weights[0])
    fails = 7
    with pytest.raises(NumericsError, match="It broke"), pytest.warns(UserWarning, match="begins again"):
        train_tutors(network, data)


def test_rows_keep_their_tutor_in_any_order():
    network, data = problem()
    made = train_tutors(network, data.pick([7, 3, 9, 1, 0, 11]))
    forth, back = made.answers(network, data.pick([9, 1, 3])), made.answers(network, data.pick([3, 1, 9]))
    torch.testing.assert_close(forth, back.flip(0), rtol=0, atol=0)


def test_strangers_are_refused():
    network, data = problem()
    made = train_tutors(network, data.pick(range(6)))
    with pytest.raises(MismatchError, match=r"1 of 2 rows are not among the 6 rows of the tutors: .* other data"):
        made.answers(network, data.pick([3, 7]))
    with pytest.raises(MismatchError, match="1 of 1 rows are not among the 6 rows of the tutors"):
        made.answers(network, data.pick([3]).relabel((data.labels()[3:4] + 1) % 3))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), gone=st.sets(st.integers(0, 11), min_size=1, max_size=6))
def test_rows_taken_out_of_the_data_leave_the_others_their_tutor(seed: int, gone: set[int]) -> None:
    """By their numbers, everyone behind a row that was taken out would be taught by a tutor that knows them."""
    network, data = problem(seed=seed)
    made = train_tutors(network, data, seed=seed)
    stay = [i for i in range(12) if i not in gone]
    batch = next(iter(data.batches(12)))
    assert isinstance(batch.x, torch.Tensor)
    fewer = Data.of((batch.x[stay], batch.y[stay]))
    torch.testing.assert_close(made.answers(network, fewer), made.answers(network, data.pick(stay)), rtol=0, atol=0)


def test_copies_of_a_row_are_in_one_part():
    network, data = problem()
    batch = next(iter(data.batches(12)))
    assert isinstance(batch.x, torch.Tensor)
    twins = Data.of((torch.cat([batch.x, batch.x]), torch.cat([batch.y, batch.y])))
    for seed in range(5):
        made = train_tutors(network, twins, divisions=2, seed=seed)
        part = made.part[:, made.keys.find(twins)]
        assert torch.equal(part[:, :12], part[:, 12:])
        assert len(part[0].unique()) == 2


def test_what_it_needs_is_said():
    network, data = problem()
    with pytest.raises(NeedError, match="start or recipe is not known"):
        train_tutors(replace(network, recipe=None), data)
    with pytest.raises(SettingError, match="parts` must be at least 2 and at most one per row, but got 1"):
        train_tutors(network, data, parts=1)
    with pytest.raises(SettingError, match="asked for classes, but the loss 'squared error' has none"):
        train_tutors(replace(network, loss=SquaredError()), data)
    with pytest.raises(SettingError, match="`divisions` must be positive, but got 0"):
        train_tutors(network, data, divisions=0)
    assert isinstance(train_tutors(network, data), Tutors)
