"""The output folder of one request: claimed by one run at a time, never mixed with another request's files."""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotlessnet.case import Case
from spotlessnet.core.errors import DataError, IntegrityError, ResourceError
from spotlessnet.core.files import sha256, sweep, write_whole
from spotlessnet.store.receipts import plain, read_receipt, verify

SALT = Path("private") / "salt"
RECEIPT = "receipt.json"


@dataclass(frozen=True)
class Folder:
    """Where a request's files go. The salt in it makes commitments that nobody can guess; keep it private.

    **Arguments:**

    - `again`: whether files of an earlier, unfinished run of the same request may be replaced.
    """

    path: Path
    again: bool

    @property
    def receipt(self) -> Path:
        """Written last: a folder with a receipt is finished, one without is not."""
        return self.path / RECEIPT

    @property
    def salt(self) -> bytes:
        """Thirty-two random bytes, made when the folder was claimed."""
        try:
            return (self.path / SALT).read_bytes()
        except OSError as e:
            raise ResourceError(f"{self.path / SALT} cannot be read ({e.strerror}).") from e

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
        if holds and not (self.path / SALT).is_file() and holds != ["private"]:
            raise DataError(f"--out {self.path} holds files, but none of a request, so there is nothing to resume.")

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the folder while a run writes into it; leftovers of a killed run are swept first."""
        private = self.path / SALT.parent
        try:
            private.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as e:
            raise ResourceError(f"--out {self.path} cannot be made ({e.strerror}). Choose another folder.") from e
        handle = os.open(private, os.O_RDONLY)
        try:
            _lock(handle, self.path)
            self.sweep()
            if not (self.path / SALT).is_file():
                write_whole(self.path / SALT, secrets.token_bytes(32))
            yield
        finally:
            os.close(handle)

    def sweep(self) -> None:
        """Remove what a killed run left half-written; files of a living one stay."""
        sweep(self.path)
        sweep(self.path / SALT.parent)

    def identity(self, request: Mapping[str, Any]) -> str:
        """What makes a request the same as another: everything that decides its result, keyed with the salt."""
        text = json.dumps(plain(request), sort_keys=True, ensure_ascii=False).encode()
        return hmac.new(self.salt, text, hashlib.sha256).hexdigest()

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
            verify(self.receipt)
        except IntegrityError as e:
            raise IntegrityError(f"{e} The folder was changed after its receipt was written.") from e
        return receipt


def _lock(handle: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # pragma: no cover  where there is no such lock, hard links still refuse a second writer
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        raise ResourceError(f"Another run is at work in {path}. Wait for it, or choose another folder.") from e


def inputs_of(case: Case) -> dict[str, Path]:
    """Every file and folder that a case reads, by the field that names it."""
    named = {name: getattr(case, name) for name in ("weights", "forget", "start", "reference", "memory", "tutors")}
    for name in ("model", "data", "test", "validation", "core", "loss"):
        spec = getattr(case, name)
        if spec is not None:
            place = spec if spec.endswith(".npz") else spec.rpartition(":")[0]
            named[name] = Path(place) if place.endswith((".py", ".npz")) else None
    return {name: path for name, path in named.items() if path is not None and path.exists()}


def digests_of(inputs: Mapping[str, Path]) -> dict[str, Any]:
    """The SHA-256 of each file; of a folder, that of each file in it."""
    found: dict[str, Any] = {}
    for name, path in inputs.items():
        found[name] = (
            {p.name: sha256(p) for p in sorted(path.iterdir()) if p.is_file()} if path.is_dir() else sha256(path)
        )
    return found
