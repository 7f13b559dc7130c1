"""Fold models: for every row there is a network that never saw it, and it is that one that answers."""

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
from spotlessnet.precomputed import fold_models
from spotlessnet.precomputed.fold_models import FoldModels, train_fold_models
from spotlessnet.training.fit import fit, train


def problem(rows: int = 12, seed: int = 0) -> tuple[Trained, Data]:
    torch.manual_seed(seed)
    data = Data.of((torch.randn(rows, 4, dtype=float64), torch.randint(3, (rows,))))
    began = Trained.of(nn.Linear(4, 3).double(), recipe=Recipe(epochs=4, lr=0.1, momentum=0.5, batch_size=4))
    return fit(replace(began, init=began.weights), data), data


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), parts=st.integers(2, 4), divisions=st.integers(1, 3))
def test_each_row_is_answered_by_trainings_without_it(seed: int, parts: int, divisions: int) -> None:
    network, data = problem(seed=seed)
    made = train_fold_models(network, data, folds=parts, repeats=divisions, seed=seed)
    begun = network.at(network.anchor)
    asked = data.select(torch.randperm(12, generator=torch.Generator().manual_seed(seed))[:7])
    answers, expected = made.answers(network, asked), torch.zeros(7, 3, dtype=float64)
    for i, row in enumerate(asked.rows.tolist()):
        for division in made.part:
            part = int(division[made.keys.find(data.select([row]))])
            others = data.select((division[made.keys.find(data)] != part).nonzero().squeeze(1))
            assert row not in others.rows.tolist()
            alone = fit(begun, others, network.recipe, seed=seed + part)
            expected[i] += alone.predict(asked.select([i]))[0] / divisions
    torch.testing.assert_close(answers, expected, rtol=1e-10, atol=1e-12)
    assert made.part.unique().tolist() == list(range(parts * divisions))


def test_every_division_is_another():
    network, data = problem()
    part = train_fold_models(network, data, repeats=2, salt=b"salt").part
    assert not torch.equal(part[0], part[1] - 2)
    assert torch.equal(part[0], train_fold_models(network, data, salt=b"salt").part[0])


def test_another_label_leaves_the_answer_of_its_tutor_alone():
    """What it is all for: the answer about a row does not depend on the label that the row had."""
    network, data = problem()
    labels = data.labels().clone()
    labels[5] = (labels[5] + 1) % 3
    before, after = (
        train_fold_models(network, d).answers(network, d.select([5])) for d in (data, data.relabel(labels))
    )
    torch.testing.assert_close(before, after, rtol=0, atol=0)
    others = [train_fold_models(network, d).weights for d in (data, data.relabel(labels))]
    assert not torch.equal(*others)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), divisions=st.integers(1, 2))
def test_they_are_as_sure_of_rows_that_nobody_saw_as_the_network(seed: int, divisions: int) -> None:
    network, data = problem(seed=seed)
    held = Data.of((torch.randn(9, 4, dtype=float64), torch.randint(3, (9,))))
    made, plain = (train_fold_models(network, data, repeats=divisions, held=h, seed=seed) for h in (held, None))
    torch.testing.assert_close(made.answers(network, data), made.scale * plain.answers(network, data))
    leads = []
    for k in range(2):  # one fold model of every division together
        W = made.weights[k::2]
        assert len(W) == divisions
        z = torch.stack([network.at(w).predict(held) for w in W]).mean(dim=0).sort(dim=1).values
        leads.append(made.scale * (z[:, -1] - z[:, -2]).mean())
    z = network.predict(held).sort(dim=1).values
    torch.testing.assert_close(torch.stack(leads).mean(), (z[:, -1] - z[:, -2]).mean())


def test_a_tutor_whose_training_breaks_is_trained_in_another_order(monkeypatch):
    network, data = problem()
    whole, seeds = train_fold_models(network, data), []

    def broken(*args, seed, **more):
        seeds.append(seed)
        if len(seeds) < fails + 1:
            raise NumericsError("It broke.")
        return train(*args, seed=seed, **more)

    monkeypatch.setattr(fold_models, "train", broken)
    fails = 2
    with pytest.warns(
        UserWarning, match=r"The training of fold model 1 of 2 broke and begins again in another order\. It"
    ):
        made = train_fold_models(network, data)
    assert len(set(seeds)) == len(seeds) == 4
    torch.testing.assert_close(made.weights[1], whole.weights[1], rtol=0, atol=0)
    assert not torch.equal(made.weights[0], whole.weights[0])
    fails = 7
    with pytest.raises(NumericsError, match="It broke"), pytest.warns(UserWarning, match="begins again"):
        train_fold_models(network, data)


def test_rows_keep_their_tutor_in_any_order():
    network, data = problem()
    made = train_fold_models(network, data.select([7, 3, 9, 1, 0, 11]))
    forth, back = made.answers(network, data.select([9, 1, 3])), made.answers(network, data.select([3, 1, 9]))
    torch.testing.assert_close(forth, back.flip(0), rtol=0, atol=0)


def test_strangers_are_refused():
    network, data = problem()
    made = train_fold_models(network, data.select(range(6)))
    with pytest.raises(MismatchError, match=r"1 of 2 rows are not among the 6 rows of the fold models: .* other data"):
        made.answers(network, data.select([3, 7]))
    with pytest.raises(MismatchError, match="1 of 1 rows are not among the 6 rows of the fold models"):
        made.answers(network, data.select([3]).relabel((data.labels()[3:4] + 1) % 3))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), gone=st.sets(st.integers(0, 11), min_size=1, max_size=6))
def test_rows_taken_out_of_the_data_leave_the_others_their_tutor(seed: int, gone: set[int]) -> None:
    """By their numbers, everyone behind a row that was taken out would be taught by a fold model that knows them."""
    network, data = problem(seed=seed)
    made = train_fold_models(network, data, seed=seed)
    stay = [i for i in range(12) if i not in gone]
    batch = next(iter(data.batches(12)))
    assert isinstance(batch.x, torch.Tensor)
    fewer = Data.of((batch.x[stay], batch.y[stay]))
    torch.testing.assert_close(made.answers(network, fewer), made.answers(network, data.select(stay)), rtol=0, atol=0)


def test_copies_of_a_row_are_in_one_part():
    network, data = problem()
    batch = next(iter(data.batches(12)))
    assert isinstance(batch.x, torch.Tensor)
    twins = Data.of((torch.cat([batch.x, batch.x]), torch.cat([batch.y, batch.y])))
    for seed in range(5):
        made = train_fold_models(network, twins, repeats=2, seed=seed)
        part = made.part[:, made.keys.find(twins)]
        assert torch.equal(part[:, :12], part[:, 12:])
        assert len(part[0].unique()) == 2


def test_what_it_needs_is_said():
    network, data = problem()
    with pytest.raises(NeedError, match="start or recipe is not known"):
        train_fold_models(replace(network, recipe=None), data)
    with pytest.raises(SettingError, match="folds` must be at least 2 and at most one per row, but got 1"):
        train_fold_models(network, data, folds=1)
    with pytest.raises(SettingError, match="asked for classes, but the loss 'squared error' has none"):
        train_fold_models(replace(network, loss=SquaredError()), data)
    with pytest.raises(SettingError, match="`repeats` must be positive, but got 0"):
        train_fold_models(network, data, repeats=0)
    assert isinstance(train_fold_models(network, data), FoldModels)
