"""The output folder of one request: claimed by one run at a time, never mixed with another request's files.

Its folder `private` holds what can open the receipt's commitments, says when that is due to go, and is destroyed whole.
"""

import hmac
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spotlessnet.core.data import FORMATS, GoneRows
from spotlessnet.core.errors import DataError, IntegrityError, ResourceError, count_of
from spotlessnet.core.files import opened, overwrite, overwrite_leftovers, read_whole, sha256, sweep, write_whole
from spotlessnet.requests.leaving import clear
from spotlessnet.store.checkpoints import AFTER, SINGLE, read_metadata
from spotlessnet.store.receipts import (
    as_json,
    digest_of,
    due_in,
    identity_of,
    keyed,
    loads_once,
    plain,
    read_receipt,
    verify,
)

RECEIPT = "receipt.json"
BUNDLE = "receipt.bundle.json"
"""Stands beside the receipt once it is signed."""

SCRUBBED, PRETRAINED = "scrubbed.safetensors", "pretrained"
PRIVATE, SALT, REQUEST, DUE = "private", "salt", "request.json", "destroy-after"
ROWS = "rows.json"
TRAININGS = "kept-trainings"

DIAGNOSTICS = "diagnostics.json"
"""What was measured with all digits, after the name of the receipt that has it coarsely: `receipt-diagnostics.json`."""

TELLING = ("report.html", "rows.jsonl", "rows.csv")
"""Beside the receipt, and with all digits what networks say of forgotten rows: for the owner alone, until the purge."""

PURGED = "purged.json"
"""Stands beside the receipt once the private material is gone."""

SALT_BYTES = 32
LONGEST_DATE, LONGEST_NOTE, LONGEST_REQUEST = 2**8, 2**20, 2**28  # the last names every row
"""Bytes of what `private` and `purged.json` may hold: others may have put a pipe or gigabytes there."""

LOOK = "Look into who changed the folder."
DAYS = 90
"""How long the private material is kept unless a person says otherwise."""

NOT_REACHED = (
    "Each file was overwritten once and unlinked. Copies are not reached: backups, snapshots, journals, the spare "
    "cells of flash memory, and file systems that write to a new place."
)


