"""Attacks on the files of a request: one memory used twice, guesses confirmed by digests, names that tell."""

import hashlib
import json
import os
import shutil

import pytest

from spotlessnet.core.files import sha256
from spotlessnet.store.receipts import keyed
from tests.cli.workshop import BASE, QUICK, RECIPE, spotless

ROWS = ("--model", "nets.py:build", "--weights", "model.safetensors", "--data", "mydata.py:train")
STATISTICS = "memory/statistics.safetensors"


@pytest.fixture
def memory(here):
    assert spotless("precompute", *ROWS, *RECIPE, "--rank", "4", "--folds", "2", "--out", "memory").code == 0
    return here / STATISTICS


def test_a_symbolic_link_is_the_memory_itself(here, memory):
    (here / "elsewhere").mkdir()
    (here / "elsewhere/link.safetensors").symlink_to(memory)
    asked = ("scrub", *BASE, *QUICK, "--statistics")
    assert spotless(*asked, "elsewhere/link.safetensors", "--out", "first").code == 0
    assert (here / f"{STATISTICS}.next").is_file()
    for again in (STATISTICS, "elsewhere/link.safetensors"):
        ended = spotless(*asked, again, "--out", "second")
        assert ended.code == 3
        assert "were used by a request before, and serve one only" in ended.err
        assert "in first." in ended.err


def test_a_memory_of_two_names_is_refused(here, memory):
    (here / "elsewhere").mkdir()
    os.link(memory, here / "elsewhere/statistics.safetensors")
    for name in (STATISTICS, "elsewhere/statistics.safetensors"):
        ended = spotless("scrub", *BASE, *QUICK, "--statistics", name, "--out", "run")
        assert ended.code == 3
        assert "must have one name, but 2 names (hard links) lead to them" in ended.err
    (here / "elsewhere/statistics.safetensors").unlink()
    assert spotless("scrub", *BASE, *QUICK, "--statistics", STATISTICS, "--out", "run").code == 0


def test_the_folder_of_a_memory_is_no_memory(here, memory):
    (here / "kept").mkdir()
    shutil.copy(memory, here / "kept/statistics.safetensors")
    (here / "kept/more").mkdir()  # which gives the folder three names
    ended = spotless("scrub", *BASE, *QUICK, "--statistics", "kept", "--out", "run")
    assert ended.code == 3
    assert "must be a file, but kept is a folder. Give kept/statistics.safetensors." in ended.err


def test_what_was_made_from_the_rows_is_bound_by_a_keyed_digest(here, memory):
    """A plain digest would confirm a guess about a row to whoever can train again with it."""
    shutil.copy("model.safetensors", "reference.safetensors")
    given = ("--statistics", STATISTICS, "--reference", "reference.safetensors", "--max-nats", "50")
    assert spotless("scrub", *BASE, "--method", "fisher", *given, "--accept-damage", "--out", "run").code == 0
    folds = ("--fold-models", "memory/fold-models.safetensors")
    assert spotless("scrub", *BASE, *RECIPE, *folds, "--accept-damage", "--out", "taught").code == 0
    files = {
        "run": {"weights": "model.safetensors", "statistics": STATISTICS, "reference": "reference.safetensors"},
        "taught": {"fold_models": "memory/fold-models.safetensors", "weights": "model.safetensors"},
    }
    for out, named in files.items():
        text = (here / out / "receipt.json").read_text()
        inputs = json.loads(text)["predicate"]["inputs"]
        salt = (here / out / "private/salt").read_bytes()
        for name, path in named.items():
            assert sha256(here / path) not in text
            assert inputs[name]["commitment"] == keyed(salt, "file", sha256(here / path))
            assert "digest" not in inputs[name]
        assert spotless("verify", out).code == 0


def test_names_of_files_stand_nowhere(here):
    said = "jane.doe@mail.org"
    for old, new in {
        "nets.py": f"nets_of_{said}.py",
        "mydata.py": f"rows_of_{said}.py",
        "model.safetensors": f"without-{said}.safetensors",
        "start.safetensors": f"start-{said}.pt.safetensors",
    }.items():
        (here / old).rename(here / new)
    asked = [
        *("--model", f"nets_of_{said}.py:build", "--weights", f"without-{said}.safetensors"),
        *("--data", f"rows_of_{said}.py:train", "--test", f"rows_of_{said}.py:test", "--forget", "forget.csv"),
        *("--init", f"start-{said}.pt.safetensors", *QUICK, "--audit", "--out", "run"),
    ]
    ended = spotless("scrub", *asked)
    assert ended.code in (0, 1, 6), ended.err
    files = [p for p in (here / "run").iterdir() if p.is_file()]
    assert len(files) > 5
    for path in files:
        assert said not in path.read_bytes().decode(errors="replace"), path.name
    inputs = json.loads((here / "run/receipt.json").read_text())["predicate"]["inputs"]
    assert inputs["weights"]["name"] == "weights.safetensors"
    assert inputs["model"] == {
        "name": "model.py",
        "digest": {"sha256": hashlib.sha256((here / f"nets_of_{said}.py").read_bytes()).hexdigest()},
    }
    assert "--weights weights.safetensors --data data.py:train --test test.py:test" in (
        (here / "run/report.html").read_text()
    )


@pytest.mark.parametrize("allow", [(), ("--allow-missing",)])
def test_a_list_of_which_nothing_matches_is_refused(here, allow):
    (here / "forget.csv").write_text("id\nnobody\nno-one\n")
    ended = spotless("scrub", *BASE, *QUICK, *allow, "--out", "run")
    assert ended.code == 3
    assert "0 matched, 2 missing" in ended.err or "None of 2 ids in column 'id' matched a row" in ended.err
    assert not (here / "run").exists()
    (here / "forget.csv").write_text("id\nnobody\nperson-3\n")
    assert spotless("scrub", *BASE, *QUICK, *allow, "--out", "run").code == (0 if allow else 3)
