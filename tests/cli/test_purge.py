"""`spotless purge` destroys the private part of a request when its date has come, and says so."""

import json
import os
import re
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import pytest

from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.verdict import Check, Checks
from spotlessnet.core import files
from spotlessnet.core.files import overwrite
from spotlessnet.requests import folder
from tests.cli.workshop import BASE, QUICK, RECIPE, spotless
from tests.report.example import report as example


@pytest.fixture
def run(here):
    assert spotless("scrub", *BASE, *QUICK, "--out", "run").code == 0
    return here / "run"


def test_the_date_stands_in_the_receipt_and_can_be_chosen(here, run):
    for out, days in (("run", 90), ("other", 7)):
        if out == "other":
            assert spotless("scrub", *BASE, *QUICK, "--keep-private", "7", "--out", out).code == 0
        told = json.loads((here / out / "receipt.json").read_text())["predicate"]["private"]["destroy_after"]
        due = datetime.fromisoformat(told)
        assert abs(due - datetime.now(UTC) - timedelta(days=days)) < timedelta(hours=1)
    assert spotless("scrub", *BASE, *QUICK, "--keep-private", "-1", "--out", "x").code == 2


def test_nothing_goes_before_its_time(run):
    before = (run / "private/salt").read_bytes()
    ended = spotless("purge", "run")
    assert ended.code == 0
    assert ended.out.startswith("kept run/private, due on ")
    assert (run / "private/salt").read_bytes() == before


def test_what_is_due_is_overwritten_unlinked_and_written_down(here, monkeypatch):
    assert spotless("scrub", *BASE, *QUICK, "--keep-private", "0", "--out", "run").code == 0
    run = here / "run"
    seen = {}

    def look(path):
        size = path.stat().st_size
        overwrite(path)
        seen[path.name] = size

    salt = (run / "private/salt").read_bytes()
    unlink = type(run).unlink
    left = {}

    def keep(self, *args, **named):
        if self.parent.name == "private" and self.is_file():
            left[self.name] = self.read_bytes()
        return unlink(self, *args, **named)

    monkeypatch.setattr(folder, "overwrite", look)
    monkeypatch.setattr(type(run), "unlink", keep)
    ended = spotless("purge", "run")
    assert ended.code == 0, ended.err
    assert ended.out == "purged run/private: destroy-after, receipt-diagnostics.json, request.json, rows.json, salt\n"
    assert left["salt"] != salt
    assert len(left["salt"]) == 32
    assert not (run / "private").exists()
    told = json.loads((run / "purged.json").read_text())
    assert told["files"] == ["destroy-after", "receipt-diagnostics.json", "request.json", "rows.json", "salt"]
    assert "backups, snapshots" in told["reach"]
    assert spotless("purge", "run").out == "purged before run\n"


def test_a_second_purge_keeps_what_the_first_wrote_down(run):
    """The fault before: an empty folder `private` made later had it rewritten without a name."""
    assert spotless("purge", "run", "--now").code == 0
    before = (run / "purged.json").read_bytes()
    (run / "private").mkdir()
    assert spotless("purge", "run", "--now").code == 0
    assert not (run / "private").exists()
    assert (run / "purged.json").read_bytes() == before
    (run / "private").mkdir()
    (run / "private/more").write_text("a row")
    assert spotless("purge", "run", "--now").code == 0
    assert json.loads((run / "purged.json").read_text())["files"] == [*json.loads(before)["files"], "more"]


def test_afterwards_the_receipt_is_checked_as_far_as_it_goes(run):
    assert spotless("purge", "run", "--now").code == 0
    ended = spotless("verify", "run")
    assert ended.code == 0
    assert (
        "not checked: the list, and that nobody rewrote the receipt: the folder `private` was purged on 20" in ended.out
    )
    assert "`private`, which was purged on 20" in spotless("verify", "run", "--forget", "forget.csv").err
    ended = spotless("scrub", *BASE, *QUICK, "--out", "run", "--resume")
    assert ended.code == 3
    assert "was purged, so nobody can tell whether this is the request that was served there" in ended.err


def test_folders_that_no_request_wrote_and_dates_that_are_gone_are_refused(here, run):
    (here / "mine").mkdir()
    ended = spotless("purge", "mine")
    assert ended.code == 3
    assert "mine holds no folder `private`" in ended.err
    (run / "private/destroy-after").write_text("soon")
    ended = spotless("purge", "run")
    assert ended.code == 3
    assert "does not say when run/private is due. `spotless purge --now` destroys it today." in ended.err
    (here / "precious").write_text("mine")
    (run / "private/link").symlink_to(here / "precious")
    assert spotless("purge", "run", "--now").code == 0
    assert (here / "precious").read_text() == "mine"


GONE, ALIVE, ANEW = ".spotless-4194999-aa", f".spotless-{os.getppid()}-bb", f".spotless-{os.getppid()}-ee"
"""What processes were writing; of the first there can be none, for numbers end before; the last began too late."""


