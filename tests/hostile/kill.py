"""Kill a scrub at random moments and at every system call, in a process of its own.

Run as `python -m tests.hostile.kill SEED COUNT EVERY [ENOSPC ...]`: how many random kills, at which system calls (1 is
every one, 5 every fifth), and which errors to inject. The package is imported once; each run is a fork that calls the
same entry point as the command. Prints one JSON line for each promise that was broken, and a last one with what was
seen.
"""

import errno
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file

from spotlessnet.core.files import PENDING, sha256
from spotlessnet.store.receipts import verify
from tests.cli.workshop import BASE, QUICK, furnish, spotless

CALLS = ("open", "write", "fsync", "link", "replace", "rename", "close", "mkdir")
ASKED = ("scrub", *BASE, *QUICK, "--seed", "1", "--quiet", "--out", "run")


def forked(before: Callable[[], None] | None = None, *more: str) -> int:
    """Begin a scrub in a child process and give its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        if before is not None:
            before()
        code = spotless(*ASKED, *more).code
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    """The exit code of a child; minus the signal where one killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def at_call(n: int, action: Callable[[], None]) -> Callable[[], None]:
    """A preparation after which the n-th system call that touches files does something else first."""

    def prepare() -> None:
        left = [n]
        for name in CALLS:
            setattr(os, name, _watched(getattr(os, name), left, action))

    return prepare


def _watched(real: Callable[..., object], left: list[int], action: Callable[[], None]) -> Callable[..., object]:
    def call(*arguments: object, **named: object) -> object:
        left[0] -= 1
        if left[0] == 0:
            action()
        return real(*arguments, **named)

    return call


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


class Promises:
    """What must hold whatever happens, checked after each run."""

    def __init__(self, folder: Path) -> None:
        self.inputs = {p: sha256(p) for p in folder.iterdir() if p.is_file()}
        assert ended(forked()) == 0
        self.expected = sha256(Path("run/scrubbed.safetensors"))
        self.broken = 0
        shutil.rmtree("run")

    def check(self, what: str) -> None:
        """Inputs untouched, outputs whole or absent, and a second run finishes with the same bytes."""
        wrong = [str(p) for p, digest in self.inputs.items() if sha256(p) != digest]
        network, receipt = Path("run/scrubbed.safetensors"), Path("run/receipt.json")
        if network.exists() and (sha256(network) != self.expected or not load_file(network)):
            wrong.append("half a network")
        if receipt.exists() and verify(receipt) != ["scrubbed.safetensors"]:
            wrong.append("a receipt of nothing")
        code = ended(forked(None, "--resume"))
        if code != 0 or sha256(network) != self.expected or verify(receipt) != ["scrubbed.safetensors"]:
            wrong.append(f"resuming ended with {code}")
        if leftover := [str(p) for p in Path("run").rglob(f"{PENDING}*")]:
            wrong.append(f"left over: {leftover}")
        if wrong:
            self.broken += 1
            print(json.dumps({"what": what, "broken": wrong}))
        shutil.rmtree("run", ignore_errors=True)


def at_random(promises: Promises, draw: random.Random, count: int) -> Counter[str]:
    """Kill at moments spread evenly over the run."""
    began = time.perf_counter()
    assert ended(forked()) == 0
    whole = time.perf_counter() - began
    shutil.rmtree("run")
    seen = Counter[str]()
    for number in range(count):
        pid = forked()
        time.sleep(draw.random() * 1.1 * whole)
        os.kill(pid, signal.SIGKILL)
        code = ended(pid)
        files = sorted(p.name for p in Path("run").iterdir()) if Path("run").exists() else []
        seen[f"{'killed' if code < 0 else 'finished'} with {len(files)} files"] += 1
        promises.check(f"random kill {number}")
    return seen


def at_every_call(promises: Promises, name: str, action: Callable[[], None], wanted: set[int], every: int) -> int:
    """Let the first, second, third … call go wrong until none is left to; or some of them."""
    for n in range(1, 400, every):
        code = ended(forked(at_call(n, action)))
        if code not in wanted | {0}:
            promises.broken += 1
            print(json.dumps({"what": f"{name} at call {n}", "broken": [f"ended with {code}"]}))
        done = code == 0 and Path("run/receipt.json").exists()
        promises.check(f"{name} at call {n}")
        if done:
            return n
    raise AssertionError("the run never came to its end")


def main(seed: int, count: int, every: int, *errors: str) -> int:
    """Everything; the exit code tells whether a promise was broken."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        os.chdir(furnish(Path(place)))
        spotless(*ASKED[:-2], "--dry-run")  # imports, once for all children
        promises = Promises(Path.cwd())
        seen = at_random(promises, random.Random(seed), count)
        calls = at_every_call(promises, "kill", die, {-signal.SIGKILL}, every)
        for name in errors:
            at_every_call(promises, name, partial(fail, getattr(errno, name)), {4}, every)
        print(json.dumps({"broken": promises.broken, "calls": calls, "seen": seen}))
        os.chdir("/")
    return int(promises.broken > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]))
