"""Thousands of damaged files, and kills at random and at every system call: no promise may break."""

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from spotlessnet.core.cohorts import ids
from spotlessnet.core.data import Data
from spotlessnet.core.files import sha256
from spotlessnet.store.receipts import verify
from tests.cli.workshop import BASE, QUICK, furnish


def driven(module: str, *arguments: object) -> dict[str, Any]:
    """Run a driver of this folder in a process of its own, so that even a crash of the interpreter is seen."""
    command = [sys.executable, "-m", f"tests.hostile.{module}", *map(str, arguments)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=one_thread)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_two_thousand_damaged_files_end_as_documented():
    codes = driven("mutate", 0, 2000)["codes"]
    assert sum(codes.values()) == 2000
    assert set(codes) <= {"0", "2", "3", "5"}
    assert codes["0"] >= 50  # some damage must go unseen, or the damage is too coarse to test anything


def test_kills_at_random_and_at_every_call_lose_nothing():
    found = driven("kill", 0, 6)
    assert found["broken"] == 0
    assert found["calls"] > 15


@pytest.mark.slow
def test_two_hundred_kills_and_every_kind_of_failing_call_lose_nothing():
    found = driven("kill", 1, 200, "ENOSPC", "EIO", "EACCES")
    assert found["broken"] == 0
    assert sum(found["seen"].values()) == 200


@pytest.mark.slow
def test_real_processes_killed_at_random_lose_nothing(tmp_path):
    import random

    furnish(tmp_path)
    draw, inputs = random.Random(2), {p: sha256(p) for p in tmp_path.iterdir() if p.is_file()}
    command = [sys.executable, "-m", "spotlessnet.cli", "scrub", *BASE, *QUICK, "--seed", "1", "--quiet", "--out"]
    began = time.perf_counter()
    subprocess.run([*command, "whole"], cwd=tmp_path, check=True, capture_output=True)
    whole, expected = time.perf_counter() - began, sha256(tmp_path / "whole/scrubbed.safetensors")
    for number in range(20):
        out = tmp_path / f"run-{number}"
        with subprocess.Popen([*command, out.name], cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
            time.sleep(whole * (0.5 + 0.6 * draw.random()))
            process.kill()
        assert {p: sha256(p) for p in inputs} == inputs
        subprocess.run([*command, out.name, "--resume"], cwd=tmp_path, check=True, capture_output=True)
        assert sha256(out / "scrubbed.safetensors") == expected
        assert verify(out / "receipt.json") == ["scrubbed.safetensors"]


def test_a_million_ids_are_parsed_and_counted_in_ten_seconds(tmp_path):
    import torch

    count = 10**6
    (tmp_path / "forget.csv").write_text("id\n" + "".join(f"user-{i}\n" for i in range(count)) + "user-0\nnobody\n")
    names = [f"user-{i}" for i in range(count + 1000)]
    train = Data.of((torch.zeros(len(names), 1), torch.zeros(len(names)).long()), columns={"id": names})
    began = time.process_time()
    split = ids(tmp_path / "forget.csv", allow_missing=True)(train)
    assert time.process_time() - began < 10
    assert (split.request.matched, split.request.missing, split.request.duplicates) == (count, 1, 1)
