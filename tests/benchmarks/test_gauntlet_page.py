"""Rows of further runs join those that there are; none is counted twice."""

import json

import pytest

from benchmarks import gauntlet_page

ROW = {"setting": "a/b/c", "used_for": "confirming", "candidate": "retrained", "method": False, "outcome": "forgotten"}


def run_of(path, *audits, command="python a.py --out x.jsonl"):
    path.write_text("".join(json.dumps({**ROW, "audit": n, "command": command, "machine": "m"}) + "\n" for n in audits))
    return path


def test_rows_of_a_further_run_join_those_that_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(gauntlet_page, "ROWS", tmp_path / "rows.jsonl")
    gauntlet_page.take_over([run_of(tmp_path / "first", 0, 1)], keep=False)
    gauntlet_page.take_over([run_of(tmp_path / "more", 2, command="python b.py")], keep=True)
    assert [row["audit"] for row in gauntlet_page.read()] == [0, 1, 2]
    about = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])["about"]
    assert about["commands"] == ["python a.py --out FILE", "python b.py"]
    with pytest.raises(SystemExit, match="is there already"):
        gauntlet_page.take_over([run_of(tmp_path / "again", 1)], keep=True)
    gauntlet_page.take_over([run_of(tmp_path / "anew", 5)], keep=False)
    assert [row["audit"] for row in gauntlet_page.read()] == [5]
