"""Every snippet and command of the README runs as it stands, and prints what the page shows."""

import re
import subprocess

import pytest

from benchmarks import methods_table
from tests.docs.blocks import ROOT, blocks
from tests.test_newcomer import surroundings

README = ROOT / "README.md"
NEAR = 8.0
"""Points by which a share may differ: two examples of the forget set, on other processors."""


def test_every_snippet_runs_as_it_stands(tmp_path):
    around, home = surroundings(tmp_path / "bin"), tmp_path / "home"
    home.mkdir()
    shown, printed = [], []
    for block in blocks(README):
        if block.is_file:
            (home / block.title).write_text(block.text, encoding="utf-8")
        elif block.is_command:
            ended = subprocess.run(
                ["sh", "-e", "-c", block.text], cwd=home, env=around, capture_output=True, text=True, timeout=600
            )
            assert ended.returncode == block.code, f"{block.text}\n{ended.stdout}\n{ended.stderr}"
            printed.append(ended.stdout)
        elif block.language == "text":
            shown.append(block.text)
    [result] = shown
    pattern = re.compile(r"([\d.]+)%")
    assert pattern.sub("%", result) == pattern.sub("%", printed[0])
    numbers = zip(pattern.findall(result), pattern.findall(printed[0]), strict=True)
    assert all(abs(float(here) - float(there)) <= NEAR for here, there in numbers), printed[0]
    assert printed[-1].startswith("forgotten: "), printed[-1]  # the command with an audit
    assert (home / "run" / "scrubbed.safetensors").is_file()
    assert (home / "run" / "receipt.json").is_file()


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "quickstart.md"], ids=lambda page: page.name)
def test_a_training_script_may_run_twice(page):
    """Its own files of the first run are replaced: a newcomer's second run must not end in an error."""
    written = [line for block in blocks(page) if block.is_file for line in block.text.splitlines() if "write_" in line]
    assert written
    assert [line for line in written if "replace=True" not in line] == []


def test_no_python_stands_outside_a_file():
    """A block without a name would not be run by the test above."""
    assert [block.text for block in blocks(README) if block.language == "python" and not block.title] == []


@pytest.mark.parametrize("page", methods_table.PAGES, ids=lambda page: page.name)
def test_the_table_of_methods_is_what_they_declare(page):
    """What stands there is true. A new method may be missing until the script is run: it is added in three files."""
    text = page.read_text(encoding="utf-8")
    start = text.index(methods_table.PLACE.begin) + len(methods_table.PLACE.begin)
    stands = text[start : text.index(methods_table.PLACE.end, start)].strip().splitlines()
    made = methods_table.made().strip().splitlines()
    assert [line for line in stands if line not in made] == []
    assert len(stands) > 20
