"""Destroy what could still open a receipt's commitments, once it is due."""

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from spotlessnet.core.errors import DataError
from spotlessnet.core.files import overwrite, overwrite_leftovers, read_whole, write_whole
from spotlessnet.requests.folder import (
    LONGEST_NOTE,
    NOT_REACHED,
    PRIVATE,
    PURGED,
    RECEIPT,
    SCRUBBED,
    TELLING,
    TRAININGS,
    Private,
    locked,
)
from spotlessnet.requests.lineage import SUFFIX, Lineage
from spotlessnet.requests.recorded import RECORDS
from spotlessnet.requests.serving import FOLD_MODELS, REFUSAL, STATISTICS
from spotlessnet.store.receipts import loads_once, read_receipt, verify
from spotlessnet.store.training_record import INIT, RECORD, ROWS, read_record
from spotlessnet.training.kept import Kept

PRECOMPUTED = {STATISTICS: "statistics", FOLD_MODELS: "fold models"}

SUPERSEDED = (
    *(ROWS, SCRUBBED, INIT, RECORD, RECORD + SUFFIX),
    *(name + suffix for name in PRECOMPUTED for suffix in ("", SUFFIX)),
)
"""What a request wrote for the next one, until that was served, or `spotless precompute` for the first."""


def purged_on(private: Private) -> str:
    """The day on which the private part of a request was destroyed, as `purged.json` says."""
    private.check_purged()
    return str(loads_once(read_whole(private.out / PURGED, "note", LONGEST_NOTE))["purged"])[:10]


@dataclass(frozen=True)
class Purged:
    """What became of the private part of one request.

    **Arguments:**

    - `due`: when it will be due, where it was kept.
    - `files`: what was destroyed.
    - `still`: where the audit of the request keeps networks that know the rows; not destroyed with it, for the folder
      may be shared.
    - `part`: which part of the folder: `private` of a request, or all that a recorded training wrote.
    """

    folder: Path
    status: Literal["purged", "purged before", "kept"]
    due: datetime | None = None
    files: tuple[str, ...] = ()
    still: Path | None = None
    part: str = PRIVATE

    def record(self) -> dict[str, Any]:
        """For programs."""
        told: dict[str, Any] = {"folder": self.folder, "status": self.status}
        if self.due is not None:
            told["due"] = self.due.isoformat()
        if self.still is not None:
            told["also_destroy"] = self.still
        return told | ({"files": list(self.files)} if self.status == "purged" else {})

    def __str__(self) -> str:
        if self.status == "purged before":
            return f"purged before {self.folder}"
        if self.due is not None:
            return f"kept {self.folder / 'private'}, due on {self.due.date()}"
        also = "" if self.still is None else f"; networks that know the rows are kept in {self.still}: purge it too"
        outside = TELLING if not self.part else (*TELLING, *SUPERSEDED)
        inside = ", ".join(name for name in self.files if name not in outside) or "nothing left in it"
        beside = ", ".join(name for name in self.files if name in outside)
        return f"purged {self.folder / self.part}: {inside}{beside and f'; beside it: {beside}'}{also}"


@dataclass(frozen=True)
class PurgedTrainings(Purged):
    """What became of a folder of kept trainings."""

    def __str__(self) -> str:
        return f"purged {self.folder}: {len(self.files) - 1} kept trainings"


