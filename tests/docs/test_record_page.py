"""The page on recording a training: its files and commands, in order, in an empty folder."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import spotlessnet
from tests.docs.blocks import ROOT, blocks

PAGE = ROOT / "docs" / "record_a_training.md"


@pytest.mark.slow
def test_the_page_runs_from_top_to_bottom(tmp_path):
    """What the page shows under a command is what the command prints."""
    found = {**os.environ, "PYTHONPATH": str(Path(spotlessnet.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    printed = ""
    for block in blocks(PAGE):
        if block.is_file:
            (tmp_path / block.title).write_text(block.text)
        elif block.is_command:
            for line in block.text.splitlines():
                program, *words = shlex.split(line)
                start = [sys.executable] if program == "python" else [sys.executable, "-m", "spotlessnet.cli"]
                ended = subprocess.run(
                    [*start, *words], cwd=tmp_path, env=found, capture_output=True, text=True, check=False
                )
                assert ended.returncode == block.code, f"{line}: {ended.stdout}{ended.stderr}"
                printed = ended.stdout
        else:
            assert block.text == printed
    assert (tmp_path / "after/training.json").is_file()
    assert (tmp_path / "later/receipt.json").is_file()
