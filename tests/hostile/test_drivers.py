"""Thousands of damaged files, and kills at random and at every system call: no promise may break."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spotlessnet.core.data import Data
from spotlessnet.core.files import sha256
from spotlessnet.core.split import ids
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


@pytest.mark.parametrize("first", [0, 1000])
def test_damaged_files_end_as_documented(first):
    """The first of those that `make fuzz` runs every night, in shares so that cores can divide them."""
    found = driven("fuzz", "--first", first, "--count", 1000)
    codes = found["exit_codes"]
    assert (found["inputs"], found["broken"]) == (1000, 0)
    assert set(codes) <= {"0", "2", "3", "4", "5", "7"}
    assert len(found["exit_codes_by_kind"]) >= 22
    assert codes["0"] >= 50  # some damage must go unseen, or the damage is too coarse to test anything
    assert found["slowest_seconds"] <= 5
    assert found["largest_mebibytes_above_baseline"] <= 1024


def test_more_work_than_any_network_needs_is_refused():
    """Also that as much as a network needs is not."""
    command = [sys.executable, "-m", "tests.hostile.laborious"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [one["err"] for one in told if not one["as_wanted"]] == []
    assert {one["name"]: one["worked"] for one in told if one["worked"] > 5} == {}
    assert {one["name"]: one["above"] for one in told if one["above"] > 2**30} == {}
    assert len(told) > 30


def test_the_watch_sees_what_it_should(tmp_path, monkeypatch):
    """Planted faults: a file beside --out, a traceback, a wrong code, too much memory, and a dead worker."""
    from tests.hostile import fuzz
    from tests.hostile.forked import imported
    from tests.hostile.targets import Target

    def planted(words):
        name = words[0]
        if name == "writes":
            (tmp_path / "watched/home/secret").write_text("x")
        if name == "hoards":
            return 0 * len(bytearray(b"a") * 2**27)
        if name == "dies":
            os.kill(os.getpid(), 9)
        if name == "talks":
            print("Traceback\nmore", file=sys.stderr)
        return {"fails": 70, "talks": 3}.get(name, 0)

    imported()
    place = tmp_path / "watched"
    for name in ("home", "work"):
        (place / name).mkdir(parents=True)
    monkeypatch.chdir(place / "work")
    monkeypatch.setattr(fuzz, "command", planted)
    monkeypatch.setattr(fuzz, "MOST_MEMORY", 2**26)
    names = ("good", "writes", "hoards", "talks", "fails", "dies", "good")
    chosen = [Target(name, "a", b"sound", (name,)) for name in names]
    seen: list[dict[str, Any]] = []
    while len(seen) < len(names):
        seen += fuzz.worked(range(len(seen), len(names)), chosen, 0, place)
    expected = [[], ["disk"], ["memory"], ["line"], ["code", "line"], ["killed"], []]
    assert [one["wrong"] for one in seen] == expected
    whole = fuzz.joined([fuzz.Tally(), fuzz.Tally()])
    for one in seen:
        whole.add(one)
    assert (whole.count, len(whole.broken)) == (7, 5)


def test_a_log_lets_a_run_go_on_where_it_stopped():
    from tests.hostile.fuzz import pieces

    assert pieces(0, 600, set()) == [range(250), range(250, 500), range(500, 600)]
    assert pieces(0, 600, {0, 250}) == [range(500, 600)]
    assert pieces(400, 200, set()) == [range(400, 500), range(500, 600)]


def test_kills_at_random_and_at_every_eighth_call_lose_nothing():
    found = driven("kill", 0, 4, 8)
    assert found["broken"] == 0
    assert found["calls"] > 15


@pytest.mark.slow
def test_two_hundred_kills_and_every_kind_of_failing_call_lose_nothing():
    found = driven("kill", 1, 200, 1, "ENOSPC", "EIO", "EACCES")
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


def test_the_recorded_run_kept_every_promise():
    """`make fuzz` writes this file. The commit of a run in parts, without history, was added by hand."""
    told = json.loads((Path(__file__).parents[2] / "results/fuzz.json").read_text())
    assert (told["inputs"], told["broken"]) == (100_000, 0)
    assert sum(told["exit_codes"].values()) == 100_000
    assert {int(code) for code in told["exit_codes"]} <= set(told["allowed_codes"])
    assert told["slowest_seconds"] <= 5
    assert told["largest_mebibytes_above_baseline"] <= 1024
    assert "with changes" not in told["commit"]
