"""*Mixed-Privacy Forgetting*: user weights that go exactly, at toy size."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from spotlessnet.auditing.rows import Row
from spotlessnet.experiments import EXPERIMENTS
from spotlessnet.experiments.mixed_privacy import accuracy, removal, requests
from spotlessnet.experiments.mixed_privacy.community import Town, full_community, toy_community
from spotlessnet.experiments.outside_the_box.curves import curve

NAMES = [name for name in EXPERIMENTS if name.startswith("mixed_")]


@pytest.fixture(scope="module")
def town() -> Town:
    return toy_community().open(None, torch.device("cpu"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict[str, tuple[Path, list[Row]]]:
    """Every toy, run once with one seed."""
    found = {}
    for name in NAMES:
        out = tmp_path_factory.mktemp(name)
        settings = replace(EXPERIMENTS[name].toy(), seeds=(0,), device="cpu")
        found[name] = out, EXPERIMENTS[name].run(settings, out)
    return found


def value(rows: list[Row], method: str, readout: str) -> float:
    [row] = [row for row in rows if (row.method, row.readout) == (method, readout)]
    return row.value


def test_core_and_users_share_no_row_and_are_everyone(town):
    core, users = town.core(0), town.users(0)
    assert len(core) == 5 * 3
    assert sorted([*core.rows.tolist(), *users.rows.tolist()]) == town.stage.opened.train.rows.tolist()
    assert town.core(1).rows.tolist() != core.rows.tolist()


def test_no_one_leaves_twice(town):
    parts = requests.groups(town.users(0), 3, 4, seed=0)
    leaving = torch.cat([part.rows for part in parts])
    assert [len(part) for part in parts] == [4, 4, 4]
    assert len(leaving.unique()) == 12
    assert torch.isin(leaving, town.users(0).rows).all()


def test_without_users_the_network_answers_as_the_core(town):
    core = town.core_network(0)
    torch.testing.assert_close(town.without_users(core).predict(town.test), core.predict(town.test))


def test_full_communities_say_what_stands_in():
    assert "stands in for Lacuna-10" in full_community("faces10", "all-cnn").scene.note
    assert "Lacuna-10" in full_community("faces10", "all-cnn").name
    assert len(EXPERIMENTS["mixed_requests"].full().seeds) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_toy_is_measured_once_and_drawn(name, measured):
    out, rows = measured[name]
    assert len({row.key for row in rows}) == len(rows) > 5
    assert all(math.isfinite(row.value) for row in rows)
    again = EXPERIMENTS[name].run(replace(EXPERIMENTS[name].toy(), seeds=(0,), device="cpu"), out)
    assert [row.to_json() for row in again] == [row.to_json() for row in rows]
    assert all(path.stat().st_size > 1000 for path in EXPERIMENTS[name].draw(out))
    assert EXPERIMENTS[name].paper == ()


@pytest.mark.slow
def test_users_teach_the_network_something(measured):
    rows = measured["mixed_accuracy"][1]
    errors = {method: value(rows, method, "error on users") for method in (accuracy.CORE, accuracy.MIXED)}
    assert errors[accuracy.MIXED] < errors[accuracy.CORE]


@pytest.mark.slow
def test_after_each_request_the_network_is_within_its_certificate_of_retraining(measured):
    rows = measured["mixed_requests"][1]
    gaps, sure = (curve(rows, requests.SCRUBBED, name) for name in ("distance to retrained", "certified distance"))
    assert [*gaps] == [1.0, 2.0, 3.0]
    for row in rows:
        if row.readout.startswith("distance to retrained"):
            own = float(row.note.split("within ")[1])
            k = float(row.readout.split("@ ")[1])
            assert row.value <= 1.1 * (sure[k][0] + own)
            assert sure[k][0] < 0.5
    sigma = EXPERIMENTS["mixed_requests"].toy().noise
    nats = curve(rows, requests.SCRUBBED, "certified nats")
    for k, [distance] in sure.items():
        assert nats[k][0] == pytest.approx(0.5 * (distance / sigma) ** 2)
    near = {m: curve(rows, m, "activation distance on forget") for m in (requests.SCRUBBED, "original", "retrained")}
    assert all(near[requests.SCRUBBED][k][0] < 0.5 * near["original"][k][0] for k in gaps)
    assert all(v == [0.0] for v in near["retrained"].values())


@pytest.mark.slow
def test_a_class_that_left_is_answered_as_if_it_never_came(measured):
    rows = measured["mixed_class"][1]
    name = "answers' distance to retrained"
    assert value(rows, removal.SCRUBBED, name) < 0.05 * value(rows, "original", name)
    assert value(rows, removal.SCRUBBED, "distance to retrained") < 0.05


@pytest.mark.slow
def test_when_everyone_left_only_the_core_is_there(measured):
    rows = measured["mixed_all"][1]
    assert value(rows, removal.SCRUBBED, "distance to retrained") == 0.0
    assert value(rows, removal.SCRUBBED, "answers' distance to core only") == 0.0
    assert value(rows, "original", "answers' distance to core only") > 0.01
    assert not any(row.readout == "error on remaining users" for row in rows)
    for readout in ("error on test", "error on leaving users"):
        assert value(rows, removal.SCRUBBED, readout) == value(rows, removal.CORE, readout)
