"""Cohorts: each way to say which rows must go, and lists of ids that are not as they should be."""

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError
from spotlessnet.core.id_lists import listed_ids, read_ids
from spotlessnet.core.split import ids, rows, some_of_class, where, whole_class

LABELS = torch.tensor([0, 1, 2, 1, 0, 1])
PEOPLE = ["ann", "bob", "cyd", "bob", "ann", "dee"]


@pytest.fixture
def data() -> Data:
    columns: dict[str, list[Any]] = {"id": [10, 11, 12, 13, 14, 15], "person": PEOPLE}
    return Data.of((torch.zeros(6, 2), LABELS), columns=columns)


def test_whole_class(data):
    split = whole_class(1)(data)
    assert split.forget.rows.tolist() == [1, 3, 5]
    assert split.retain.rows.tolist() == [0, 2, 4]
    assert split.request.matched == 3
    with pytest.raises(DataError, match=r"No training row has class 7\. The classes are 0, 1, 2"):
        whole_class(7)(data)


def test_classes_need_one_label_a_row():
    with pytest.raises(DataError, match=r"needs one label a row, but labels have shape \(3, 2\)\. Use `rows` or `ids`"):
        whole_class(0)((torch.zeros(3, 1), torch.zeros(3, 2)))


def test_some_of_class_is_drawn_with_its_seed(data):
    draws = {tuple(some_of_class(1, 2, seed)(data).forget.rows.tolist()) for seed in range(30)}
    assert draws == {(1, 3), (1, 5), (3, 5)}
    again = some_of_class(1, 2, seed=4)
    assert torch.equal(again(data).forget.rows, again(data).forget.rows)
    assert len(some_of_class(1, 0)(data).forget) == 0
    with pytest.raises(DataError, match=r"Class 1 has 3 rows, but 4 were asked for\. Ask for at most 3"):
        some_of_class(1, 4)(data)


def test_rows(data):
    split = rows([5, 0, 5], mislabelled=True)(data)
    assert split.forget.rows.tolist() == [0, 5]
    assert (split.request.matched, split.request.duplicates, split.request.mislabelled) == (2, 1, True)
    with pytest.raises(DataError, match=r"Of 2 row numbers, 1 matched, 1 missing \('6'\), 0 duplicates"):
        rows([1, 6])(data)
    with pytest.raises(DataError, match="1 missing"):
        rows([-1])(data)


def test_rows_count_in_the_source_also_for_a_view(data):
    assert rows([4])(data.select([5, 4])).forget.rows.tolist() == [4]
    with pytest.raises(DataError, match="1 missing"):
        rows([0])(data.select([5, 4]))


def test_an_id_that_rows_share_removes_them_all(data):
    split = ids(["bob", " ann "], column="person")(data)
    assert split.forget.rows.tolist() == [0, 1, 3, 4]
    assert split.request.matched == 4
    assert "ann" not in str(split.request)


@pytest.mark.parametrize("kind", [str, int, np.int64, torch.tensor], ids=["text", "int", "numpy", "tensor"])
def test_ids_of_every_type_match(data, kind):
    assert ids([kind(13), kind(10)])(data).forget.rows.tolist() == [0, 3]


def test_unknown_and_repeated_ids_are_listed(data):
    with pytest.raises(
        DataError,
        match=r"Of 3 ids in column 'person', 1 matched, 2 missing \('eve', 'fay'\), 1 duplicate \('ann'\)\. Correct",
    ):
        ids(["ann", "eve", "fay", "ann"], column="person")(data)
    with pytest.raises(DataError, match=r"9 missing \('0', '1', '2', '3', '4' and 4 more\)"):
        ids(range(9))(data)


def test_missing_ids_may_be_allowed(data):
    request = ids(["ann", "eve", "ann"], column="person", allow_missing=True)(data).request
    assert (request.matched, request.missing, request.duplicates) == (2, 1, 1)


