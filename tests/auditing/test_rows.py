"""Rows survive the trip to a file, interruptions and strange numbers."""

import json
import math

import pytest

from spotlessnet.auditing.rows import Row, append_rows, read_rows
from spotlessnet.core.errors import DataError, ResourceError

FULL = Row("e", "m", "r", 3, 0.5, 0.4, 0.6, "nats", "low", 1.5, 20.0, True, "ünï 'code'")


def test_a_row_comes_back_as_it_went(tmp_path):
    strange = Row("e", "m", "bound", 0, math.inf, -math.inf)
    append_rows(tmp_path / "new" / "rows.jsonl", [FULL])
    append_rows(tmp_path / "new" / "rows.jsonl", [strange])
    full, back = read_rows(tmp_path / "new" / "rows.jsonl")
    assert full == FULL
    assert (back.value, back.low) == (math.inf, -math.inf)
    assert math.isnan(back.high)
    for line in (tmp_path / "new" / "rows.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_appending_never_rewrites(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_rows(path, [FULL])
    before = path.read_bytes()
    append_rows(path, [Row("e", "m", "other", 0, 1.0)])
    append_rows(path, [])
    assert path.read_bytes().startswith(before)
    assert len(read_rows(path)) == 2
    assert read_rows(tmp_path / "none.jsonl") == []


def test_the_last_row_of_a_key_counts(tmp_path):
    append_rows(tmp_path / "r", [Row("e", "m", "r", 0, 1.0), Row("e", "m", "r", 1, 5.0), Row("e", "m", "r", 0, 2.0)])
    assert [(row.seed, row.value) for row in read_rows(tmp_path / "r")] == [(0, 2.0), (1, 5.0)]


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_an_interrupted_line_costs_only_itself(tmp_path, cut):
    path = tmp_path / "rows.jsonl"
    line = Row("e", "m", "half", 0, 1.0).to_json()
    append_rows(path, [FULL])
    with path.open("a") as file:
        file.write(line[:cut])
    assert read_rows(path) == [FULL]
    append_rows(path, [Row("e", "m", "next", 0, 2.0)])
    assert [row.readout for row in read_rows(path)] == ["r", "next"]


def test_messages(tmp_path):
    path = tmp_path / "rows.jsonl"
    for text, match in [
        ("[1]", "Line 1 of .*must be a JSON object"),
        ("nonsense", "must be one line of JSON, but got 'nonsense'"),
        ('{"experiment": "e", "colour": 1}', "A row has no field 'colour'"),
        ('{"experiment": "e"}', "A row lacks a field or holds the wrong kind"),
        ('{"experiment":"e","method":"m","readout":"r","seed":1.5,"value":1}', "seed must be a whole number, not 1.5"),
        ('{"experiment":"e","method":"m","readout":"r","seed":1,"value":"x"}', "wrong kind of value"),
    ]:
        path.write_text(text + "\n")
        with pytest.raises(DataError, match=match):
            read_rows(path)
    with pytest.raises(ResourceError, match="Rows could not be written to"):
        append_rows(path / "below", [FULL])
