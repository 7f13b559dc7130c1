"""What lies beside a receipt: planted files, a changed date, a salt that is gone, and a refusal."""

import json
from importlib import import_module

import pytest

from spotlessnet.core.gaussian import Diagnostics, Diagonal, Gaussian
from spotlessnet.methods import Fisher
from tests.cli.test_commands import report
from tests.cli.workshop import BASE, QUICK, spotless


@pytest.fixture
def run(here):
    assert spotless("scrub", *BASE, *QUICK, "--out", "run").code == 0
    return here / "run"


@pytest.mark.parametrize("name", ["report.html", "verdict.json", "model-card.md", "statistics.safetensors"])
def test_a_planted_file_of_a_known_name_is_found(run, name):
    (run / name).write_text("forgotten")
    ended = spotless("verify", "run")
    assert ended.code == 7
    assert f"{name} lies beside receipt.json, which does not speak of it" in ended.err


def test_other_files_are_named(run):
    (run / "notes.txt").write_text("mine")
    ended = spotless("verify", "run")
    assert ended.code == 0
    assert "not checked: files of which the receipt does not speak: notes.txt" in ended.out


def test_an_audited_folder_has_nothing_unknown(here, monkeypatch):
    monkeypatch.setattr(import_module("spotlessnet.auditing.run_audit"), "audit", lambda *a, **k: report("forgotten"))
    assert spotless("scrub", *BASE, *QUICK, "--audit", "--out", "run").code == 0
    ended = spotless("verify", "run")
    assert ended.code == 0
    assert "does not speak" not in ended.out


def test_a_salt_that_is_gone_is_no_weaker_check(run):
    (run / "private/salt").unlink()
    ended = spotless("verify", "run")
    assert ended.code == 7
    assert "neither seal nor list was checked" in ended.err


@pytest.mark.parametrize("date", ["2020-01-01T00:00:00+00:00", "2100-01-01T00:00:00+00:00"])
def test_a_date_that_was_changed_is_found(run, date):
    (run / "private/destroy-after").write_text(date + "\n")
    for command in ("verify", "purge"):
        ended = spotless(command, "run")
        assert ended.code == 7
        assert "must say what the receipt says" in ended.err
    assert (run / "private/salt").is_file()
    assert spotless("purge", "run", "--now").code == 0


def test_a_true_refusal_verifies_and_a_forged_one_does_not(here, monkeypatch):
    def worn(self, trained, split):
        told = Diagnostics(assumed=("it is worn",), lost=("all",), others={"retrain_now": True})
        return Gaussian(trained.weights, Diagonal(0 * trained.weights), diagnostics=told)

    monkeypatch.setattr(Fisher, "__call__", worn)
    assert spotless("scrub", *BASE, *QUICK, "--out", "run").code == 8
    for path in ("run", "run/refusal.json"):
        ended = spotless("verify", path, "--forget", "forget.csv")
        assert ended.code == 0, ended.err
        assert "verified refusal.json" in ended.out
    told = json.loads((here / "run/refusal.json").read_text())
    told["predicate"]["about"]["refused"] = "another reason"
    (here / "run/refusal.json").write_text(json.dumps(told))
    assert spotless("verify", "run").code == 7
