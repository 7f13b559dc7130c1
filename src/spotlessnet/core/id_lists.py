"""Forget lists: ids from a csv, json, jsonl or txt file."""

import csv
import io
import json
import re
from collections import Counter
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

# fmt: off
HEADERS = {
    "id", "identifier", "uuid", "guid", "key", "row", "name", "username", "userid", "person", "people", "user",
    "customer", "client", "member", "patient", "subject", "email", "mail",
}
# fmt: on
"""Words, also with an s, that head a csv file's only column; after any other a misspelt first id would go unnoticed."""


@dataclass(frozen=True)
class Listing:
    """What a file lists.

    **Arguments:**

    - `comments`: lines that were skipped.
    - `may_have_header`: the first id may be the name of a csv file's only column; the data tell.
    - `column`: the column of ids that was asked for.
    """

    ids: list[str]
    comments: int = 0
    may_have_header: bool = False
    column: str = "id"

    def without_header(self, known: set[str]) -> list[str]:
        """The ids, less a first line that heads a column and that no row has."""
        first, rest = self.ids[:1], self.ids[1:]
        is_header = self.may_have_header and rest and first[0] not in known
        if not is_header or not self._is_head(first[0]):
            return self.ids
        # Nobody need name the usual column; whoever names another means it.
        if self.column not in ("id", "row", first[0]) and first[0].lower() != self.column.lower():
            raise DataError(
                f"The forget list has the column {first[0][:40]!r} alone, but {self.column!r} was named. Name that "
                "one, if it holds the ids."
            )
        return rest

    def hint(self, missing: str) -> str:
        """Why the first id that no row has may not be one."""
        if ";" in missing:
            other = "" if self.column in ("id", "row") else f", and none in the first line is {self.column!r}"
            return f" Cells stand apart by semicolons{other}: name the column of ids."
        if self.may_have_header and missing == self.ids[0]:
            taken = f"The first line, {missing[:40]!r}, was taken for an id"
            return f" {taken}: if it is the column's name, write {self.column!r} in its place."
        return ""

    def _is_head(self, text: str) -> bool:
        parts = [part.removesuffix("s") for part in re.split("[ _-]", text.lower())]
        return text.lower() == self.column.lower() or (len(parts) <= 2 and HEADERS.issuperset(parts))


def read_ids(path: Path, column: str = "id") -> list[str]:
    """The ids that a csv, json, jsonl or txt file lists, as `read_list` reads them."""
    return read_list(path, column).ids


def listed_ids(path: Path, column: str) -> list[str]:
    """The ids of a list in the one spelling that a receipt commits to; row numbers as plain numbers."""
    listed = read_ids(path, column)
    if column != "row":
        return listed
    # Digits alone: Python also reads `1_0` as ten and digits of other scripts, which nobody may have meant.
    wrong = next((text for text in listed if not re.fullmatch("-?[0-9]{1,1000}", text)), None)
    if wrong is not None:
        raise DataError(
            f"With --id-column row the list {path} must hold row numbers, but {wrong[:40]!r} is not a whole number in "
            "the digits 0 to 9."
        )
    return [str(int(text)) for text in listed]


