"""What a newcomer met: comments, headers and columns of lists, and an audit that must say what it found."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
from torch import nn

import spotlessnet as sn
from spotlessnet.auditing.wording import NEXT
from spotlessnet.cli import entry
from spotlessnet.requests import leaving
from tests.cli.test_commands import report
from tests.cli.workshop import BASE, QUICK, RECIPE, spotless

LIST = tuple("forget.txt" if word == "forget.csv" else word for word in BASE)


@pytest.mark.parametrize(("comments", "told"), [(0, ""), (1, ", 1 comment skipped"), (2, ", 2 comments skipped")])
@pytest.mark.parametrize("column", ["id", "row"])
def test_comments_are_counted_in_the_plan(here, comments, told, column):
    name = "person-1" if column == "id" else "1"
    (here / "forget.txt").write_text("# who asked\n" * comments + name + "\n")
    out = spotless("scrub", *LIST, *QUICK, "--id-column", column, "--dry-run").out
    assert f"1 row matched, 0 ids missing, 0 duplicates{told}; " in out


def test_ids_that_come_third_are_the_column_that_the_case_names(here):
    (here / "forget.csv").write_text("person\nperson-1\nperson-5\n")
    ended = spotless("scrub", *BASE, *QUICK, "--id-column", "person", "--out", "run")
    assert ended.code == 0, ended.err
    assert "ids in column 'person': 2 rows matched, 0 ids missing" in ended.err
    assert spotless("verify", "run", "--forget", "forget.csv", "--id-column", "person").code == 0


OWN = """
import mydata
from torch.utils.data import Dataset
class Own(Dataset):
    def __init__(self): self.x, self.y, self.names = mydata.train()
    def __len__(self): return len(self.y)
    def __getitem__(self, i): return self.x[i], int(self.y[i]), self.names[i] + "@example.org"
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "email\nperson-1@example.org\nperson-5@example.org\n"),
        ("a.txt", "person-1@example.org\nperson-5@example.org\n"),
        ("a.json", '[{"email": "person-1@example.org", "day": 1}, {"email": "person-5@example.org"}]'),
    ],
)
def test_a_data_set_may_give_input_label_and_an_address(here, name, text):
    """The fault before: such rows were refused, as "list"."""
    (here / "own.py").write_text(OWN)
    (here / name).write_text(text)
    words = {"mydata.py:train": "own.py:Own", "forget.csv": name}
    ended = spotless("scrub", *(words.get(word, word) for word in BASE), *QUICK, "--id-column", "email", "--out", "run")
    assert ended.code == 0, ended.err
    assert "ids in column 'email': 2 rows matched, 0 ids missing" in ended.err
    assert "person-1" not in (here / "run" / "receipt.json").read_text()


@pytest.mark.parametrize(
    ("word", "other", "told"),
    [
        ("nets.py:build", "nets.py:biuld", "nets.py has no 'biuld' for --model. Did you mean 'build'?"),
        ("forget.csv", "person-1", "no file person-1 for --forget. Check the path. It is a file that lists ids"),
        (
            "--weights",
            "--wieghts",
            "--weights). `spotless scrub --help` shows how.",
        ),
    ],
)
def test_a_slip_is_told_with_what_was_meant(here, word, other, told):
    ended = spotless("scrub", *(other if one == word else one for one in BASE), *QUICK, "--out", "run")
    assert ended.code in (2, 3)
    assert told in ended.err
    assert ended.err.rstrip().endswith((".", "?"))
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("name", ["SCRUB", "Scrub", "ShortRetrain", "short-retrian"])
def test_a_method_by_its_name_in_python_is_suggested(here, name):
    ended = spotless("scrub", *BASE, "--method", name, "--out", "run")
    assert ended.code == 2
    assert f"Did you mean '{'scrub' if name.lower() == 'scrub' else 'short-retrain'}'?" in ended.err


