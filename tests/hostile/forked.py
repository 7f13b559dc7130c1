"""One command in a fork of this process: how it ended, what it said, how long it took and how much memory it touched.

The package is imported once and each input costs a fork, so a hang, a crash of the interpreter or a gigabyte that one
input takes is seen, and none of them reaches the next.
"""

import io
import os
import resource
import signal
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from spotlessnet.cli import main

HANGS = 30
"""Seconds after which a command is killed by its own alarm."""

ROOM = 6 * 2**30
"""Bytes of addresses that a command may ask for beyond what it began with: this machine must outlive the tests."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended; a negative code is the signal that killed it."""

    code: int
    err: str
    seconds: float
    peak: int
    worked: float = 0.0
    """Seconds of a processor, which other work on the machine does not lengthen."""

    @property
    def is_told(self) -> bool:
        """Whether a failure was said in one line that can be printed, and a success in none that says error."""
        one_line = self.err.count("\n") == 1 and self.err.startswith("error[") and self.err.rstrip("\n").isprintable()
        return self.code in (0, 1, 6) or one_line


def imported() -> None:
    """Import all that a command needs, so that a fork pays for its own work only."""
    for name in (
        "cli.scrubbing",
        "requests.serving",
        "cli.inspecting",
        "cli.precomputing",
        "precomputed.fold_model_files",
        "datasets.registry",
    ):
        import_module(f"spotlessnet.{name}")
    import_module("torch._weights_only_unpickler")
    # The command imports its parts, flags and words for errors when it first reads a line: a tenth of a second, half a
    # second where types are checked, that each fork would pay again.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        main(["no such command"])


def run(words: list[str], told: Path) -> Outcome:
    """Run the command in a child process; `told` is where its stderr goes meanwhile."""
    sys.stdout.flush()
    sys.stderr.flush()
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        _child(words, told)
    _, status, used = os.wait4(pid, 0)
    seconds = time.perf_counter() - began
    err = told.read_text(encoding="utf-8", errors="replace")
    return Outcome(
        os.waitstatus_to_exitcode(status), err, seconds, used.ru_maxrss * 1024, used.ru_utime + used.ru_stime
    )


def _child(words: list[str], told: Path) -> None:
    code = 99
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HANGS)
        asked = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (asked + ROOM, asked + ROOM))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        code = main(words)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
