"""Where real data may lie on a machine that has it."""

import os
from pathlib import Path

import pytest


def shared() -> Path:
    """The folder of packed shards; the test is skipped where there is none."""
    root = os.environ.get("SPOTLESS_SHARED", str(Path(__file__).resolve().parents[3] / "shared"))
    folder = Path(root) / "data"
    if not (folder / "mnist.train.npz").is_file():
        pytest.skip("no real data on this machine")
    return folder
