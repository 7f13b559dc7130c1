"""`verdict.json`: an object with a schema, checked by `spotless verify`, which still reads the bare list of before."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.store.receipts import plain
from spotlessnet.store.schema import agrees, verdict_mistakes
from tests.cli.workshop import BASE, QUICK, spotless
from tests.report.example import report as example


@pytest.fixture
def audited(here, monkeypatch) -> Path:
    found = example("not forgotten")
    monkeypatch.setattr(import_module("spotlessnet.auditing.run_audit"), "audit", lambda *a, **k: found)
    return Path(here)


def as_before(report: AuditReport) -> str:
    """What version 0.1 wrote, but for its figures."""
    return json.dumps(plain(report.record()), indent=2, sort_keys=True) + "\n"


def test_it_is_an_object_with_a_schema_and_checks_by_name_and_verify_passes(audited):
    assert spotless("scrub", *BASE, *QUICK, "--audit", "--out", "run").code == 1
    told = json.loads((audited / "run" / "verdict.json").read_text())
    assert (told["schema"], told["verdict"], told["seeds"]) == (2, "not forgotten", 8)
    assert (told["oracle"], told["power"]) == ("forgotten", "not forgotten")
    assert told["checks"]["remembered share"] == {"name": "remembered share", "state": "same"}
    receipt = json.loads((audited / "run" / "receipt.json").read_text())["predicate"]["audit"]
    assert receipt[1] == told["checks"]["remembered share"]
    assert spotless("verify", "run").code == 0


def test_the_bare_list_of_before_is_still_read(audited, monkeypatch):
    monkeypatch.setattr(import_module("spotlessnet.report.exports"), "as_verdict", as_before)
    assert spotless("scrub", *BASE, *QUICK, "--audit", "--out", "run").code == 1
    assert isinstance(json.loads((audited / "run" / "verdict.json").read_text()), list)
    assert spotless("verify", "run").code == 0


def told() -> dict[str, Any]:
    figures: list[dict[str, Any]] = plain(example("forgotten").record())
    return {"schema": 2, **figures[0], "checks": {check["name"]: check for check in figures[1:]}}


@pytest.mark.parametrize("key", ["verdict", "reason", "seeds"])
def test_a_file_that_says_otherwise_than_the_receipt_is_found(key):
    audit = plain(example("forgotten").record())
    assert agrees(told(), audit)
    assert not agrees(told() | {key: "other"}, audit)
    assert not agrees({k: v for k, v in told().items() if k != key}, audit)


def test_a_check_that_is_missing_changed_or_hidden_by_another_of_its_name_is_found():
    audit = plain(example("forgotten").record())
    checks = told()["checks"]
    assert not agrees(told() | {"checks": {}}, audit)
    name = "remembered share"
    assert not agrees(told() | {"checks": checks | {name: checks[name] | {"state": "different"}}}, audit)
    assert not agrees(told(), [*audit, audit[-1]])
    assert not agrees(audit[:-1], audit)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("forgotten", "it must be an object"),
        ([], "it tells no verdict"),
        ([{"verdict": "perhaps"}], "its audit must begin with a verdict"),
        ({"verdict": "forgotten", "checks": {}}, "its schema must be 1 or 2, but is None"),
        (told() | {"schema": True}, "its schema must be 1 or 2, but is True"),
        (told() | {"schema": 3}, "its schema must be 1 or 2, but is 3"),
        (told() | {"verdict": "perhaps"}, "its verdict must be one of forgotten"),
        (told() | {"checks": []}, "its 'checks' must be an object"),
        (told() | {"checks": {"a": {"name": "b"}}}, "its check 'a' must be an object that bears this name"),
    ],
)
def test_what_is_no_verdict_is_said(wrong, said):
    assert verdict_mistakes(told()) == []
    assert verdict_mistakes(told() | {"schema": 1}) == []  # of earlier versions
    assert said in "; ".join(verdict_mistakes(wrong))
