"""Two processes give what one gives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
WORKER = "tests.operators.torchrun_worker"


def run(*command: str) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchrun")
    run("-m", WORKER, str(folder / "one.pt"), "--alone")
    # `--standalone` finds a free port by itself.
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    run(*launcher, "-m", WORKER, str(folder / "two.pt"))
    return torch.load(folder / "one.pt"), torch.load(folder / "two.pt")


def test_two_processes_give_what_one_gives(both):
    one, two = both
    assert set(two) == {*one, "same_on_all"}
    for name, truth in one.items():
        assert float((two[name] - truth).norm()) <= 1e-6 * float(truth.norm()), name


def test_every_process_holds_the_same_solution(both):
    assert float(both[1]["same_on_all"].max()) == 0
