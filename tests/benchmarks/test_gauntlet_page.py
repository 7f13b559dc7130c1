"""Rows of many more audits stand beside those of a confirming run; none is counted twice."""

import json

import pytest
from benchmarks.gauntlet_totals import Line, Worst, said

from benchmarks import gauntlet_page, gauntlet_totals

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
    told = gauntlet_totals.table(gauntlet_page.read(), gauntlet_page.of_two_classes())
    aimed = "| retrained, origin not known: *forgotten* | ≥ 95 % |"
    assert f"{aimed} 2 of 2 (15.8–100.0 %) | 2 of 2 (15.8–100.0 %) | 1 of 1 (2.5–100.0 %) |" in told
    about = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])["about"]
    assert about["commands"] == ["python a.py --out FILE", "python b.py"]
    with pytest.raises(SystemExit, match="is there already"):
        gauntlet_page.take_over([run_of(tmp_path / "again", 1)], gauntlet_page.MANY)
    gauntlet_page.take_over([run_of(tmp_path / "anew", 5)])
    assert [row["audit"] for row in gauntlet_page.read()] == [5]


def rows_of(name, passed, total, **more):
    outcomes = ["forgotten"] * passed + ["inconclusive"] * (total - passed)
    return [{**ROW, "candidate": name, "outcome": outcome, **more} for outcome in outcomes]


def test_a_share_that_misses_its_aim_is_bold_and_one_that_just_reaches_it_is_not():
    high = Line("", ("retrained",), said("forgotten"), 0.8, at_least=True)
    assert high.cell(rows_of("retrained", 8, 10)) == "8 of 10 (44.4–97.5 %)"
    assert high.cell(rows_of("retrained", 7, 10)) == "**7 of 10** (34.8–93.3 %)"
    low = Line("", ("original",), said("forgotten"), 0.1)
    assert low.cell(rows_of("original", 1, 10)) == "1 of 10 (0.3–44.5 %)"
    assert low.cell(rows_of("original", 2, 10)) == "**2 of 10** (2.5–55.6 %)"
    assert low.cell([]) == "–"
    assert [low.wanted, high.wanted] == ["≤ 10 %", "≥ 80 %"]


def test_the_worst_kind_is_that_with_the_largest_share():
    worst = Worst("", ("a", "b", "c"), said("forgotten"), 0.1)
    assert worst.cell([*rows_of("a", 3, 30), *rows_of("b", 2, 10)]) == "*b*: **2 of 10** (2.5–55.6 %)"
    assert worst.cell([*rows_of("a", 0, 30), *rows_of("b", 0, 10)]) == "none: 0 of 40 (0.0–8.8 %)"


def test_a_statement_is_violated_where_rows_were_kept_and_none_could_have_been():
    none, some = ({"could_hide": {"single": n, "share": n / 10}} for n in (0, 1))
    rows = [*rows_of("one row kept", 1, 2, **none), *rows_of("a tenth kept", 1, 1, **some)]
    assert gauntlet_totals.DENIED.found(rows) == (1, 3)


def test_persons_are_told_apart_and_copies_that_stay_are_left_out():
    person, twice = ({"setting": f"a/b/{kind}-12"} for kind in ("person", "twice"))
    rows = [*rows_of("retrained", 1, 1), *rows_of("retrained", 2, 3, **person), *rows_of("original", 0, 4, **twice)]
    assert [line.found(rows) for line in gauntlet_totals.RETRAINED] == [(0, 0), (1, 1), (0, 0), (2, 3)]
    assert gauntlet_totals.UNCHANGED.found(rows) == (0, 0)


def test_rows_of_a_test_that_changed_take_the_place_of_earlier_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(gauntlet_page, "ROWS", tmp_path / "rows.jsonl")
    two = tmp_path / "two"
    gauntlet_page.take_over([run_of(tmp_path / "first", 0, 1, outcome="inconclusive")])
    gauntlet_page.take_over([run_of(tmp_path / "more", 2)], gauntlet_page.MANY)
    run_of(two, 3, outcome="not forgotten")
    two.write_text(two.read_text().replace('"retrained"', '"half batch"'))
    gauntlet_page.take_over([two], gauntlet_page.TWO)
    gauntlet_page.audited_anew([run_of(tmp_path / "anew", 4, command="python c.py")])
    assert [(row["audit"], row.get("earlier", False)) for row in gauntlet_page.read()] == [(4, False)]
    assert [(row["audit"], row["earlier"]) for row in gauntlet_page.of_two_classes()] == [(3, True)]
    assert "not known: *forgotten* | ≥ 95 % | 2 of 2 (15.8–100.0 %) | 1 of 1 (2.5–100.0 %) |" in gauntlet_page.changed()
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert lines[0]["about"]["commands"] == ["python a.py --out FILE", "python c.py"]
    assert {row["used_for"]: row["audit"] for row in lines[1:]} == {
        "confirming": 4, "earlier test, confirming": 1, "many audits": 2, "two classes": 3,
    }  # fmt: skip
    said = gauntlet_totals.notes(gauntlet_page.read(), gauntlet_page.of_two_classes())
    assert "these were audited: in all settings half batch." in said
    assert lines[0]["about"]["machine"] == "m"
