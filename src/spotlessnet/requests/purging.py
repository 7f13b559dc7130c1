"""Destroy what could still open a receipt's commitments, once it is due."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from spotlessnet.core.errors import DataError
from spotlessnet.requests.folder import RECEIPT, Private, locked
from spotlessnet.requests.serving import REFUSAL
from spotlessnet.store.receipts import read_receipt, verify


@dataclass(frozen=True)
class Purged:
    """What became of the private part of one request.

    **Arguments:**

    - `due`: when it will be due, where it was kept.
    - `files`: what was destroyed.
    """

    folder: Path
    status: Literal["purged", "purged before", "kept"]
    due: datetime | None = None
    files: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """For programs."""
        told: dict[str, Any] = {"folder": self.folder, "status": self.status}
        if self.due is not None:
            told["due"] = self.due.isoformat()
        return told | ({"files": list(self.files)} if self.status == "purged" else {})

    def __str__(self) -> str:
        if self.status == "purged before":
            return f"purged before {self.folder}"
        if self.due is not None:
            return f"kept {self.folder / 'private'}, due on {self.due.date()}"
        return f"purged {self.folder / 'private'}: {', '.join(self.files) or 'nothing left in it'}"


def purge_request(folder: Path, *, at_once: bool = False) -> Purged:
    """Destroy the folder `private` of a request whose date has come; `at_once` whenever it is due."""
    private = Private(folder)
    if private.is_purged:
        return Purged(folder, "purged before")
    # A link would lead the overwriting to files that no request wrote.
    if not private.path.is_dir() or private.path.is_symlink():
        raise DataError(f"{folder} holds no folder `private`, so no request wrote it. Give the --out of a request.")
    now = datetime.now(UTC)
    due = None if at_once else due_date(private)
    if due is not None and due > now:
        return Purged(folder, "kept", due)
    with locked(private.path, folder):
        return Purged(folder, "purged", files=tuple(private.destroy(now)))


def due_date(private: Private) -> datetime:
    """The date of the receipt, or of the refusal; where neither was written, that of the folder itself."""
    file = next((private.out / name for name in (RECEIPT, REFUSAL) if (private.out / name).is_file()), None)
    if file is None:
        return private.destroy_after
    # Nothing seals the date in the folder, but a seal covers the receipt's.
    verify(file, private.salt)
    return private.due(read_receipt(file))