@dataclass(frozen=True)
class Private:
    """The folder `private` beside a receipt; whoever holds it can check guesses against the receipt."""

    out: Path

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.out / PRIVATE

    @property
    def salt(self) -> bytes:
        """Thirty-two random bytes that key every commitment of the receipt, and its seal."""
        try:
            with opened(self.path / SALT, "salt") as stream:
                found = stream.read(SALT_BYTES + 1)
                size = os.fstat(stream.fileno()).st_size
        except OSError as e:
            raise ResourceError(f"{self.path / SALT} cannot be read ({e.strerror or e}).") from e
        if len(found) != SALT_BYTES:
            raise DataError(f"{self.path / SALT} must hold {SALT_BYTES} bytes, but holds {size}. It was damaged.")
        return found

    @property
    def has_salt(self) -> bool:
        """Whether commitments can still be opened."""
        return (self.path / SALT).is_file()

    @property
    def destroy_after(self) -> datetime:
        """When it is due to be destroyed."""
        try:
            text = read_whole(self.path / DUE, "date", LONGEST_DATE).decode().strip()
            return datetime.fromisoformat(text).astimezone(UTC)
        except (OSError, ValueError, OverflowError) as e:
            raise DataError(
                f"{self.path / DUE} does not say when {self.path} is due. `spotless purge --now` destroys it today."
            ) from e

    def due(self, receipt: Mapping[str, Any]) -> datetime:
        """When a receipt says that it is due; the file in here, which nothing seals, must say the same."""
        told = datetime.fromisoformat(receipt["predicate"]["private"]["destroy_after"]).astimezone(UTC)
        if self.destroy_after != told:
            raise IntegrityError(
                f"{self.path / DUE} must say what the receipt says, {told.isoformat()}, but was changed. Put that date "
                "back, or destroy the folder today with `spotless purge --now`."
            )
        return told

    def begin(self, days: int) -> None:
        """Make salt and date, unless an earlier run of the request made them."""
        if not self.has_salt:
            write_whole(self.path / SALT, secrets.token_bytes(SALT_BYTES))
        if not (self.path / DUE).is_file():
            write_whole(self.path / DUE, due_in(days).isoformat(timespec="seconds").encode() + b"\n")

    def keep_request(self, request: Mapping[str, Any]) -> None:
        """Keep what the receipt's identity was made from; it names files, so it stays in here."""
        text = json.dumps(request, indent=2, sort_keys=True)
        write_whole(self.path / REQUEST, text.encode() + b"\n", replace=True)

    def request(self) -> Any:
        """What `keep_request` kept, or `None`."""
        try:
            return loads_once(read_whole(self.path / REQUEST, "request", LONGEST_REQUEST))
        except (OSError, ValueError, RecursionError):
            return None

    def keep_diagnostics(self, diagnostics: Mapping[str, Any], receipt: str = RECEIPT) -> None:
        """Keep all digits of what was measured; with them a guess could be confirmed, so they stay in here."""
        write_whole(self._diagnostics(receipt), as_json(plain(diagnostics)), replace=True)

    def diagnostics(self, receipt: str = RECEIPT) -> dict[str, Any] | None:
        """What `keep_diagnostics` kept beside a receipt of this name, or `None`."""
        try:
            found = loads_once(read_whole(self._diagnostics(receipt), "diagnostics", LONGEST_REQUEST))
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def keep_rows(self, gone: GoneRows, weights: Path | None) -> None:
        """Keep keyed digests of the rows that went, by which later requests see that they are still in their data.

        **Arguments:**

        - `weights`: the network that the request was given; where it follows another request, that one's rows are
          told in its own folder.
        """
        digests = {name: {one.hex(): listed[one] for one in sorted(listed)} for name, listed in gone.digests.items()}
        before = ""
        if weights is not None and follows_request(weights):
            before = os.path.relpath(weights.resolve().parent, self.out.resolve())
        told = {"format": gone.called, "digests": digests, "before": before}
        self.keep_sealed(ROWS, json.dumps(told))

    def rows(self) -> tuple[GoneRows, str]:
        """What `keep_rows` kept: the rows, and the folder of the request before, if any; else a `ValueError`."""
        told = json.loads(self.sealed(ROWS, LONGEST_REQUEST))
        try:
            digests = {name: {bytes.fromhex(one): k for one, k in told["digests"][name].items()} for name in FORMATS}
            called, before = told["format"], told["before"]
        except (KeyError, TypeError, AttributeError) as e:
            raise ValueError("the rows are told in another way") from e
        are_counts = all(type(k) is int and k >= 0 for listed in digests.values() for k in listed.values())
        if called not in digests or not are_counts or type(before) is not str or "\0" in before:
            raise ValueError("the rows are told in another way")
        return GoneRows(self.salt, called, digests), before

    def keep_trainings(self, folder: Path) -> None:
        """Note where an audit keeps its networks, which know the rows: whoever purges this is told of them."""
        place = os.path.relpath(folder.resolve(), self.out.resolve())
        write_whole(self.path / TRAININGS, os.fsencode(place), replace=True)

    def keep_sealed(self, name: str, text: str) -> None:
        """Keep a line of text with a seal that only this request's salt makes."""
        write_whole(self.path / name, f"{text}\n{keyed(self.salt, name, text)}\n".encode(), replace=True)

    def sealed(self, name: str, longest: int) -> str:
        """What `keep_sealed` kept; a `ValueError` where it was damaged, or another request wrote it."""
        text, seal = read_whole(self.path / name, "note", longest).decode().splitlines()
        if not hmac.compare_digest(seal.encode(), keyed(self.salt, name, text).encode()):
            raise ValueError("the seal of the request does not fit")
        return text

    def _diagnostics(self, receipt: str) -> Path:
        return self.path / f"{Path(receipt).stem}-{DIAGNOSTICS}"

    @property
    def is_purged(self) -> bool:
        """Whether it was destroyed, and that was written down for the receipt that lies here."""
        if self.path.exists() or not (self.out / PURGED).is_file():
            return False
        self.check_purged()
        return True

    def check_purged(self) -> list[str]:
        """What `purged.json` says is gone; raise unless it is such as `note_purged` writes, for this receipt."""
        path = self.out / PURGED
        try:
            told = loads_once(read_whole(path, "note", LONGEST_NOTE))
            is_one = told.keys() == {"purged", "files", "reach", "receipt"}
            is_one = is_one and datetime.fromisoformat(told["purged"]).tzinfo is not None
            is_one = is_one and isinstance(told["files"], list) and all(isinstance(name, str) for name in told["files"])
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as e:
            raise IntegrityError(f"{path} is not what `spotless purge` writes ({type(e).__name__}). {LOOK}") from e
        if not is_one:
            raise IntegrityError(f"{path} is not what `spotless purge` writes: parts are missing or others. {LOOK}")
        if told["receipt"] != self._receipt_digest():
            raise IntegrityError(f"{path} was written for another receipt than the one beside it. {LOOK}")
        return list(told["files"])

    def note_purged(self, names: list[str], now: datetime) -> None:
        """Write down what was destroyed, after what was before; nothing new leaves the note alone."""
        before: list[str] = []
        with suppress(IntegrityError):
            before = self.check_purged()
        new = [name for name in names if name not in before]
        if new or not before:
            told = {"purged": now.isoformat(timespec="seconds"), "files": before + new}
            told |= {"reach": NOT_REACHED, "receipt": self._receipt_digest()}
            write_whole(self.out / PURGED, json.dumps(told, indent=2).encode() + b"\n", replace=True, shared=True)

    def _receipt_digest(self) -> str:
        return sha256(self.out / RECEIPT) if (self.out / RECEIPT).is_file() else "none"

    def destroy(self, now: datetime) -> list[str]:
        """Overwrite and unlink every file in it and what tells of the rows beside it, say so, and give the names."""
        beside = [self.out / name for name in TELLING if os.path.lexists(self.out / name)]
        files = sorted(p for p in self.path.rglob("*") if p.is_symlink() or not p.is_dir())
        names = [str(p.relative_to(self.path)) for p in files] + [p.name for p in beside]
        try:
            for path in [*beside, *files]:
                overwrite(path)
            names += overwrite_leftovers(self.out)
            # The folder goes last: a run that was killed before leaves it, and is done again.
            self.note_purged(names, now)
            for folder in sorted((p for p in self.path.rglob("*") if p.is_dir()), reverse=True):
                folder.rmdir()
            self.path.rmdir()
        except OSError as e:
            raise ResourceError(
                f"{self.path} could not be destroyed whole ({e.strerror or e}). Some of it is left; run it again."
            ) from e
        return names