def test_where(data):
    assert where("person", "bob")(data).forget.rows.tolist() == [1, 3]
    assert where("id", 12)(data).forget.rows.tolist() == [2]
    with pytest.raises(DataError, match=r"No row has 'eve' in column 'person', so there is nothing to forget"):
        where("person", "eve")(data)
    with pytest.raises(DataError, match="no column 'name'"):
        where("name", "eve")(data)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("hash.txt", b"sam#1234\n#sam\nann # 2\n", ["sam#1234", "ann # 2"]),
        ("hash.csv", b"id\nsam#1234\n#sam\n", ["sam#1234", "#sam"]),
        ("hash.json", b'["sam#1234", "#sam"]', ["sam#1234", "#sam"]),
        ("line.csv", b'id,x\n"a\nb",1\nc,2\n', ["a\nb", "c"]),
    ],
)
def test_an_id_is_taken_whole(tmp_path, name, content, named):
    (tmp_path / name).write_bytes(content)
    assert read_ids(tmp_path / name) == named


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"# a comment\n10\n11\n\n  12  \n  # another\n"),
        ("bom.txt", "\ufeff10\n11\n12".encode()),
        ("crlf.txt", b"10\r\n11\r\n12\r\n"),
        ("a.csv", b"id,name\n10,x\n11,y\n12,z\n"),
        ("bom.csv", "\ufeffid,name\n10,x\n11,y\n12,z\n".encode()),
        ("crlf.csv", b'name,id\r\n"x, y",10\r\nz,"11"\r\nw,12\r\n\r\n'),
        ("bare.csv", b"10\n11\n12\n"),
        ("A.CSV", b"id\n10\n11\n12\n"),
        ("a.json", b'[10, "11", {"id": 12}]'),
        ("object.json", b'{"id": ["10", "11", "12"]}'),
        ("ids.json", b'{"ids": [10, 11, 12]}'),
        ("a.jsonl", b'10\n"11"\n\n{"id": "12", "why": "asked"}\n'),
    ],
)
def test_ids_from_files(tmp_path, data, name, content):
    (tmp_path / name).write_bytes(content)
    assert read_ids(tmp_path / name) == ["10", "11", "12"]
    assert ids(str(tmp_path / name))(data).forget.rows.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", r"names no id\. Put one id on each line"),
        ("a.txt", b"# nothing\n\n", "names no id"),
        ("a.csv", b"", "names no id"),
        ("a.csv", b"id\n", "names no id"),
        ("a.json", b"[]", "names no id"),
        ("a.csv", b"name,age\nx,3\n", r"has the columns name, age, but none is 'id'\. Name the column"),
        ("a.csv", b'id\n"' + b"x" * 200_000 + b'"\n', r"is not a readable csv file"),
        ("a.csv", b'id\n"10\n11\n', r"is not a readable csv file \(unexpected end of data\)"),
        ("a.csv", b'id\n"10"1\n', r"is not a readable csv file"),
        ("a.csv", b"id,a\n10\n", r"must have as many cells as its first, 2, but line 2 has 1\. Put an id that holds a"),
        ("a.csv", b"a,id\n1,10\n1,11,12\n", "its first, 2, but line 3 has 3"),
        ("a.csv", b"10\nDoe, Jane\n", "its first, 1, but line 2 has 2"),
        ("a.json", b"{", r"is not valid JSON \(JSONDecodeError\)\. Write a list of ids"),
        ("a.json", b"", "is not valid JSON"),
        ("a.json", b"[" * 200_000, "is not valid JSON"),
        ("a.json", b"[" * 200_000 + b"]" * 200_000, "is not valid JSON"),
        ("a.json", b'"10"', r"must hold a JSON list of ids, or an object with a list 'id'"),
        ("a.json", b'{"rows": [1]}', "must hold a JSON list of ids"),
        ("a.json", b"[1.5]", r"must name ids as text or whole numbers, or objects with 'id', but holds '1\.5'"),
        ("a.json", b'[{"email": "a@b.org", "day": 1}]', r"has an object with 'email', 'day', but without 'id'\. Name"),
        ("a.json", b"[1e400]", "but holds 'inf'"),
        ("a.json", b"[NaN]", "but holds 'nan'"),
        ("a.json", b"[true]", "but holds 'True'"),
        ("a.json", b"[null]", "but holds 'None'"),
        ("a.json", b"[[1]]", "must name ids as text or whole numbers"),
        ("a.json", b'[{"name": 3}]', "has an object with 'name', but without 'id'"),
        ("a.json", b"[" + b"1" * 10_000 + b"]", "is not valid JSON"),
        ("a.jsonl", b'"a"\n{"id": \n', "Line 2 of the forget list .* is not valid JSON"),
        ("a.jsonl", b"1\n2\n" + b"[" * 200_000, "Line 3 of the forget list .* is not valid JSON"),
        ("a.csv", b'"id\n10"\n11\n', r"The first line of the forget list .* must be one line, .* Close it"),
        ("a.csv", b'x,"id\n10"\n1,11\n', "must be one line"),
        ("a.csv", b"id,id\n10,11\n", r"must have a name of its own, but 'id' stands twice\. Rename one"),
        ("a.json", b'[{"id": 10, "id": 11}]', r"not valid JSON \(a name stands twice in one object\)"),
        ("a.json", b'{"id": [10], "id": [11]}', "a name stands twice"),
        ("a.jsonl", b'{"id": 10, "id": 11}\n', r"Line 1 .* is not valid JSON \(a name stands twice in one object\)"),
        ("a.json", b'{"id": [10], "ids": [11]}', r"must hold one list, but holds 2: id, ids\. .* leave one"),
        ("a.json", b'{"ids": [10], "people": [11]}', "must hold one list, but holds 2"),
        ("a.txt", b"caf\xe9\n", r"must be UTF-8 text, but byte 3 is not\. Save it as UTF-8"),
        ("a.xlsx", b"PK", r"must end in \.csv, \.json, \.jsonl or \.txt, but ends in '\.xlsx'"),
        ("a", b"1", "but ends in ''"),
    ],
)
def test_lists_that_cannot_be_read(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_ids(tmp_path / name)


@pytest.mark.parametrize("head", ["people", "ID", "Person", "user_id", "User ID", "customer-id"])
def test_a_word_that_heads_a_column_is_not_an_id(tmp_path, data, head):
    (tmp_path / "a.csv").write_text(f"{head}\n10\n11\n")
    assert ids(tmp_path / "a.csv")(data).forget.rows.tolist() == [0, 1]


@pytest.mark.parametrize("first", ["1O", "person-999", "100", "nobody"])
def test_a_misspelt_first_id_is_not_a_header(tmp_path, data, first):
    """The fault before: a first line that no row has was skipped, and nobody was told."""
    (tmp_path / "a.csv").write_text(f"{first}\n10\n11\n")
    with pytest.raises(DataError, match=f"1 .*{first}"):
        ids(tmp_path / "a.csv")(data)
    split = ids(tmp_path / "a.csv", allow_missing=True)(data)
    assert (split.request.missing, split.forget.rows.tolist()) == (1, [0, 1])


@pytest.mark.parametrize("text", ["1_0", "\u0663", "\u00b2", "+1", "1.0", "9" * 5000])
def test_a_row_number_is_written_in_plain_digits(tmp_path, text):
    """Python reads more as numbers than people do."""
    (tmp_path / "a.txt").write_text(f"3\n-1\n007\n{text}\n", encoding="utf-8")
    with pytest.raises(DataError, match=f"row numbers, but '{re.escape(text[:40])}' is not a whole"):
        listed_ids(tmp_path / "a.txt", "row")
    (tmp_path / "a.txt").write_text("3\n-1\n007\n")
    assert listed_ids(tmp_path / "a.txt", "row") == ["3", "-1", "7"]


def test_what_is_missing_is_said_with_what_there_is(data):
    with pytest.raises(DataError, match=r"1 missing \('99'\), 1 duplicate \('0'\)\. .* rows, counted from zero\."):
        rows([0, 0, 99])(data)
    named = Data.of((torch.zeros(2, 1), torch.zeros(2)), columns={"id": ["ann", "bob"]})
    with pytest.raises(DataError, match="No id of the data is a number: for row numbers say `--id-column row`"):
        ids(["0"])(named)
    with pytest.raises(DataError) as told:
        ids(["99"])(data)  # whose ids are numbers
    assert "row numbers" not in str(told.value)


def test_a_list_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"There is no forget list at .*none\.csv\. Give the path of a csv, json"):
        ids(tmp_path / "none.csv")
    with pytest.raises(DataError, match="must be a plain file, but is a folder"):
        read_ids(tmp_path)


def test_another_column_of_a_file(tmp_path, data):
    (tmp_path / "a.csv").write_text("id,person\n99,bob\n")
    assert ids(tmp_path / "a.csv", column="person")(data).forget.rows.tolist() == [1, 3]


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".json", ".jsonl"])
def test_a_million_ids_are_parsed_and_matched_within_ten_seconds(tmp_path: Path, suffix):
    n = 10**6 if suffix == ".csv" else 10**5  # the usual format at full size, to keep the others short
    names = [f"user-{i:07d}" for i in range(n)]
    match suffix:
        case ".json":
            text = json.dumps(names)
        case ".jsonl":
            text = "\n".join(f'{{"id": "{name}"}}' for name in names)
        case _:
            text = "\n".join(names)
    path = tmp_path / f"forget{suffix}"
    path.write_text(text)
    data = Data.of((torch.zeros(n, 1), torch.zeros(n)), columns={"id": names[::-1]})
    began = time.process_time()
    split = ids(path)(data)
    assert time.process_time() - began < 10
    assert split.request.matched == n == len(split.forget)
