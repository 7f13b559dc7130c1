"""A stranger with nothing but the wheel: a fresh environment, README from top to bottom, networks of their own."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import benchmarks.stranger as stranger
import pytest

from tests.cli.test_commands import COMMANDS
from tests.docs.blocks import ROOT

README = ROOT / "README.md"


def wheel(folder: Path) -> Path:
    """The package as it would be installed; its build needs no network, for setuptools is there."""
    pytest.importorskip("setuptools")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(folder), "."]
    source = folder / "source"
    # A copy of what git knows, so that no build is left in the checkout and nothing unpacked is installed.
    source.mkdir()
    kept = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    for name in filter(None, kept):
        path = ROOT / os.fsdecode(name)
        if path.is_file() and path.suffix != ".jsonl":
            target = source / os.fsdecode(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    ended = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    [made] = folder.glob("spotlessnet-*.whl")
    return made


NEEDS = {"A classifier of Hugging Face": ("transformers", "accelerate"), "Notebooks": ("nbclient", "ipykernel")}
"""Packages without which a part of the hour is left out."""


@pytest.mark.slow
def test_a_whole_hour_with_the_wheel_alone(tmp_path):
    """README, a CNN, a classifier of Hugging Face and notebooks: the script stops where a step fails."""
    missing = tuple(part for part, names in NEEDS.items() if not all(map(importlib.util.find_spec, names)))
    steps = stranger.visit(tmp_path, wheel(tmp_path), [Path(sysconfig.get_path("purelib"))], leave_out=missing)
    assert {step.part for step in steps} == {"The command", "README", "A CNN of one's own", *NEEDS} - {*missing}
    said = {step.typed: step.said for step in steps}
    assert "forgotten: " in said["python first.py"]
    assert "verified person.csv" in said["spotless verify cnn-run/ --forget person.csv"]


def test_the_page_of_the_hour_is_that_of_its_rows_and_names_no_machine():
    page = stranger.PAGE.read_text(encoding="utf-8")
    assert stranger.written(page, stranger.from_rows()) == page
    assert not re.findall(r"(?<![\w.])/(?:home|root|tmp|usr|var|opt|work|Users)\b", page)


def test_the_hour_that_is_on_the_page_went_well():
    steps = [stranger.Step(**one) for one in json.loads(stranger.ROWS.read_text(encoding="utf-8"))["steps"]]
    lines = [(part, line, code) for part, line, code in stranger.typed(README) if part != "README"]
    assert [(step.part, step.typed, step.code) for step in steps if step.part != "README"] == lines
    for step in steps:
        assert not step.is_command or step.first <= 1 or step.work < 0.5, step
        if len(found := stranger.accuracies(step.said)) == 2:
            assert found[1] >= found[0] - stranger.ANNOUNCED
    assert sum(len(stranger.accuracies(step.said)) == 2 for step in steps) >= 4


@pytest.mark.slow
def test_the_first_sign_of_every_command_comes_within_a_second(tmp_path):
    around = stranger.environment(tmp_path / "venv", wheel(tmp_path), [Path(sysconfig.get_path("purelib"))])
    late = {}
    for command in COMMANDS:
        began = time.monotonic()
        asked = ["spotless", command, "--help"]
        with subprocess.Popen(asked, env=around, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            assert process.stderr is not None
            process.stderr.read(1)
            late[command] = time.monotonic() - began
            process.kill()
    assert max(late.values()) < 1.0, late
