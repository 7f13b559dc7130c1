"""A stand-in engine with the moods of a real one: work fails, audits do not pass, and every piece of work is marked.

The marks tell whether something was done twice: `begun` before, `done` after, `raised` where it failed on purpose, and
`beside` where somebody else was at work on the same job at the same time.
"""

import fcntl
import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spotlessnet.serve.engine import Work, WorkError
from tests.serve.stand_in import StandIn

MARKS = "marks"
DISK_FULL, BROKEN = 4, 70


def mark(folder: Path, what: str, job: str, **more: Any) -> None:
    """One line; the system appends it whole, whoever else writes."""
    line = json.dumps({"what": what, "job": job, "process": os.getpid(), **more}) + "\n"
    handle = os.open(folder / MARKS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, line.encode())
    os.close(handle)


def marks(folder: Path) -> list[dict[str, Any]]:
    """All of them, in order."""
    path = folder / MARKS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@contextmanager
def alone(folder: Path, job: str) -> Iterator[None]:
    """Marks it where another one is at work on this job; the lock of whoever is killed is free."""
    with (folder / f"{job}.lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            mark(folder, "beside", job)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


class Moody(StandIn):
    """Fails a piece of work now and then, and lets some audits not pass.

    **Arguments:**

    - `seconds`: how long a piece of work may take.
    """

    def __init__(self, seconds: float = 0.6) -> None:
        super().__init__()
        self.seconds = seconds

    def verdict_of(self, job: str) -> str:
        """Drawn from the job's own name: whoever looks at it afterwards knows what the audit said."""
        drawn = hashlib.sha256(job.encode()).digest()[0] % 8
        return {0: "not forgotten", 1: "inconclusive"}.get(drawn, "forgotten")

    def forget(self, work: Work, say: Callable[[str], None]) -> dict[str, Any]:
        out = Path(work.out)
        out.parent.mkdir(parents=True, exist_ok=True)
        with alone(out.parent, out.name):
            return super().forget(work, say)

    def make(self, work: Work) -> None:
        out = Path(work.out)
        mark(out.parent, "begun", out.name)
        time.sleep(random.random() * self.seconds)
        if random.random() < 0.12:
            mark(out.parent, "raised", out.name)
            raise random.choice([WorkError("The disk is full.", DISK_FULL), WorkError("Broken.", BROKEN), OSError(5)])
        super().make(work)
        mark(out.parent, "done", out.name, ids=sorted(work.ids))