def test_what_a_killed_run_was_writing_is_destroyed_too(run, monkeypatch):
    """The fault before: half a report with all digits stayed beside the receipt."""
    for name in (GONE, ALIVE, "private/" + GONE, *([ANEW] if Path("/proc/self/stat").exists() else [])):
        (run / name).write_text("loss 1.2345678")
    if (run / ANEW).exists():
        os.utime(run / ANEW, (1e9, 1e9))  # its number was given to another process since
    (run / (GONE + "c")).mkdir()
    (run / (GONE + "c") / "report.html").write_text("loss 1.2345678")
    os.link(run / "receipt.json", run / (GONE + "d"))  # killed between its two names
    over = Mock(wraps=overwrite)
    monkeypatch.setattr(files, "overwrite", over)
    receipt = (run / "receipt.json").read_bytes()
    assert spotless("purge", "run", "--now").code == 0
    stays = {ALIVE, "purged.json", "receipt.json", "scrubbed.safetensors"}
    assert {p.name for p in run.iterdir()} == stays
    assert (run / "receipt.json").read_bytes() == receipt
    assert [call.args[0].name for call in over.call_args_list if call.args[0].name != ANEW] == [GONE, "report.html"]
    assert {GONE, GONE + "c", GONE + "d"} < set(json.loads((run / "purged.json").read_text())["files"])
    assert spotless("verify", "run").code == 0


@pytest.fixture
def audited(here, monkeypatch):
    """A folder with an audit whose every number is known."""
    told = example()
    checks = (Check("remembered share", "different", 0.7617974, 0.6952502, 0.8256308, 0.2),)
    assert told.verdict is not None
    rows = [
        Row("audit", method, f"{what} on forget", seed, 1.2345678 + seed)
        for method in ("original", "NTK")
        for seed in range(2)
        for what in ("loss", "margin", "error")
    ]
    told = replace(
        told,
        rows=(*rows, Row("audit", "NTK", "error on retain", 0, 0.0169492)),
        verdict=replace(told.verdict, resolution=0.0651903, checks=Checks(checks)),
    )
    monkeypatch.setattr(import_module("spotlessnet.auditing.run_audit"), "audit", lambda *a, **k: told)
    assert spotless("scrub", *BASE, *QUICK, "--audit", "--out", "run").code == 0
    return here / "run"


def test_what_stays_after_a_purge_tells_no_number_of_the_forgotten_rows(audited):
    """The faults before: all of an audit stayed, losses on forgotten rows digit for digit, for everybody to read."""
    telling = ("report.html", "rows.csv", "rows.jsonl")
    assert all(stat.S_IMODE((audited / name).stat().st_mode) == 0o600 for name in telling)
    assert "1.2345678" in (audited / "rows.csv").read_text()
    ended = spotless("purge", "run", "--now")
    assert ended.code == 0
    assert ended.out.endswith(", salt; beside it: report.html, rows.jsonl, rows.csv\n")
    stays = {"model-card.md", "purged.json", "receipt.json", "scrubbed.safetensors", "verdict.json"}
    assert {p.name for p in audited.iterdir()} == stays
    assert set(telling) < set(json.loads((audited / "purged.json").read_text())["files"])
    for name in stays - {"scrubbed.safetensors"}:
        text = re.sub(r'"seconds": [0-9.]+', "", (audited / name).read_text())
        assert not any(digits in text for digits in ("1.23", "2.23", "0.76", "0.69", "0.83", "0.065", "0.0169")), name
    card = (audited / "model-card.md").read_text()
    assert "on retain" not in card
    assert "on forget" not in card
    assert "- remembered share: different\n" in card
    told = json.loads((audited / "verdict.json").read_text())["checks"]["remembered share"]
    assert told == {"name": "remembered share", "state": "different"}
    ended = spotless("verify", "run")
    assert ended.code == 0, ended.err
    assert "report.html, rows.jsonl, rows.csv: destroyed with `private`" in ended.out


def test_a_report_that_is_gone_without_a_purge_is_found(audited):
    (audited / "report.html").unlink()
    assert spotless("verify", "run").code == 7
    # A purge that was killed may have begun with it, and goes on.
    assert spotless("purge", "run").out.startswith("kept run/private, due on ")
    assert spotless("purge", "run", "--now").code == 0
    (audited / "model-card.md").unlink()
    assert spotless("verify", "run").code == 7


def test_rows_of_a_comparison_and_of_an_audit_alone_go_too(here, monkeypatch):
    monkeypatch.setattr(import_module("spotlessnet.auditing.run_audit"), "audit", lambda *a, **k: example())
    assert spotless("audit", *BASE, *QUICK, "--out", "run").code == 0
    asked = ("compare", *BASE, *RECIPE, "--methods", "fisher", "--seeds", "1")
    assert spotless(*asked, "--out", "compared").code == 0
    assert stat.S_IMODE((here / "compared/rows.jsonl").stat().st_mode) == 0o600
    assert spotless("purge", "run", "compared", "--now").code == 0
    assert {p.name for p in (here / "run").iterdir()} == {"model-card.md", "purged.json", "verdict.json"}
    assert {p.name for p in (here / "compared").iterdir()} == {"purged.json"}
