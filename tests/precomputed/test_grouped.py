"""Grouped folds: what is asked to go together lies in one fold, and the chance of that is what the formula says."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64, nn

from benchmarks import fold_chance
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError, SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained
from spotlessnet.precomputed.fold_chance import chance_unseen, share_seen
from spotlessnet.precomputed.fold_models import train_fold_models
from spotlessnet.precomputed.grouped import grouped_folds, groups_of, joined_by_copies
from spotlessnet.training.fit import fit


def problem(columns: dict[str, list[str]] | None = None, rows: int = 12) -> tuple[Trained, Data]:
    torch.manual_seed(0)
    data = Data.of((torch.randn(rows, 4, dtype=float64), torch.randint(3, (rows,))), columns=columns)
    began = Trained.of(nn.Linear(4, 3).double(), recipe=Recipe(epochs=2, lr=0.1, momentum=0.5, batch_size=4))
    return fit(replace(began, init=began.weights), data), data


PEOPLE = ["ann", "bob", "ann", "cid", "dan", "ann", "bob", "eve", "eve", "fay", "fay", "gus"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 8), min_size=9, max_size=40), st.integers(2, 4), st.integers(0, 99))
def test_rows_of_a_group_share_a_fold_and_no_fold_is_empty(drawn: list[int], folds: int, seed: int):
    group = torch.tensor(drawn + list(range(folds))).unique(return_inverse=True)[1]
    part = grouped_folds(group, folds, torch.Generator().manual_seed(seed))
    assert all(len(part[group == g].unique()) == 1 for g in group.unique())
    sizes = part.bincount(minlength=folds)
    assert int(sizes.min()) > 0
    # Each group went to the fold with fewest rows, so folds differ by one group at most.
    assert int(sizes.max() - sizes.min()) <= int(group.bincount().max())


def test_single_rows_make_even_folds_that_are_all_as_likely():
    seen = {tuple(grouped_folds(torch.arange(4), 2, torch.Generator().manual_seed(s)).tolist()): s for s in range(200)}
    assert set(seen) == {p for p in product((0, 1), repeat=4) if sum(p) == 2}


def test_ids_are_the_groups_wherever_there_are_any():
    network, data = problem({"id": PEOPLE})
    for seed in range(4):
        made = train_fold_models(network, data, folds=3, repeats=2, seed=seed)
        part = made.part[:, made.keys.find(data)]
        for person in set(PEOPLE):
            mine = torch.tensor([p == person for p in PEOPLE])
            assert all(len(row[mine].unique()) == 1 for row in part)
        assert part[0].unique().tolist() == [0, 1, 2]
    alone = [train_fold_models(network, data, groups=None, seed=s, salt=b"s").part for s in range(4)]
    plain, rows = problem()
    same = [train_fold_models(plain, rows, seed=s, salt=b"s").part for s in range(4)]
    assert all(torch.equal(a, b) for a, b in zip(alone, same, strict=True))
    assert not all(torch.equal(p[:, 0], p[:, 2]) for p in alone)


def test_another_column_or_a_list_can_be_the_groups():
    network, data = problem({"source": PEOPLE})
    by_column = train_fold_models(network, data, groups="source", salt=b"s")
    by_list = train_fold_models(network, data, groups=PEOPLE, salt=b"s")
    assert torch.equal(by_column.part, by_list.part)
    with pytest.raises(DataError, match="no column 'annotator'"):
        train_fold_models(network, data, groups="annotator")
    with pytest.raises(MismatchError, match="one entry for each of 12 rows, but has 2"):
        train_fold_models(network, data, groups=["a", "b"])
    with pytest.raises(SettingError, match="3 folds need as many groups of rows at least, but there are 2"):
        train_fold_models(network, data, folds=3, groups=["a"] * 6 + ["b"] * 6)


def test_copies_of_a_row_join_their_groups():
    assert joined_by_copies(torch.tensor([0, 1, 2, 3, 3]), torch.tensor([4, 5, 4, 6, 5])).tolist() == [0, 1, 0, 1, 1]
    assert groups_of(problem()[1], "by id", 2) is None


def test_only_fold_models_that_saw_nothing_of_the_request_answer_where_there_are_any():
    network, data = problem({"id": PEOPLE})
    made = train_fold_models(network, data, folds=3, repeats=4, seed=1)
    ann = data.select([i for i, p in enumerate(PEOPLE) if p == "ann"])
    assert bool(made.unseen_divisions(ann).all())
    torch.testing.assert_close(made.answers(network, ann, ann), made.answers(network, ann), rtol=0, atol=0)
    both = data.select([i for i, p in enumerate(PEOPLE) if p in ("bob", "eve")])
    part = made.part[:, made.keys.find(both)]
    clean = [d for d in range(4) if len(part[d].unique()) == 1]
    assert 0 < len(clean) < 4
    # Written out: the mean over the divisions in which one fold holds the whole request.
    said = torch.stack([made.fold(network, int(part[d, 0])).predict(both) for d in clean]).mean(dim=0)
    torch.testing.assert_close(made.answers(network, both, both), said)
    assert not torch.allclose(made.answers(network, both), said)
    everyone = made.answers(network, data, data)  # nobody saw none of it: all that missed a row, as before
    torch.testing.assert_close(everyone, made.answers(network, data), rtol=0, atol=0)


@pytest.mark.parametrize(("asked", "folds", "repeats"), [(1, 2, 1), (2, 2, 1), (3, 2, 4), (4, 3, 5), (2, 10, 3)])
def test_the_chance_is_that_of_many_divisions(asked: int, folds: int, repeats: int):
    groups, trials = 23, 4000
    draw = np.random.default_rng(0)
    folds_of = np.arange(groups) % folds
    hits = 0
    for _ in range(trials):
        divisions = [draw.permutation(folds_of)[:asked] for _ in range(repeats)]
        hits += any((part == part[0]).all() for part in divisions)
    p = chance_unseen(asked, folds, repeats, groups=groups)
    assert abs(hits / trials - p) < 4 * (p * (1 - p) / trials) ** 0.5 + 1e-12


def test_the_chance_in_closed_form():
    assert chance_unseen(2, 2, groups=4) == pytest.approx(1 / 3)  # of three partners one shares the fold
    for folds, request in product(range(2, 11), (1, 2, 5, 10)):
        assert chance_unseen(request, folds, groups=10**7) == pytest.approx(folds ** (1.0 - request), rel=1e-3)
    assert chance_unseen(1000, 2, 100, groups=50_000) == pytest.approx(0.0, abs=1e-290)
    twice = 1 - (1 - chance_unseen(3, 4, groups=40)) ** 2
    assert chance_unseen(3, 4, 2, groups=40) == pytest.approx(twice)
    assert share_seen(5, 2, groups=4) == pytest.approx(2 / 3)
    assert share_seen(1, 2, groups=4) == 0
    with pytest.raises(SettingError, match="at least 2 and at most one per group, but got 5 for 4"):
        chance_unseen(1, 5, groups=4)
    with pytest.raises(SettingError, match="among the 4 groups, but it names 5"):
        chance_unseen(5, 2, groups=4)


def test_the_table_of_the_page_is_the_formula():
    page = fold_chance.PAGE.read_text(encoding="utf-8")
    assert fold_chance.PLACE.fill(page, fold_chance.made()) == page
