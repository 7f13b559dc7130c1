"""`spotless purge` destroys the private part of a request when its date has come, and says so."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from spotlessnet.requests import folder
from tests.cli.workshop import BASE, QUICK, spotless


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
        assert abs(due - datetime.now(UTC) - timedelta(days=days)) < timedelta(minutes=10)
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

    overwrite, salt = folder._overwrite, (run / "private/salt").read_bytes()
    unlink = type(run).unlink
    left = {}

    def keep(self, *args, **named):
        if self.parent.name == "private" and self.is_file():
            left[self.name] = self.read_bytes()
        return unlink(self, *args, **named)

    monkeypatch.setattr(folder, "_overwrite", look)
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


def test_afterwards_the_receipt_is_checked_as_far_as_it_goes(run):
    assert spotless("purge", "run", "--now").code == 0
    ended = spotless("verify", "run")
    assert ended.code == 0
    assert "not checked: the list, and that nobody rewrote the receipt: the folder `private` was purged" in ended.out
    assert "Checking a list needs" in spotless("verify", "run", "--forget", "forget.csv").err
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