@pytest.mark.parametrize("allow", [(), ("--allow-missing",)])
def test_a_header_is_not_an_id(here, allow):
    (here / "forget.csv").write_text("people\nperson-1\nperson-5\n")
    ended = spotless("scrub", *BASE, *QUICK, *allow, "--out", "run")
    assert ended.code == 0, ended.err
    assert "2 rows matched, 0 ids missing" in ended.err
    assert spotless("verify", "run", "--forget", "forget.csv").code == 0
    (here / "same.txt").write_text("person-5\nperson-1\n")
    assert spotless("verify", "run", "--forget", "same.txt").code == 0
    (here / "other.csv").write_text("people\nperson-1\n")
    assert spotless("verify", "run", "--forget", "other.csv").code == 7


def test_a_header_is_not_an_id_where_no_row_is_known_either(here):
    """The fault before: of two strangers and a header three ids were said to be missing."""
    (here / "forget.csv").write_text("people\nnobody\nno-one\n")
    for allow, told in (((), "Of 2 ids in column 'id', 0 matched"), (("--allow-missing",), "None of 2 ids")):
        ended = spotless("scrub", *BASE, *QUICK, *allow, "--dry-run")
        assert ended.code == 3
        assert told in ended.err
        assert "'people'" not in ended.err


def test_a_header_of_an_unusual_name_is_pointed_at(here):
    """A misspelt first id must not go unnoticed, so an unknown word is an id; but it may be neither."""
    (here / "forget.csv").write_text("membership number\nperson-1\nperson-5\n")
    told = "The first line, 'membership number', was taken for an id: if it is the column's name, write 'id' in"
    assert told in spotless("scrub", *BASE, *QUICK, "--dry-run").err
    (here / "forget.csv").write_text("people\nnobody\nno-one\n")
    assert "was taken for an id" not in spotless("scrub", *BASE, *QUICK, "--dry-run").err


def test_a_column_that_is_named_must_be_the_one_of_the_list(here):
    """The fault before: whatever the only column was called, any name would do."""
    (here / "forget.csv").write_text("email\nperson-1\nperson-5\n")
    ended = spotless("scrub", *BASE, *QUICK, "--id-column", "person", "--dry-run")
    assert ended.code == 3
    assert "has the column 'email' alone, but 'person' was named" in ended.err
    assert spotless("scrub", *BASE, *QUICK, "--id-column", "email", "--dry-run").code == 0


@pytest.mark.parametrize("mark", [";", "\t"])
def test_lists_of_spreadsheets_that_write_semicolons_or_tabs(here, mark):
    (here / "forget.csv").write_text(f"name{mark}id\nJane{mark}person-1\nJoe{mark}person-5\n")
    assert "2 rows matched, 0 ids missing" in spotless("scrub", *BASE, *QUICK, "--dry-run").out
    if mark == ";":
        ended = spotless("scrub", *BASE, *QUICK, "--id-column", "person", "--dry-run")
        assert "semicolons, and none in the first line is 'person': name the column of ids." in ended.err
        (here / "forget.csv").write_text("name;number\nJane;person-1\n")
        ended = spotless("scrub", *BASE, *QUICK, "--dry-run")
        assert "Cells stand apart by semicolons: name the column of ids." in ended.err


def test_all_rows_cannot_be_forgotten(here):
    (here / "forget.csv").write_text("\n".join(f"person-{i}" for i in range(60)))
    assert "must leave training rows, but this one names all 60." in spotless("scrub", *BASE, *QUICK, "--dry-run").err


def test_a_list_without_a_header_is_read_whole(here):
    (here / "forget.csv").write_text("person-1\nperson-5\n")
    assert "2 rows matched, 0 ids missing" in spotless("scrub", *BASE, *QUICK, "--dry-run").out
    (here / "forget.csv").write_text("nobody\nno-one\n")
    assert spotless("scrub", *BASE, *QUICK, "--dry-run").code == 3


@pytest.mark.parametrize(
    ("word", "code", "reason"),
    [("not forgotten", 1, "because"), ("never saw the rows", 0, "because"), (None, 6, "Nothing was retrained.")],
)
def test_scrub_with_an_audit_says_what_it_found(here, monkeypatch, word, code, reason):
    monkeypatch.setattr(import_module("spotlessnet.auditing.run_audit"), "audit", lambda *a, **k: report(word))
    ended = spotless("scrub", *BASE, *QUICK, "--audit", "--out", "run")
    assert ended.code == code
    assert ended.out.splitlines() == [
        f"{word or 'not judged'}: {reason}",
        f"next: {NEXT[word or 'not judged']}",
        "run/scrubbed.safetensors",
        "run/receipt.json",
        "run/report.html",
    ]
    ended = spotless("scrub", *BASE, *QUICK, "--audit", "--json", "--out", "other")
    told = json.loads(ended.out)
    assert told["next"] == NEXT[word or "not judged"]
    assert (told["verdict"], told["reason"], told["report"]) == (word or "not judged", reason, "other/report.html")
    assert spotless("verify", "run").code == 0


