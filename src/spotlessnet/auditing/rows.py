"""`Row`: one number that was measured, and the file that such rows are appended to."""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from spotlessnet.core.errors import DataError, ResourceError

Key = tuple[str, str, str, int]


@dataclass(frozen=True)
class Row:
    """One readout or bound of one method with one seed.

    **Arguments:**

    - `experiment`, `method`, `readout`, `seed`: what was measured; together they are the key.
    - `value`, `low`, `high`: the number and its interval, NaN where one look gives none.
    - `unit`, `ideal`: what the number is counted in, and whether it should be low, high or as retrained.
    - `seconds`, `memory`: what the **method** took: wall time, and peak memory in MiB above what was in use before.
    - `censored`: the value is a cap that was reached; the truth lies above.
    - `note`: what a reader must know.

    >>> Row("digits", "Fisher", "error on test", 0, 0.1, unit="share").key
    ('digits', 'Fisher', 'error on test', 0)
    """

    experiment: str
    method: str
    readout: str
    seed: int
    value: float
    low: float = math.nan
    high: float = math.nan
    unit: str = ""
    ideal: str = "as retrained"
    seconds: float = math.nan
    memory: float = math.nan
    censored: bool = False
    note: str = ""

    @property
    def key(self) -> Key:
        """What makes a row the same measurement as another."""
        return self.experiment, self.method, self.readout, self.seed

    def to_json(self) -> str:
        """One line of JSON. Numbers that JSON does not know are `null` (not measured) or `"inf"`, `"-inf"`."""
        return json.dumps({k: _plain(v) for k, v in asdict(self).items()}, ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_json(line: str) -> "Row":
        """The row that a line tells; fields it does not know are an error, fields it lacks have their defaults."""
        try:
            found = json.loads(line)
        except json.JSONDecodeError as e:
            raise DataError(f"A row must be one line of JSON, but got {line[:40]!r} ({e.msg}).") from e
        if not isinstance(found, dict):
            raise DataError(f"A row must be a JSON object, but got {line[:40]!r}.")
        unknown = set(found) - {field.name for field in fields(Row)}
        if unknown:
            raise DataError(f"A row has no field {sorted(unknown)[0]!r}. The file may be of another version.")
        try:
            return Row(**{name: _measured(name, value) for name, value in found.items()})
        except (TypeError, ValueError) as e:
            raise DataError(f"A row lacks a field or holds the wrong kind of value: {e}.") from e


NUMBERS = ("value", "low", "high", "seconds", "memory")


def append_rows(path: str | os.PathLike[str], rows: Iterable[Row]) -> None:
    """Add rows at the end of a file and flush them to the disk; what stands there is never rewritten."""
    append_lines(path, (row.to_json() for row in rows))


def append_lines(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
    """Add lines at the end of a file, all in one piece, and flush them to the disk."""
    path = Path(path)
    text = "".join(line + "\n" for line in lines)
    if not text:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            # A crash can leave half a line; the next row must not be glued to it.
            if file.tell() and not _ends_in_newline(file):
                text = "\n" + text
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as e:
        raise ResourceError(f"Rows could not be written to {path} ({e.strerror or e}). Choose another file.") from e


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """All rows of a file, in order; of a key that comes twice, the last. A file that is not there has none.

    A line that does not end is what an interrupted run leaves behind, and is left out.
    """
    path = Path(path)
    if not path.exists():
        return []
    found: dict[Key, Row] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if line.strip() and not _is_half(line):
            try:
                row = Row.from_json(line)
            except DataError as e:
                raise DataError(f"Line {number} of {path}: {e}") from e
            found[row.key] = row
    return list(found.values())


def _is_half(line: str) -> bool:
    """Whether a crash cut a line off: it opens an object and does not close it."""
    return line.startswith("{") and not line.rstrip().endswith("}")


def _ends_in_newline(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) == b"\n")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return None
        return "inf" if value > 0 else "-inf"
    return value


def _measured(name: str, value: Any) -> Any:
    if name in NUMBERS:
        return math.nan if value is None else float(value)
    if name == "seed" and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"seed must be a whole number, not {value!r}")
    return value
