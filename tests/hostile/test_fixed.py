"""Every hostile file ends in one line and a documented code, runs nothing and writes nothing."""

import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from tests.cli.workshop import BASE, QUICK, furnish, spotless
from tests.hostile.attacks import ATTACKS

LIMIT = 5.0
"""Seconds that a refusal may take."""


def command(given: tuple[str, ...]) -> list[str]:
    """The newcomer's command, with what the attack names put in place of the usual."""
    flags = dict(zip(BASE[::2], BASE[1::2], strict=True)) | dict(zip(given[::2], given[1::2], strict=True))
    method = () if "--method" in flags else QUICK
    return ["scrub", *(word for pair in flags.items() for word in pair), *method, "--quiet", "--out", "run"]


def files(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts}


@pytest.fixture(scope="module", autouse=True)
def imported():
    """What is measured is the refusal, not the import of torch and scipy."""
    spotless("list")
    import_module("spotlessnet.requests.serving")


def test_there_are_enough_of_them():
    assert len(ATTACKS) >= 60


@pytest.mark.parametrize("name", ATTACKS)
def test_is_refused_in_one_line(tmp_path, monkeypatch, name):
    monkeypatch.chdir(furnish(tmp_path))
    attack = ATTACKS[name]
    words = command(attack.make(tmp_path))
    before, began = files(tmp_path), time.perf_counter()
    ended = spotless(*words)
    seconds = time.perf_counter() - began
    assert ended.code == attack.code, ended.err
    assert ended.out == ""
    assert ended.err.count("\n") == 1
    assert ended.err.startswith("error[")
    assert ended.err.rstrip("\n").isprintable()
    assert attack.says in ended.err
    assert seconds < LIMIT
    after = files(tmp_path)
    assert {path: content for path, content in after.items() if "/run/" not in path} == before
    assert not (tmp_path / "canary").exists()
    assert not (tmp_path / "run/receipt.json").exists()
    assert not (tmp_path / "run/scrubbed.safetensors").exists()


def test_the_canary_sings_when_a_pickle_is_trusted(tmp_path, monkeypatch):
    """The attack is a real one: where code is allowed to run, it does."""
    import torch

    monkeypatch.chdir(furnish(tmp_path))
    ATTACKS["pickle: code in a pickle"].make(tmp_path)
    torch.load(tmp_path / "a.pt", weights_only=False)
    assert (tmp_path / "canary").exists()


def test_a_real_process_refuses_in_the_same_way(tmp_path):
    furnish(tmp_path)
    words = command(ATTACKS["pickle: code among tensors"].make(tmp_path))
    ended = subprocess.run(
        [sys.executable, "-m", "spotlessnet.cli", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 3
    assert ended.stdout == ""
    assert ended.stderr.startswith("error[bad input]: a.pt holds more than plain tensors")
    assert ended.stderr.count("\n") == 1
    assert not (tmp_path / "canary").exists()