def test_the_plan_tells_the_time_of_the_audit_too(here):
    """The fault before: 0.05 s were promised, and half a minute was taken."""
    asked = ("--test", "mydata.py:test", "--dry-run")
    ended = spotless("scrub", *BASE, *RECIPE, *asked, "--audit", "--seeds", "5")
    lines = ended.out.splitlines()
    assert any(line.startswith("        17 trainings") for line in lines)
    assert any(re.match(r"total   about .* s, at most .* s, beside reading and writing", line) for line in lines)
    told = json.loads(spotless("audit", *BASE, *RECIPE, *asked, "--seeds", "5", "--json").out)
    more = json.loads(spotless("audit", *BASE, *RECIPE, *asked, "--seeds", "10", "--shadow-attack", "--json").out)
    assert 15 * told["retraining"] < told["audit_seconds"] <= told["audit_at_most"]
    assert more["audit_seconds"] > more["retraining"] * (30 + 64)
    alone = spotless("scrub", *BASE, *RECIPE, *asked).out
    assert "total " not in alone
    unknown = spotless("scrub", *BASE, "--method", "fisher", "--dry-run", "--audit").out
    assert "no verdict" in unknown


@pytest.mark.parametrize(("tests", "few"), [(None, False), (1, True), (48, True), (49, False)])
def test_what_can_hardly_be_told_is_said_before_anything_is_trained(here, tests, few):
    how: tuple[str, ...] = ()
    if tests is not None:
        (here / "few.py").write_text(f"from mydata import test as all_\n\ndef test():\n    x, y, *_ = all_()\n"
                                     f"    return x.repeat(9, 1)[:{tests}], y.repeat(9)[:{tests}]\n")  # fmt: skip
        how = ("--test", "few.py:test")
    asked = ("scrub", *BASE, *RECIPE, *how, "--audit", "--dry-run")
    said = spotless(*asked, "--seeds", "5").out
    assert "        5 pairs of trainings are inconclusive more often than 8, the default" in said
    assert "pairs of trainings are inconclusive" not in spotless(*asked).out
    assert ("too few to tell of a single forgotten one: likely inconclusive" in said) == few
    assert ("no matched controls" in said) == (tests is None)


def test_the_trained_network_is_no_start_and_a_start_of_another_network_is_named(here):
    """The first was taken, with a receipt and exit code 0; the second was told without its flag."""
    weights = BASE[BASE.index("--weights") + 1]
    how = ("--epochs", "2", "--lr", "0.1", "--dry-run")
    ended = spotless("scrub", *BASE, "--init", weights, *how)
    assert ended.code == 3
    assert f"--init {weights} holds the weights of the trained network itself" in ended.err
    sn.write_weights(here / "other.safetensors", nn.Linear(2, 2))
    ended = spotless("scrub", *BASE, "--init", "other.safetensors", *how)
    assert ended.code == 3
    assert "--init other.safetensors: Weights are missing" in ended.err


def test_an_interrupt_that_left_something_does_not_say_that_nothing_is_left(capsys):
    leaving.LEFT.append((Path("run"), leaving.RESUME))
    assert entry._told(130) == 130
    assert capsys.readouterr().err == "interrupted\nrun holds what was begun: give --resume to go on there\n"


def test_times_that_nobody_knows_are_null(here):
    """They were the text "nan" beside a null."""
    (here / "own.py").write_text("def train(model, examples, seed):\n    return model\n")
    ended = spotless("scrub", *BASE, "--init", "start.safetensors", "--train", "own.py:train", "--dry-run", "--json")
    told = json.loads(ended.out)
    assert {told[name] for name in ("seconds", "at_most", "retraining")} == {None}
