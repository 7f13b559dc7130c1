"""An equation is made wrong, or what protects is taken away, and the test that must notice is run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import ALL, EQUATIONS, Planted
from tests.mutants.planting import is_noticed, plant, tried

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "spotlessnet"


def named() -> list[str]:
    """The tests that docs/papers.md names."""
    return re.findall(r"`tests/([\w/]+\.py::\w+)`", (ROOT / "docs" / "papers.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("planted", ALL, ids=lambda planted: planted.name)
def test_every_error_can_still_be_planted(planted: Planted):
    """A line that was changed since takes its error with it: plant it in the new line, or in its successor."""
    text = (PACKAGE / planted.file).read_text(encoding="utf-8")
    assert text.count(planted.right) == 1, f"{planted.file} must hold once: {planted.right}"
    assert planted.right != planted.wrong


def test_every_test_of_the_page_has_an_error_planted_for_it():
    assert sorted(set(named()) - {planted.test for planted in EQUATIONS}) == []
    assert sorted({planted.test for planted in EQUATIONS} - set(named())) == []
    assert len({planted.name for planted in ALL}) == len(ALL)


def run(source: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    # Without type checks at run time: the numbers must tell.
    options = ["-o", "addopts=", "-q", "-x", "-p", "no:cacheprovider", "-p", "tests.mutants.hurry"]
    command = [sys.executable, "-m", "pytest", *options, *(f"tests/{test}" for test in tests)]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200)


@pytest.mark.slow
def test_forks_of_one_process_tell_a_planted_error_from_none(tmp_path: Path):
    """`python -m tests.mutants.planting` does what the tests below do, in a third of the time."""
    planted = ALL[0]
    for wrong, noticed in ((planted.right, False), (planted.wrong, True)):
        place = tmp_path / str(noticed)
        code, said = tried(plant(planted.file, planted.right, wrong, place), planted.test)
        assert code == int(noticed), said[-1500:]
        assert is_noticed(code, said) == noticed


@pytest.mark.slow
def test_unplanted_every_named_test_passes(tmp_path: Path):
    shutil.copytree(PACKAGE, tmp_path / "spotlessnet", ignore=shutil.ignore_patterns("__pycache__"))
    ended = run(tmp_path, sorted({planted.test for planted in ALL}))
    assert ended.returncode == 0, ended.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("planted", ALL, ids=lambda planted: planted.name)
def test_the_named_test_notices(planted: Planted, tmp_path: Path):
    shutil.copytree(PACKAGE, tmp_path / "spotlessnet", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "spotlessnet" / planted.file
    text = file.read_text(encoding="utf-8")
    assert text.count(planted.right) == 1, planted.right
    file.write_text(text.replace(planted.right, planted.wrong), encoding="utf-8")
    ended = run(tmp_path, [planted.test])
    # 1 is "tests ran and some failed"; anything else is an error of another kind, such as a file that does not parse.
    assert ended.returncode == 1, f"{planted.test} did not notice: {ended.stdout[-1500:]}"
    assert "error" not in ended.stdout.splitlines()[-1], ended.stdout[-1500:]
