"""The work on networks, in a process of its own: the desk answers while a training runs, and outlives its failures."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from spotlessnet.core.errors import ResourceError, SpotlessError

ENVIRONMENT = 4
"""The exit code of what may be better next time: disk, memory, another run at work."""


REPLAY = ".replay"
"""Ends the name of the folder in which work is done again; it is destroyed with all that is in it."""


@dataclass(frozen=True)
class Work:
    """One job, as a worker is told it; ids go through a pipe, never through a file or a command line.

    **Arguments:**

    - `base`: the folder of the version to go on from.
    - `out`: the folder of the new version.
    - `ids`: whose examples go.
    - `key`, `gone`: keyed digests of ids that went before, whose rows the data may still hold.
    """

    kind: str
    settings: Mapping[str, Any]
    base: str
    out: str
    ids: list[str] = field(default_factory=list, repr=False)
    key: str = field(default="", repr=False)
    gone: list[str] = field(default_factory=list, repr=False)
    method: str | None = None
    seeds: int = 0


class WorkError(SpotlessError):
    """The work failed; the text has no id in it."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code

    @property
    def may_pass(self) -> bool:
        """Whether trying again may help: a killed worker, a full disk, another run."""
        return self.code < 0 or self.code in (ENVIRONMENT, 137)


@runtime_checkable
class Engine(Protocol):
    """What the desk needs of the library."""

    def read(self, kind: str, settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """Who is in a training: `ids` (with their examples), `network` and `folder`."""

    def plan(self, work: Work) -> dict[str, Any]:
        """What the methods would cost beside retraining; writes nothing."""

    def forget(self, work: Work, say: Callable[[str], None]) -> dict[str, Any]:
        """Make the new version in `work.out`, audited; a finished one is given back as it is."""

    def replay(self, work: Work, scratch: Path) -> dict[str, Any]:
        """Make the new version once more, in a folder that is destroyed: its `network`, or the `reason` why not."""

    def destroy(self, base: Path, out: Path, *, private: bool) -> list[str]:
        """Destroy what the new version replaces; gives the names of what went."""

    def withdraw(self, base: Path, out: Path) -> None:
        """Destroy a result that was sent back, so that another one can be made from the same version."""


class Workers:
    """An engine that starts one worker process for each piece of work."""

    def __init__(self, python: str = sys.executable) -> None:
        self.python = python

    def read(self, kind: str, settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        return self._ask("read", {"kind": kind, "settings": dict(settings), "base": str(folder)})

    def plan(self, work: Work) -> dict[str, Any]:
        return self._ask("plan", asdict(work))

    def forget(self, work: Work, say: Callable[[str], None]) -> dict[str, Any]:
        return self._ask("forget", asdict(work), say)

    def replay(self, work: Work, scratch: Path) -> dict[str, Any]:
        return self._ask("replay", {**asdict(work), "scratch": str(scratch)})

    def destroy(self, base: Path, out: Path, *, private: bool) -> list[str]:
        found = self._ask("destroy", {"base": str(base), "out": str(out), "private": private})
        return list(found["files"])

    def withdraw(self, base: Path, out: Path) -> None:
        self._ask("withdraw", {"base": str(base), "out": str(out)})

    def _ask(
        self, what: str, told: Mapping[str, Any], say: Callable[[str], None] = lambda line: None
    ) -> dict[str, Any]:
        command = [self.python, "-m", "spotlessnet.serve.worker", what]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]  # as above
            try:
                process.stdin.write(json.dumps(told))
                process.stdin.close()
            except BrokenPipeError:
                pass  # it ended before it listened; its exit code says why
            last: dict[str, Any] = {}
            for line in process.stdout:
                last = json.loads(line)
                if "say" in last:
                    say(last["say"])
        if "done" in last:
            return dict(last["done"])
        if "error" in last:
            raise WorkError(str(last["error"]), int(last["code"]))
        raise WorkError(f"The worker process ended with {process.returncode} and said nothing.", process.returncode)


def check_folder(path: Path) -> Path:
    """A folder that must be there."""
    if not path.is_dir():
        raise ResourceError(f"There is no folder {path}. Give what `sn.record` or `spotless train` wrote.")
    return path.resolve()