def purge_request(folder: Path, *, at_once: bool = False) -> Purged:
    """Destroy the folder `private` of a request whose date has come, and an audit's report and rows beside it.

    `at_once` whenever it is due.

    A folder of kept trainings is destroyed whenever it is named: they can be trained again.
    """
    kept = Kept(folder)
    if kept.is_one and not folder.is_symlink():
        return PurgedTrainings(folder, "purged", files=tuple(kept.destroy()))
    private = Private(folder)
    if private.is_purged:
        late = _purge_superseded(private)
        return Purged(folder, "purged", files=late, part="") if late else Purged(folder, "purged before")
    is_record = (folder / RECORD).is_file() and not folder.is_symlink()
    if is_record and not (folder / RECEIPT).is_file() and not private.path.exists():
        return _purge_records(folder)
    # A link would lead the overwriting to files that no request wrote.
    if not private.path.is_dir() or private.path.is_symlink():
        raise DataError(f"{folder} holds no folder `private`, so no request wrote it. Give the --out of a request.")
    now = datetime.now(UTC)
    due = None if at_once else due_date(private)
    if due is not None and due > now:
        return Purged(folder, "kept", due)
    with locked(private.path, folder):
        still = _trainings(private)
        files = tuple(private.destroy(now)) + _purge_superseded(private)
    return Purged(folder, "purged", files=files, still=still if still is not None and Kept(still).is_one else None)


def _trainings(private: Private) -> Path | None:
    """Where the request's audit keeps its networks, if that was noted."""
    try:
        told = os.fsdecode(bytes(read_whole(private.path / TRAININGS, "note", LONGEST_NOTE)))
        return Path(os.path.normpath(private.out / told))
    except (OSError, ValueError):
        return None


def _purge_superseded(private: Private) -> tuple[str, ...]:
    """Destroy what was written for a request once that was served from it: it knows what the request forgot.

    Written down first, so that `spotless verify` knows of it whenever this is interrupted.
    """
    folder = private.out
    if folder.is_symlink():
        return ()
    is_used = (folder / RECORD).is_file() and Lineage(folder / RECORD, RECORDS).is_used_up
    names = (_record_names(folder) if is_used else []) + _used_precomputed(folder)
    if names:
        private.note_purged(names, datetime.now(UTC))
    for name in names:
        overwrite(folder / name)
    return tuple(names)


def _used_precomputed(folder: Path) -> list[str]:
    """Statistics and fold models, both where one of them served a request: they are of the same network and rows."""
    found = {name: Lineage(folder / name, what) for name, what in PRECOMPUTED.items() if (folder / name).is_file()}
    used = {name for name, lineage in found.items() if lineage.is_used_up}
    if not used:
        return []
    # What tells that they were used goes last: a run that was killed before can be done again.
    names = [*sorted(found, key=used.__contains__), *(found[name].note.name for name in sorted(found))]
    return [name for name in names if (folder / name).exists()]


def _record_names(folder: Path) -> list[str]:
    """The record last but one and its note last: a run that was killed before can be done again."""
    names = (ROWS, read_record(folder).weights, INIT, RECORD, Lineage(folder / RECORD, RECORDS).note.name)
    return [name for name in names if (folder / name).exists()]


def _purge_records(folder: Path) -> Purged:
    """Destroy a recorded training that served a request: it knows what was forgotten, and serves no other."""
    lineage = Lineage(folder / RECORD, RECORDS)
    if not lineage.is_used_up:
        raise DataError(
            f"The training records {folder} have served no request, and the next one needs them. Nothing was destroyed."
        )
    found = _record_names(folder)
    for name in found:
        overwrite(folder / name)
    found += overwrite_leftovers(folder)
    told = {"purged": datetime.now(UTC).isoformat(timespec="seconds"), "files": found, "reach": NOT_REACHED}
    write_whole(folder / PURGED, json.dumps({**told, "receipt": "none"}, indent=2).encode() + b"\n", replace=True)
    return Purged(folder, "purged", files=tuple(found), part="")


def due_date(private: Private) -> datetime:
    """The date of the receipt, or of the refusal; where neither was written, that of the folder itself."""
    file = next((private.out / name for name in (RECEIPT, REFUSAL) if (private.out / name).is_file()), None)
    if file is None:
        return private.destroy_after
    # Nothing seals the date in the folder, but a seal covers the receipt's.
    verify(file, private.salt, gone=TELLING)  # a purge that was killed may have begun with them
    return private.due(read_receipt(file))
