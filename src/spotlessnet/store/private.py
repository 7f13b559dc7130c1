"""The private part of an output folder: what can open a receipt's commitments, when it is due to go, and its end."""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from spotlessnet.core.errors import DataError, IntegrityError, ResourceError
from spotlessnet.core.files import sha256, write_whole

PRIVATE, SALT, REQUEST, DUE = "private", "salt", "request.json", "destroy-after"
PURGED = "purged.json"
"""Stands beside the receipt once the private material is gone."""

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
            found = (self.path / SALT).read_bytes()
        except OSError as e:
            raise ResourceError(f"{self.path / SALT} cannot be read ({e.strerror}).") from e
        if len(found) != 32:
            raise DataError(f"{self.path / SALT} must hold 32 bytes, but holds {len(found)}. It was damaged.")
        return found

    @property
    def has_salt(self) -> bool:
        """Whether commitments can still be opened."""
        return (self.path / SALT).is_file()

    @property
    def destroy_after(self) -> datetime:
        """When it is due to be destroyed."""
        try:
            return datetime.fromisoformat((self.path / DUE).read_text().strip()).astimezone(UTC)
        except (OSError, ValueError) as e:
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
            write_whole(self.path / SALT, secrets.token_bytes(32))
        if not (self.path / DUE).is_file():
            due = datetime.now(UTC) + timedelta(days=days)
            write_whole(self.path / DUE, due.isoformat(timespec="seconds").encode() + b"\n")

    def keep_request(self, request: Mapping[str, Any]) -> None:
        """Keep what the receipt's identity was made from; it names files, so it stays in here."""
        text = json.dumps(request, indent=2, sort_keys=True)
        write_whole(self.path / REQUEST, text.encode() + b"\n", replace=True)

    def request(self) -> Any:
        """What `keep_request` kept, or `None`."""
        try:
            return json.loads((self.path / REQUEST).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None

    @property
    def is_purged(self) -> bool:
        """Whether it was destroyed, and that was written down."""
        return not self.path.exists() and (self.out / PURGED).is_file()

    def destroy(self, now: datetime) -> list[str]:
        """Overwrite and unlink every file in it, say so beside the receipt, and give the files' names."""
        files = sorted(p for p in self.path.rglob("*") if p.is_symlink() or not p.is_dir())
        names = [str(p.relative_to(self.path)) for p in files]
        try:
            for path in files:
                _overwrite(path)
            receipt = self.out / "receipt.json"
            told = {"purged": now.isoformat(timespec="seconds"), "files": names, "reach": NOT_REACHED}
            told["receipt"] = sha256(receipt) if receipt.is_file() else "none"
            # The folder goes last: a run that was killed before leaves it, and is done again.
            write_whole(self.out / PURGED, json.dumps(told, indent=2).encode() + b"\n", replace=True)
            for folder in sorted((p for p in self.path.rglob("*") if p.is_dir()), reverse=True):
                folder.rmdir()
            self.path.rmdir()
        except OSError as e:
            raise ResourceError(
                f"{self.path} could not be destroyed whole ({e.strerror or e}). Some of it is left; run it again."
            ) from e
        return names


def _overwrite(path: Path) -> None:
    if not path.is_symlink() and path.is_file():
        with path.open("r+b", buffering=0) as stream:
            left = path.stat().st_size
            while left > 0:
                left -= stream.write(secrets.token_bytes(min(left, 1 << 20))) or 0
            os.fsync(stream.fileno())
    path.unlink()
