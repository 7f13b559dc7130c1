"""Statistics and fold models serve one request: who was first is written beside them, and later ones are sent on."""

import json
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotlessnet.core.errors import DataError, NeedError, ResourceError
from spotlessnet.core.files import read_whole, sha256, sweep, write_whole
from spotlessnet.requests.case import Case
from spotlessnet.requests.folder import RECEIPT, SCRUBBED
from spotlessnet.store.receipts import loads_once

SUFFIX = ".next"
LONGEST = 2**16
"""Bytes of a note; a longer one is none."""

PENDING, DONE = "at work", "done"

AFTER = {
    "statistics": " and the statistics in {folder}.",
    "fold models": " in {folder}, with fold models that are trained anew on the rows that are left.",
    "training records": " and the training records in {folder}.",
}
"""Where the request after the next one finds what it needs; fold models know the rows of the one that they served."""

NEXT = {
    "statistics": ", with `statistics=result.statistics`, or make them anew.",
    "fold models": ", with fold models that are trained anew on the rows that are left.",
}


@dataclass(frozen=True)
class Lineage:
    """A file of statistics or of fold models, and the note beside it that says which request used it.

    Two requests from one file of statistics would give two networks that each still know the rows of the other; fold
    models that were given again know the rows that the request before removed, and would bring them back. The file is
    held by a lock while a request works, and the note says which folder that is. With the folder's receipt the file is
    used up, also if the note could not be completed any more. A killed request leaves no lock and no receipt, so
    another one, or the same again, may follow.

    **Arguments:**

    - `kept`: the file.
    - `what`: what it holds, for messages.
    """

    kept: Path
    what: str = "statistics"

    @property
    def note(self) -> Path:
        """Beside the file itself, wherever a symbolic link to it lies, and about the file with this very digest."""
        return self._real.with_name(self._real.name + SUFFIX)

    @property
    def _real(self) -> Path:
        return self.kept.resolve()

    def check_free(self, out: Path) -> None:
        """Raise if a request other than the one of `out` has used the statistics, or if they are half of one."""
        self._check_one_name()
        found = self._noted()
        if found is not None and self._is_used_up(found, out):
            raise DataError(
                f"The {self.what} {self.kept} were used by a request before, and serve one only. Go on from the "
                f"network{AFTER[self.what].format(folder=_from_here(self._folder(found)))}"
            )
        beside = self._real.parent
        if (beside / SCRUBBED).is_file() and not (beside / RECEIPT).is_file():
            raise DataError(
                f"The {self.what} {self.kept} belong to a request that did not finish, for there is no receipt "
                "beside them. Finish that request with --resume, or go on from where it began."
            )

    @property
    def is_used_up(self) -> bool:
        """Whether a request was served from the file."""
        found = self._noted()
        return found is not None and self._is_used_up(found, self._real.parent)

    @contextmanager
    def used_by(self, out: Path) -> Iterator[None]:
        """Hold the statistics while the request of `out` works; when its receipt is there, they are used up."""
        handle = os.open(self.kept, os.O_RDONLY)
        try:
            _lock(handle, self.kept, self.what)
            self.check_free(out)
            self._write(out, PENDING)
            try:
                yield
            finally:
                # Without a receipt nothing was served, and the next request is welcome.
                if (out / RECEIPT).is_file():
                    self._write(out, DONE)
                else:
                    self.note.unlink(missing_ok=True)
        finally:
            os.close(handle)

    def _check_one_name(self) -> None:
        if self._real.is_dir():
            inside = self.kept / f"{self.what.replace(' ', '-')}.safetensors"
            wanted = str(inside) if inside.is_file() else "the file itself"
            raise DataError(f"The {self.what} must be a file, but {self.kept} is a folder. Give {wanted}.")
        # A killed writer leaves a second name too, its temporary one.
        sweep(self._real.parent)
        names = os.stat(self._real).st_nlink
        if names > 1:
            raise DataError(
                f"The {self.what} {self.kept} must have one name, but {names} names (hard links) lead to them, and "
                "the note of who used them lies beside one of them. Remove the others."
            )

    def _noted(self) -> dict[str, Any] | None:
        if not self.note.exists():
            return None
        try:
            found = loads_once(read_whole(self.note, "note", LONGEST))
            about, state, folder = found["statistics"], found["state"], found["folder"]
            if b"\0" in os.fsencode(folder):
                raise ValueError("no folder has such a name")
            if type(about) is not str or state not in (PENDING, DONE):
                raise ValueError("no request notes such a thing")
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as e:
            raise DataError(
                f"{self.note} must say which request used the {self.what}, but cannot be read. Remove it only if you "
                "know that no request was served from them."
            ) from e
        # Statistics that were written anew under the same name are others.
        return found if about == sha256(self.kept) else None

    def _folder(self, found: dict[str, Any]) -> Path:
        return Path(os.path.normpath(self._real.parent / found["folder"]))

    def _is_used_up(self, found: dict[str, Any], out: Path) -> bool:
        folder = self._folder(found)
        if found["state"] == DONE:
            return True
        return folder.resolve() != out.resolve() and (folder / RECEIPT).is_file()

    def _write(self, out: Path, state: str) -> None:
        # From where the statistics lie, so that both may move together.
        folder = os.path.relpath(out.resolve(), self._real.parent)
        told = {"statistics": sha256(self.kept), "folder": folder, "state": state}
        write_whole(self.note, json.dumps(told, sort_keys=True).encode() + b"\n", replace=True)


_USED: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Objects that served a request of this process, or are at it; each by its identity, as long as it lives."""

_LOOKING = threading.Lock()


def check_unused(kept: Any, what: str) -> None:
    """Raise if these very statistics or fold models served a request before; of a file, its note tells."""
    if kept in _USED:
        raise DataError(
            f"These {what} served a request before, and serve one only: a second network from them would still know "
            f"what the first one forgot. Go on from the network of its result, `result.model`{NEXT[what]}"
        )


@contextmanager
def used_once(kept: Any, what: str) -> Iterator[None]:
    """Hold an object while a request works; if that comes to its end, the object is used up."""
    with _LOOKING:
        check_unused(kept, what)
        _USED.add(kept)
    try:
        yield
    except BaseException:
        _USED.discard(kept)
        raise


def _from_here(path: Path) -> Path:
    """As a person would name it: from the current folder where it lies in there."""
    here = Path.cwd().resolve()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _lock(handle: int, path: Path, what: str) -> None:
    try:
        import fcntl
    except ImportError:  # pragma: no cover  where there is no such lock, the note alone decides
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        raise ResourceError(
            f"Another request is at work from the {what} {path}. Wait for it, then go on from what it leaves."
        ) from e


def files_used(case: Case) -> list[Lineage]:
    """Who may use files of statistics and of fold models; looked at before the data are read."""
    found = []
    for kept, what, name in (
        (case.statistics, "statistics", "statistics"),
        (case.fold_models, "fold models", "fold_models"),
    ):
        if kept is None:
            continue
        if not isinstance(kept, Path):
            if case.out is None:
                check_unused(kept, what)  # with a folder the same request may ask for its result again
            continue
        if case.out is None:
            raise NeedError(
                f"A file of {what} serves one request, whose folder is noted beside it, but this one writes none. Give "
                f"`out`, or the {what} themselves: `{name}=sn.read_{name}(path)`."
            )
        lineage = Lineage(kept, what)
        lineage.check_free(case.out)
        found.append(lineage)
    return found
