"""Forget lists: ids from a csv, json, jsonl or txt file."""

import csv
import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spotlessnet.core.data import spelled
from spotlessnet.core.errors import DataError
from spotlessnet.core.files import read_whole

SHOWN = 5
"""How many names an error message lists before it only counts."""

LONGEST = 40 * 2**20
"""Bytes of a forget list, a million ids of the usual length; a parsed list takes twenty times as much memory."""


@dataclass(frozen=True)
class Listing:
    """What a file lists.

    **Arguments:**

    - `comments`: lines that were skipped.
    - `may_have_header`: the first id may be the name of a csv file's only column; the data tell.
    """

    ids: list[str]
    comments: int = 0
    may_have_header: bool = False

    def without_header(self, known: set[str]) -> list[str]:
        """The ids, less a first line that no row has while rows have others of the list."""
        first, rest = self.ids[:1], self.ids[1:]
        is_header = self.may_have_header and first and first[0] not in known and any(name in known for name in rest)
        return rest if is_header else self.ids


def read_ids(path: Path, column: str = "id") -> list[str]:
    """The ids that a csv, json, jsonl or txt file lists, as `read_list` reads them."""
    return read_list(path, column).ids


def read_list(path: Path, column: str = "id") -> Listing:
    """A csv, json, jsonl or txt file of ids.

    Text: one id a line; a line that begins with `#` is a comment, and anywhere else `#` is part of the id. Csv: the
    named column, or the only one; the name of that one is not an id. Json: a list of
    ids or of objects with that name. Space around an id does not count.
    """
    if not path.exists():
        raise DataError(f"There is no forget list at {path}. Give the path of a csv, json, jsonl or txt file.")
    try:
        text = read_whole(path, "forget list", LONGEST).decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise DataError(
            f"The forget list {path} must be UTF-8 text, but byte {e.start} is not. Save it as UTF-8."
        ) from e
    readers = {".csv": _read_csv, ".json": _read_json, ".jsonl": _read_json_lines, ".txt": _read_text}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"The forget list {path} must end in .csv, .json, .jsonl or .txt, but ends in {path.suffix!r}.")
    listing = reader(text, path, column)
    found = [name for name in listing.ids if name]
    if not found:
        raise DataError(f"The forget list {path} names no id. Put one id on each line, or a list of ids.")
    return replace(listing, ids=found, may_have_header=listing.may_have_header and found[0] == listing.ids[0])


def _read_text(text: str, path: Path, column: str) -> Listing:
    lines = [line.strip() for line in text.splitlines()]
    names = [line for line in lines if not line.startswith("#")]
    return Listing(names, comments=len(lines) - len(names))


def _read_csv(text: str, path: Path, column: str) -> Listing:
    table = csv.reader(io.StringIO(text, newline=""))  # a quoted id may hold a line's end
    try:
        header = [cell.strip() for cell in next(table, [])]
        if column in header:
            place = header.index(column)
            return Listing([row[place].strip() for row in table if len(row) > place])
        if len(header) <= 1:
            return Listing(header + [row[0].strip() for row in table if row], may_have_header=bool(header))
    except csv.Error as e:
        raise DataError(f"The forget list {path} is not a readable csv file ({e}).") from e
    raise DataError(
        f"The forget list {path} has the columns {', '.join(header[:SHOWN])}, but none is {column!r}. "
        "Name the column that holds the ids."
    )


def _read_json(text: str, path: Path, column: str) -> Listing:
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise DataError(f"The forget list {path} is not valid JSON ({type(e).__name__}). Write a list of ids.") from e
    if isinstance(listed, dict):
        listed = listed.get(column, listed.get("ids"))
    if not isinstance(listed, list):
        raise DataError(f"The forget list {path} must hold a JSON list of ids, or an object with a list {column!r}.")
    return Listing(_from_json(listed, path, column))


def _read_json_lines(text: str, path: Path, column: str) -> Listing:
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                entries.append(json.loads(line))
            except (ValueError, RecursionError) as e:
                raise DataError(f"Line {number} of the forget list {path} is not valid JSON.") from e
    return Listing(_from_json(entries, path, column))


def _from_json(entries: list[Any], path: Path, column: str) -> list[str]:
    found = [entry.get(column) if isinstance(entry, dict) else entry for entry in entries]
    strange = next((entry for entry in found if isinstance(entry, bool) or not isinstance(entry, (str, int))), "")
    if strange != "":
        raise DataError(
            f"The forget list {path} must name ids as text or whole numbers, or objects with {column!r}, but holds "
            f"{str(strange)[:40]!r}."
        )
    return spelled(found)
