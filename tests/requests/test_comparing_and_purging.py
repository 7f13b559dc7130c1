"""Comparing methods and destroying private parts, without the command."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.core.errors import DataError, NeedError, ResourceError, SettingError
from spotlessnet.core.split import rows
from spotlessnet.requests.case import Case
from spotlessnet.requests.comparing import broken_down, comparison_of
from spotlessnet.requests.purging import purge_request
from tests.requests.small import FORGET, RECIPE, problem


def case(**more: object) -> Case:
    model, start, x, y = problem()
    trained = sn.Trained.of(model, init=start, recipe=RECIPE)
    return Case(model=trained, data=sn.Data.of((x, y)), forget=rows(FORGET), **more)  # type: ignore[arg-type]


def test_methods_are_compared_on_one_request(tmp_path):
    comparison = comparison_of(
        case(settings={"finetune.epochs": "1"}, out=tmp_path / "run"), "ntk, finetune+fisher", seeds=2
    )
    assert list(comparison.scrubs) == ["ntk", "finetune+fisher"]
    assert str(comparison).startswith("compare ntk, finetune+fisher over 2 trainings; row numbers: 3 rows matched")
    found = comparison.run()
    assert {row.method for row in found} == {"original", "retrained", "ntk", "finetune+fisher"}
    assert {row.seed for row in found} == {0, 1}
    assert "activation distance" in {row.readout for row in found}
    assert len((tmp_path / "run/rows.jsonl").read_text().splitlines()) == len(found)
    assert broken_down(found) == {}


def test_who_broke_down_is_counted_by_training():
    nan = float("nan")
    found = [sn.Row("e", "ntk", readout, seed, nan, note="it burst") for readout in ("a", "b") for seed in (0, 2)]
    assert broken_down([*found, sn.Row("e", "fisher", "a", 0, 1.0)]) == {("ntk", "it burst"): 2}


def test_what_cannot_be_compared_is_refused_before_anything_is_read():
    unread = Case(model="nowhere.py:build", data="nowhere.py:train")
    with pytest.raises(NeedError, match="Comparing needs --init, --epochs and --lr"):
        comparison_of(unread, "ntk")
    with pytest.raises(NeedError, match=r"settings that say for which method, such as ntk\.damping"):
        comparison_of(Case(settings={"damping": 1}), "ntk")
    with pytest.raises(SettingError, match="There is no method 'nkt'"):
        comparison_of(unread, "nkt")


def regression(**more: object) -> Case:
    x = torch.randn(40, 4)
    y = x.sum(dim=1, keepdim=True) + 0.1 * torch.randn(40, 1)
    network, init = nn.Linear(4, 1), nn.Linear(4, 1)
    for one, weight in ((network, 1.0), (init, 0.0)):  # one that was trained, and one that knows nothing
        nn.init.constant_(one.weight, weight)
    trained = sn.Trained.of(network, init=init, recipe=RECIPE, loss=sn.SquaredError())
    return Case(model=trained, data=sn.Data.of((x, y)), forget=rows(FORGET), **more)  # type: ignore[arg-type]


def test_a_regression_is_compared_by_what_it_has(tmp_path):
    """The fault before: the plan was given, and the work then ended at methods and readouts that need classes."""
    with pytest.raises(NeedError, match="'random-labels' needs classes"):
        comparison_of(regression(), "ntk,random-labels")
    usual = comparison_of(regression(), seeds=1)
    assert "random-labels" not in usual.scrubs
    assert "without random-labels: it needs classes, and this network has none" in usual.lines()
    found = comparison_of(regression(out=tmp_path / "run"), "finetune", seeds=1).run()
    assert {row.readout for row in found} == {"loss on retain", "loss on forget"}
    assert all(row.value > 0 for row in found)


def test_the_plan_of_a_comparison_has_its_time():
    once, twice = (comparison_of(case(), "finetune", seeds=seeds) for seeds in (1, 1000))
    assert all(one.lines()[-1].startswith("time    about ") for one in (once, twice))
    # Two trainings and the method, for each seed.
    assert once.costs[0].retraining > 0
    assert once.costs[0].seconds > 0
    assert " s, at most " in once.lines()[-1]
    with pytest.raises(ResourceError, match="This would need about"):
        comparison_of(case(memory_limit=1e-6), "finetune")


def served(folder: Path, **more: object) -> Path:
    model, _, x, y = problem()
    sn.unlearn(model, (x, y), forget=FORGET, method="ntk", out=folder, **more)  # type: ignore[arg-type]
    return folder


def test_the_private_part_goes_when_it_is_due(tmp_path):
    kept = purge_request(served(tmp_path / "later", keep_private=7))
    assert kept.status == "kept"
    assert kept.due is not None
    assert abs(kept.due - datetime.now(UTC) - timedelta(days=7)) < timedelta(hours=1)
    assert str(kept) == f"kept {tmp_path / 'later' / 'private'}, due on {kept.due.date()}"
    assert (tmp_path / "later/private/salt").is_file()

    gone = purge_request(served(tmp_path / "now", keep_private=0))
    assert gone.status == "purged"
    assert "salt" in gone.files
    assert not (tmp_path / "now/private").exists()
    assert purge_request(tmp_path / "now").record() == {"folder": tmp_path / "now", "status": "purged before"}
    assert purge_request(tmp_path / "later", at_once=True).status == "purged"


def test_a_date_that_was_put_off_is_noticed(tmp_path):
    run = served(tmp_path / "run", keep_private=0)
    (run / "private/destroy-after").write_text("2999-01-01T00:00:00+00:00\n")
    with pytest.raises(sn.SpotlessError, match="must say what the receipt says"):
        purge_request(run)
    receipt = json.loads((run / "receipt.json").read_text())
    receipt["predicate"]["private"]["destroy_after"] = "2999-01-01T00:00:00+00:00"
    (run / "receipt.json").write_text(json.dumps(receipt))
    with pytest.raises(sn.SpotlessError):
        purge_request(run)
    assert (run / "private/salt").is_file()


def test_other_folders_are_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match="holds no folder `private`"):
        purge_request(tmp_path / "mine", at_once=True)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/private").symlink_to(tmp_path / "mine")
    with pytest.raises(DataError, match="holds no folder `private`"):
        purge_request(tmp_path / "linked", at_once=True)
