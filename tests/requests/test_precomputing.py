"""Precomputing for later requests, without the command."""

import pytest

import spotlessnet as sn
from spotlessnet.core.errors import NeedError, SettingError
from spotlessnet.core.files import sha256
from spotlessnet.requests.case import Case
from spotlessnet.requests.precomputing import precomputation_of
from tests.requests.small import RECIPE, problem


def case(**more: object) -> Case:
    model, start, x, y = problem()
    trained = sn.Trained.of(model, init=start, recipe=RECIPE)
    return Case(model=trained, data=sn.Data.of((x, y)), **more)  # type: ignore[arg-type]


def test_statistics_and_fold_models_are_planned_and_written(tmp_path):
    found = precomputation_of(case(seed=0, out=tmp_path / "kept"), rank=3, folds=2, repeats=2)
    P = found.opened.trained.size
    assert found.size == 6 * P * 4
    assert str(found).startswith(f"precompute statistics of 90 rows of a network with {P} weights in about ")
    assert str(found).endswith("and train 4 fold models: as long as 2 trainings")
    assert not (tmp_path / "kept").exists()
    made = found.run()
    assert made.sha256 == sha256(made.statistics)
    statistics = sn.read_statistics(made.statistics)
    assert (statistics.count, statistics.need("values").numel()) == (90, 3)
    assert made.fold_models is not None
    assert len(sn.read_fold_models(made.fold_models).weights) == 4
    assert made.files == [made.statistics, made.fold_models]
    # A published seed gives the same again, byte for byte.
    again = precomputation_of(case(seed=0, out=tmp_path / "again"), rank=3).run()
    assert again.sha256 == made.sha256
    assert again.files == [again.statistics]


def test_what_cannot_be_kept_is_refused_before_anything_is_read_or_written(tmp_path):
    unread = Case(model="nowhere.py:build", data="nowhere.py:train")
    with pytest.raises(NeedError, match="--repeats divides the rows among fold models, but none are trained"):
        precomputation_of(unread, repeats=2)
    with pytest.raises(SettingError, match="`diagonal` must be one of 'exact'"):
        precomputation_of(unread, diagonal="rough")
    with pytest.raises(NeedError, match="This needs --out"):
        precomputation_of(case()).run()
