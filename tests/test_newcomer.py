"""A newcomer follows the quickstart to the letter, and ends with a network of their own, a receipt and a report."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

import spotlessnet
from tests.docs.blocks import ROOT, blocks

QUICKSTART = ROOT / "docs" / "quickstart.md"


def surroundings(folder: Path) -> dict[str, str]:
    """What a person's shell has after installation: the commands `spotless` and `python`, one thread each."""
    folder.mkdir()
    commands = {"python": f'exec "{sys.executable}" "$@"'}
    if shutil.which("spotless", path=str(Path(sys.executable).parent)) is None:
        commands["spotless"] = f'exec "{sys.executable}" -m spotlessnet.cli "$@"'
    for name, line in commands.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    source = str(Path(spotlessnet.__file__).parents[1])
    search = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": search, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


@pytest.mark.slow
def test_the_quickstart_leads_to_a_scrubbed_network_a_receipt_and_a_report(tmp_path):
    around, home = surroundings(tmp_path / "bin"), tmp_path / "home"
    home.mkdir()
    ran = []
    for block in blocks(QUICKSTART):
        if block.is_file:
            (home / block.title).write_text(block.text, encoding="utf-8")
        if block.is_command:
            ended = subprocess.run(
                ["sh", "-e", "-c", block.text], cwd=home, env=around, capture_output=True, text=True, timeout=600
            )
            assert ended.returncode == block.code, f"{block.text}\n{ended.stdout}\n{ended.stderr}"
            ran.append(ended)
    assert len(ran) == 5
    dry, fast, last, use = ran[1:]
    assert "12 rows matched, 0 ids missing, 0 duplicates; 288 rows stay, 12 go" in dry.stdout
    assert "fast/scrubbed.safetensors" in fast.stdout
    assert "verified forget.csv" in last.stdout
    assert "test error:" in use.stdout

    receipts = {name: json.loads((home / name / "receipt.json").read_text()) for name in ("fast", "run")}
    words = {name: receipt["predicate"]["audit"][0]["verdict"] for name, receipt in receipts.items()}
    assert words == {"fast": "not forgotten", "run": "forgotten"}
    assert "person-07" not in (home / "run" / "receipt.json").read_text()
    for name in ("fast", "run"):
        page = (home / name / "report.html").read_text()
        assert "<svg" in page
        assert "person-07" not in page
    before, after = (load_file(home / name) for name in ("model.safetensors", "run/scrubbed.safetensors"))
    assert before.keys() == after.keys()
    assert any(not before[name].equal(after[name]) for name in before)