@dataclass(frozen=True)
class Folder:
    """Where a request's files go. The salt in it makes commitments that nobody can guess; keep it private.

    **Arguments:**

    - `again`: whether files of an earlier, unfinished run of the same request may be replaced.
    - `days`: until the private material is due to be destroyed.
    - `resumes`: whether the command that writes here has a flag --resume.
    """

    path: Path
    again: bool
    days: int = DAYS
    resumes: bool = True

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
                f"--out {self.path} holds {count_of(len(holds), 'file')} already, and nothing is ever overwritten. "
                "Choose another folder, or --resume the request that began there."
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
        private = self.private.path
        made = not self.path.exists()
        begun = private.exists()
        try:
            private.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as e:
            raise ResourceError(f"--out {self.path} cannot be made ({e.strerror}). Choose another folder.") from e
        with locked(private, self.path):
            self.sweep()
            self.private.begin(self.days)
            try:
                yield
            except BaseException as e:
                if not self.receipt.is_file():
                    keep = begun or (private / TRAININGS).exists()
                    clear(self.path, e, made=made, keep=keep, resumes=self.resumes)
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


def follows_request(weights: Path | None) -> bool:
    """Whether these weights are what a request left: their file says so, or a receipt beside them.

    The file's own word goes wherever it is copied to and whatever it is called. Folders of Hugging Face and files of
    earlier versions have none: the receipt names them, or their digest.
    """
    if weights is None:
        return False
    real = weights.resolve()
    file = real / SINGLE if real.is_dir() else real
    told = read_metadata(file) if file.suffix == ".safetensors" and file.is_file() else {}
    if told.get(AFTER) == "1":
        return True
    receipt = real.parent / RECEIPT
    if not receipt.is_file():
        return False
    if real.name in (SCRUBBED, PRETRAINED):
        return True
    try:
        written = {subject["digest"]["sha256"] for subject in read_receipt(receipt)["subject"]}
    except DataError:  # of something else: the name is a common one
        return False
    return digest_of(real) in written
