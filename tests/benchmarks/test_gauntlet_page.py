"""Rows of many more audits stand beside those of a confirming run; none is counted twice."""

import json

import pytest

from benchmarks import gauntlet_page

ROW = {"setting": "a/b/c", "used_for": "confirming", "candidate": "retrained", "method": False}


def run_of(path, *audits, command="python a.py --out x.jsonl", outcome="forgotten"):
    again = {"in_sequence": {"outcome": "forgotten", "power": "not forgotten", "pairs": 16}}
    rows = [{**ROW, "audit": n, "outcome": outcome, "command": command, "machine": "m", **again} for n in audits]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_of_many_audits_stand_beside_those_that_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(gauntlet_page, "ROWS", tmp_path / "rows.jsonl")
    gauntlet_page.take_over([run_of(tmp_path / "first", 0, 1)])
    gauntlet_page.take_over(
        [run_of(tmp_path / "more", 2, command="python b.py", outcome="inconclusive")], gauntlet_page.MANY
    )
    assert [row["audit"] for row in gauntlet_page.read()] == [0, 1]
    assert "| a/b/c | 0 of 1 (0.0–97.5 %) | 1 of 1 (2.5–100.0 %) |" in gauntlet_page.many()
    more = run_of(tmp_path / "late", 3, command="python b.py")
    gauntlet_page.take_over([more], gauntlet_page.TWO)
    assert "where nobody says how, in 1 of 1" in gauntlet_page.two_classes_in_all()
    about = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])["about"]
    assert about["commands"] == ["python a.py --out FILE", "python b.py"]
    with pytest.raises(SystemExit, match="is there already"):
        gauntlet_page.take_over([run_of(tmp_path / "again", 1)], gauntlet_page.MANY)
    gauntlet_page.take_over([run_of(tmp_path / "anew", 5)])
    assert [row["audit"] for row in gauntlet_page.read()] == [5]
