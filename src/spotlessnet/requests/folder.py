"""The output folder of one request: claimed by one run at a time, never mixed with another request's files."""

import hashlib
import hmac
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotlessnet.core.errors import DamageError, DataError, IntegrityError, ResourceError
from spotlessnet.core.files import sweep
from spotlessnet.store.private import DAYS, PRIVATE, Private
from spotlessnet.store.receipts import plain, read_receipt, verify

RECEIPT = "receipt.json"


@dataclass(frozen=True)
class Folder:
    """Where a request's files go. The salt in it makes commitments that nobody can guess; keep it private.

    **Arguments:**

    - `again`: whether files of an earlier, unfinished run of the same request may be replaced.
    - `days`: until the private material is due to be destroyed.
    """

    path: Path
    again: bool
    days: int = DAYS

    @property
    def receipt(self) -> Path:
        """Written last: a folder with a receipt is finished, one without is not."""
        return self.path / RECEIPT

    @property
    def private(self) -> Private:
        """What is for the asker alone."""
        return Private(self.path)

    @property
    def salt(self) -> bytes:
        """Thirty-two random bytes, made when the folder was claimed."""
        return self.private.salt

    def check(self, inputs: Mapping[str, Path]) -> None:
        """Raise unless a run may write here: the folder is new, empty, or this tool's own to go on with."""
        if self.path.exists() and not self.path.is_dir():
            raise DataError(f"--out {self.path} is a file. Give a folder.")
        for name, path in inputs.items():
            if self.path.exists() and path.resolve().is_relative_to(self.path.resolve()):
                raise DataError(
                    f"--{name.replace('_', '-')} {path} lies in --out {self.path}, where it could be overwritten. "
                    "Choose another output."
                )
        holds = sorted(p.name for p in self.path.iterdir()) if self.path.is_dir() else []
        if holds and not self.again:
            raise DataError(
                f"--out {self.path} holds {len(holds)} files already, and nothing is ever overwritten. Choose another "
                "folder, or --resume the request that began there."
            )
        if holds and self.private.is_purged:
            raise DataError(
                f"The private part of --out {self.path} was purged, so nobody can tell whether this is the request "
                "that was served there. Choose another folder."
            )
        if holds and not self.private.has_salt and holds != [PRIVATE]:
            raise DataError(f"--out {self.path} holds files, but none of a request, so there is nothing to resume.")

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the folder while a run writes into it; leftovers of a killed run are swept first."""
        private, made, begun = self.private.path, not self.path.exists(), self.private.path.exists()
        try:
            private.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as e:
            raise ResourceError(f"--out {self.path} cannot be made ({e.strerror}). Choose another folder.") from e
        with locked(private, self.path):
            self.sweep()
            self.private.begin(self.days)
            try:
                yield
            except DamageError:
                # Nothing was written, so that nothing of this run may stay; what an earlier one began is left to it.
                if not begun:
                    shutil.rmtree(private)
                if made:
                    self.path.rmdir()
                raise

    def sweep(self) -> None:
        """Remove what a killed run left half-written; files of a living one stay."""
        sweep(self.path)
        sweep(self.private.path)

    def identity(self, request: Mapping[str, Any]) -> str:
        """What makes a request the same as another: everything that decides its result, keyed with the salt."""
        return identity_of(request, self.salt)

    def finished(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """The receipt of this very request, if it was served before and its files are still the same."""
        if not self.receipt.is_file():
            return None
        receipt = read_receipt(self.receipt)
        if receipt["predicate"]["request"].get("identity") != self.identity(request):
            raise DataError(
                f"--out {self.path} holds the result of another request, and nothing is ever overwritten. Choose "
                "another folder."
            )
        try:
            verify(self.receipt, self.salt)
        except IntegrityError as e:
            raise IntegrityError(f"{e} The folder was changed after its receipt was written.") from e
        return receipt


def identity_of(request: Mapping[str, Any], salt: bytes) -> str:
    """The keyed digest of a request, as its receipt tells it."""
    text = json.dumps(plain(request), sort_keys=True).encode()
    return hmac.new(salt, text, hashlib.sha256).hexdigest()


@contextmanager
def locked(private: Path, out: Path) -> Iterator[None]:
    """Hold the private folder of `out` against every other run."""
    handle = os.open(private, os.O_RDONLY)
    try:
        _lock(handle, out)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # pragma: no cover  where there is no such lock, hard links still refuse a second writer
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        raise ResourceError(f"Another run is at work in {path}. Wait for it, or choose another folder.") from e