def read_list(path: Path, column: str = "id") -> Listing:
    """A csv, json, jsonl or txt file of ids.

    Text: one id a line; a line that begins with `#` is a comment, and anywhere else `#` is part of the id. Csv: the
    named column, or the only one; each line has as many cells as the first. Cells stand apart by commas, or by
    semicolons or tabs where the first line has none of them and names the column. Where the only one has another name,
    that is one of `HEADERS` (`people`, `user_id`), or it is an id. Json: a list of ids or of objects with that name,
    one list in one file. Space around an id does not count.
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


def _lines(text: str) -> list[str]:
    """As editors and other programs count them; Python also ends one at characters that an id may hold (U+2028)."""
    return text.removesuffix("\n").split("\n") if text else []


def _read_text(text: str, path: Path, column: str) -> Listing:
    lines = [line.strip() for line in _lines(text)]
    if any("\r" in line for line in lines):
        raise DataError(
            f"Lines of the forget list {path} must end in \\n or \\r\\n, but some end in \\r alone. Save it anew."
        )
    names = [line for line in lines if not line.startswith("#")]
    return Listing(names, comments=len(lines) - len(names))


def _read_csv(text: str, path: Path, column: str) -> Listing:
    # A quoted id may hold a line's end. Strict: a quote that is never closed would swallow all ids after it.
    table = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text, column), strict=True)
    try:
        header = [cell.strip() for cell in next(table, [])]
        _check_header(header, path)
        if column in header or len(header) <= 1:
            return _one_column(table, header, path, column)
    except csv.Error as e:
        raise DataError(f"The forget list {path} is not a readable csv file ({e}).") from e
    raise DataError(
        f"The forget list {path} has the columns {', '.join(header[:SHOWN])}, but none is {column!r}. "
        "Name the column that holds the ids: `--id-column`, in Python `id_column=`."
    )


def _delimiter(text: str, column: str) -> str:
    """What stands between cells: a comma, or what some spreadsheets write, where the column is so found by its name."""
    first = text.partition("\n")[0]
    if "," in first:
        return ","
    cells = {mark: [cell.strip().strip('"') for cell in first.split(mark)] for mark in (";", "\t") if mark in first}
    return next((mark for mark, names in cells.items() if column in names), ",")


def _check_header(header: list[str], path: Path) -> None:
    if any("\n" in cell or "\r" in cell for cell in header):
        raise DataError(
            f"The first line of the forget list {path} must be one line, but a quote in it is closed on a later one: "
            "ids would be taken for a column's name. Close it."
        )
    twice = [name for name, count in Counter(header).items() if name and count > 1]
    if twice:
        raise DataError(
            f"Each column of the forget list {path} must have a name of its own, but {twice[0][:40]!r} stands twice. "
            "Rename one."
        )


def _one_column(table: Any, header: list[str], path: Path, column: str) -> Listing:
    """The column of that name, or the only one."""
    is_named = column in header
    width = max(1, len(header))
    place = header.index(column) if is_named else 0
    found = []
    for row in table:
        # With more cells or fewer, nobody knows in which of them the id stands.
        if len(row) != width and row:
            raise DataError(
                f"Each line of the forget list {path} must have as many cells as its first, {width}, but line "
                f"{table.line_num} has {len(row)}. Put an id that holds a comma into quotes."
            )
        found += [row[place].strip()] if row else []
    listed = found if is_named else header + found
    return Listing(listed, may_have_header=bool(header) and not is_named, column=column)


def _read_json(text: str, path: Path, column: str) -> Listing:
    try:
        listed = json.loads(text, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as e:
        raise DataError(f"The forget list {path} is not valid JSON ({_why(e)}). Write a list of ids.") from e
    if isinstance(listed, dict):
        lists = [name for name, value in listed.items() if isinstance(value, list)]
        if len(lists) > 1:
            raise DataError(
                f"The forget list {path} must hold one list, but holds {len(lists)}: {', '.join(lists)[:60]}. Nobody "
                "knows which was meant; leave one."
            )
        listed = listed.get(column, listed.get("ids"))
    if not isinstance(listed, list):
        raise DataError(f"The forget list {path} must hold a JSON list of ids, or an object with a list {column!r}.")
    return Listing(_from_json(listed, path, column))


def _read_json_lines(text: str, path: Path, column: str) -> Listing:
    entries = []
    for number, line in enumerate(_lines(text), start=1):
        if line.strip():
            try:
                entries.append(json.loads(line, object_pairs_hook=_each_once))
            except (ValueError, RecursionError) as e:
                raise DataError(f"Line {number} of the forget list {path} is not valid JSON ({_why(e)}).") from e
    return Listing(_from_json(entries, path, column))


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def _why(error: Exception) -> str:
    return str(error) if type(error) is ValueError and "stands twice" in str(error) else type(error).__name__


def _names(entry: dict[str, Any]) -> str:
    """The first names of an object; in quotes, for they may hold anything."""
    return ", ".join(f"{name[:40]!r}" for name in list(entry)[:SHOWN]) or "nothing"


def _from_json(entries: list[Any], path: Path, column: str) -> list[str]:
    without = next((entry for entry in entries if isinstance(entry, dict) and column not in entry), None)
    if without is not None:
        raise DataError(
            f"The forget list {path} has an object with {_names(without)}, but without {column!r}. Name what "
            "holds the ids: `--id-column`, in Python `id_column=`."
        )
    found = [entry[column] if isinstance(entry, dict) else entry for entry in entries]
    strange = next((entry for entry in found if isinstance(entry, bool) or not isinstance(entry, (str, int))), "")
    if strange != "":
        raise DataError(
            f"The forget list {path} must name ids as text or whole numbers, or objects with {column!r}, but holds "
            f"{str(strange)[:40]!r}."
        )
    return spelled(found)
