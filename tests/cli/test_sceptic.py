"""What somebody with the released files, or with a hand in the folders, found: each fault as it was, and its end."""

import fcntl
import hashlib
import json
import os
import time
from datetime import datetime, timedelta

import pytest

from spotlessnet.core.errors import DataError, SettingError
from spotlessnet.core.id_lists import read_ids, read_list
from spotlessnet.precomputed.effect import as_text
from spotlessnet.requests.effects import EFFECT, effects_beside
from spotlessnet.requests.folder import Private
from spotlessnet.requests.unlearning import check_rows
from spotlessnet.store.receipts import full_hour, seals
from tests.cli.test_memories import ROWS, STATISTICS
from tests.cli.workshop import BASE, QUICK, RECIPE, spotless

SPLITTERS = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"]


@pytest.mark.parametrize("mark", SPLITTERS)
def test_an_id_may_hold_what_python_takes_for_the_end_of_a_line(tmp_path, mark):
    """The fault before: the request for one id forgot two others."""
    (tmp_path / "a.txt").write_bytes(f"sam{mark}jane\r\n# no id\r\neve\n".encode())
    (tmp_path / "a.jsonl").write_bytes(f'"sam{mark}jane"\n{{"id": "eve"}}\n'.encode())
    assert read_ids(tmp_path / "a.txt") == [f"sam{mark}jane", "eve"]
    assert read_list(tmp_path / "a.txt").comments == 1
    if mark >= " ":  # JSON allows no control character in a text
        assert read_ids(tmp_path / "a.jsonl") == [f"sam{mark}jane", "eve"]


def test_a_list_with_very_many_columns_is_read_in_a_moment(tmp_path):
    """The fault before: each name was looked for in all others, so that a megabyte took minutes."""
    names = [f"c{i}" for i in range(200_000)]
    (tmp_path / "a.csv").write_text(",".join([*names, "id"]) + "\n" + ",".join([*names, "sam"]) + "\n")
    (tmp_path / "b.csv").write_text(",".join([*names, "id", "c7"]) + "\n")
    began = time.process_time()
    assert read_ids(tmp_path / "a.csv") == ["sam"]
    with pytest.raises(DataError, match="'c7' stands twice"):
        read_ids(tmp_path / "b.csv")
    with pytest.raises(SettingError, match="holds 5 more than once"):
        check_rows([*range(300_000), 5])
    assert time.process_time() - began < 5


def test_lines_that_end_as_on_old_machines_are_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"sam\rjane\r")
    with pytest.raises(DataError, match=r"must end in \\n or \\r\\n, but some end in \\r alone"):
        read_ids(tmp_path / "a.txt")


def test_no_digest_of_a_module_that_holds_rows_can_be_repeated(here):
    """The fault before: whoever had the module, less a line, could try lines until the digest in the receipt fitted."""
    text = (here / "nets.py").read_text() + (here / "mydata.py").read_text()
    (here / "both.py").write_text(text)
    swapped = [word.replace("nets.py", "both.py").replace("mydata.py", "both.py") for word in BASE]
    for words, files in ((BASE, ["mydata.py"]), (swapped, ["both.py"])):
        out = f"run-{files[0]}"
        assert spotless("scrub", *words, *QUICK, "--out", out).code == 0
        told = (here / out / "receipt.json").read_text()
        assert hashlib.sha256((here / files[0]).read_bytes()).hexdigest() not in told
        assert spotless("verify", out).code == 0
    inputs = json.loads((here / "run-mydata.py/receipt.json").read_text())["predicate"]["inputs"]
    # Code that holds no row stays open to whoever wants to compare it.
    assert inputs["model"]["digest"]["sha256"] == hashlib.sha256((here / "nets.py").read_bytes()).hexdigest()
    assert "digest" not in inputs["data"]


def test_a_receipt_tells_no_time_by_which_the_work_could_be_counted(here):
    """The fault before: how many epochs a short retraining took, and so the label of the row, was in the seconds."""
    asked = ("scrub", *BASE, *RECIPE, "--method", "short-retrain", "--set", "error_tolerance=0", "--accept-damage")
    assert spotless(*asked, "--out", "run").code == 0
    body = json.loads((here / "run/receipt.json").read_text())["predicate"]
    times = [datetime.fromisoformat(body[name]) for name in ("began", "ended")]
    due = datetime.fromisoformat(body["private"]["destroy_after"])
    assert all(full_hour(one) == one for one in (*times, due))
    assert times[1] - times[0] >= timedelta(hours=1)
    assert "seconds" in body["about"]["held_back"]
    assert "seconds" not in body["about"]
    assert isinstance(json.loads((here / "run/private/receipt-diagnostics.json").read_text())["seconds"], float)


def test_a_request_that_came_second_leaves_nothing(here):
    assert spotless("precompute", *ROWS, "--rank", "5", "--out", "memory").code == 0
    with (here / STATISTICS).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ended = spotless("scrub", *BASE, "--method", "ntk", "--statistics", STATISTICS, "--out", "second")
    assert ended.code == 4
    assert "Another request is at work" in ended.err
    assert not (here / "second").exists()


@pytest.mark.parametrize("heavy", ["receipt", "network"])
def test_folders_that_point_to_each_other_take_little_time(here, heavy):
    """Whoever can write into one's own folders may make the next request wait, but not for long."""
    assert spotless("scrub", *BASE, *QUICK, "--out", "first").code == 0
    private = Private(here / "first")
    receipt = json.loads((here / "first/receipt.json").read_text())
    if heavy == "receipt":
        receipt["predicate"]["limits"].append("x" * 10_000_000)
    receipt["predicate"]["integrity"] = seals(receipt, private.salt)
    for i in range(60):
        folder = here / f"f{i}"
        (folder / "private").mkdir(parents=True)
        os.link(here / "first/private/salt", folder / "private/salt")
        if i == 0:
            (folder / "receipt.json").write_text(json.dumps(receipt))
        else:
            os.link(here / "f0/receipt.json", folder / "receipt.json")
        if heavy == "network":
            with (folder / "scrubbed.safetensors").open("wb") as hole:
                hole.truncate(2**40)
        Private(folder).keep_sealed(EFFECT, as_text(None, f"../f{i + 1}"))
    private.keep_sealed(EFFECT, as_text(None, "../f0"))
    began = time.process_time()
    assert effects_beside(here / "first/scrubbed.safetensors") is None
    assert time.process_time() - began < 5
