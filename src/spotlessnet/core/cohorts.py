"""Cohorts: ways to say which rows must go. Each is a small value that turns data into a `Split`."""

import csv
import io
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError
from spotlessnet.core.files import read_whole
from spotlessnet.core.split import Request, Split

SHOWN = 5
"""How many names an error message lists before it only counts."""


LONGEST = 40 * 2**20
"""Bytes of a forget list, a million ids of the usual length; a parsed list takes twenty times as much memory."""


class Cohort(ABC):
    """A way to choose rows: `cohort(train, test)` is a `Split`."""

    mislabelled: bool = False

    @abstractmethod
    def choose(self, train: Data) -> tuple[Tensor, Request]:
        """Positions of the rows that must go, and what was found."""

    def __call__(self, train: Any, test: Any = None, *, validation: Any = None, core: Any = None) -> Split:
        """Split `train`; the other data is passed on."""
        train = Data.of(train)
        positions, request = self.choose(train)
        forget = train.select(positions)
        return Split(
            forget=forget,
            kept=train.without(forget),
            test=None if test is None else Data.of(test),
            validation=None if validation is None else Data.of(validation),
            core=None if core is None else Data.of(core),
            request=request,
        )


@dataclass(frozen=True)
class whole_class(Cohort):  # noqa: N801  reads as a verb where it is used
    """Every row of one class."""

    label: int

    def choose(self, train: Data) -> tuple[Tensor, Request]:
        positions = _of_class(train, self.label)
        return positions, Request(f"all rows of class {self.label}", matched=len(positions))


@dataclass(frozen=True)
class some_of_class(Cohort):  # noqa: N801
    """`count` rows of one class, drawn with a seed."""

    label: int
    count: int
    seed: int = 0

    def choose(self, train: Data) -> tuple[Tensor, Request]:
        positions = _of_class(train, self.label)
        if not 0 <= self.count <= len(positions):
            raise DataError(
                f"Class {self.label} has {len(positions)} rows, but {self.count} were asked for. Ask for at most "
                f"{len(positions)}, or use whole_class({self.label})."
            )
        order = torch.randperm(len(positions), generator=torch.Generator().manual_seed(self.seed))
        # In the order of the data, so that the draw does not show in the order of the rows.
        chosen = positions[order[: self.count]].sort().values
        return chosen, Request(f"{self.count} rows of class {self.label}", matched=self.count)


class rows(Cohort):  # noqa: N801
    """Rows by their number in the training data.

    **Arguments:**

    - `numbers`: row numbers, counted from zero.
    - `mislabelled`: say so if these rows carry wrong labels; methods that compare them with held-out rows then refuse.
    """

    def __init__(self, numbers: Iterable[int], *, mislabelled: bool = False) -> None:
        self.numbers = [int(number) for number in numbers]
        self.mislabelled = mislabelled

    def choose(self, train: Data) -> tuple[Tensor, Request]:
        place = {row: i for i, row in enumerate(train.rows.tolist())}
        positions = sorted({place[number] for number in self.numbers if number in place})
        names = [str(number) for number in self.numbers]
        known = {str(number) for number in self.numbers if number in place}
        request = _matched(
            "row numbers", names, known, len(positions), allow_missing=False, mislabelled=self.mislabelled
        )
        return torch.tensor(positions, dtype=torch.long), request


class ids(Cohort):  # noqa: N801
    """Rows by the value of an id column; the list may be given or read from a csv, json, jsonl or txt file.

    An id that many rows share (a person with several images) removes all of them.

    **Arguments:**

    - `wanted`: ids, or the path of a file that lists them.
    - `column`: the column of the data, and of a csv or json file, that holds the ids.
    - `allow_missing`: go on when some ids match no row; they are counted in the request.
    """

    def __init__(
        self,
        wanted: str | Path | Iterable[Any],
        *,
        column: str = "id",
        allow_missing: bool = False,
        mislabelled: bool = False,
    ) -> None:
        listing = read_list(Path(wanted), column) if isinstance(wanted, (str, Path)) else Listing(spelled(wanted))
        self.wanted, self.listing = listing.ids, listing
        self.column, self.allow_missing, self.mislabelled = column, allow_missing, mislabelled

    def choose(self, train: Data) -> tuple[Tensor, Request]:
        names = spelled(train.column(self.column))
        listed = self.listing.without_header(set(names))
        wanted = set(listed)
        positions = [position for position, name in enumerate(names) if name in wanted]
        request = _matched(
            f"ids in column {self.column!r}",
            listed,
            {names[position] for position in positions},
            len(positions),
            allow_missing=self.allow_missing,
            mislabelled=self.mislabelled,
        )
        return torch.tensor(positions, dtype=torch.long), replace(request, comments=self.listing.comments)


@dataclass(frozen=True)
class where(Cohort):  # noqa: N801
    """Every row whose column holds a value: `where("person", "n000129")`."""

    column: str
    value: Any

    def choose(self, train: Data) -> tuple[Tensor, Request]:
        [wanted] = spelled([self.value])
        positions = [i for i, name in enumerate(spelled(train.column(self.column))) if name == wanted]
        if not positions:
            raise DataError(
                f"No row has {self.value!r} in column {self.column!r}, so there is nothing to forget. "
                "Check the value's spelling and type."
            )
        text = f"rows where {self.column} has the value asked for"
        return torch.tensor(positions, dtype=torch.long), Request(text, matched=len(positions))


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


def spelled(values: Iterable[Any]) -> list[str]:
    """One spelling for ids, whether they came as numbers, numpy scalars, tensors or text."""
    # Most ids are text, and there may be millions.
    return [
        value.strip() if type(value) is str else str(value.item() if hasattr(value, "item") else value).strip()
        for value in values
    ]


def _of_class(train: Data, label: int) -> Tensor:
    labels = train.labels()
    if labels.ndim != 1:
        raise DataError(
            f"Choosing by class needs one label a row, but labels have shape {tuple(labels.shape)}. "
            "Use `rows` or `ids`."
        )
    positions = (labels == label).nonzero().squeeze(1)
    if not len(positions):
        present = ", ".join(str(v) for v in labels.unique().tolist()[:20])
        raise DataError(f"No training row has class {label}. The classes are {present}.")
    return positions


def _matched(
    what: str, wanted: Sequence[str], known: set[str], matched: int, *, allow_missing: bool, mislabelled: bool
) -> Request:
    counts = Counter(wanted)
    missing = [name for name in counts if name not in known]
    duplicates = [name for name, n in counts.items() if n > 1]
    if missing and not allow_missing:
        raise DataError(
            f"Of {len(counts)} {what}, {len(counts) - len(missing)} matched, {len(missing)} missing "
            f"({_some(missing)}), {len(duplicates)} duplicates{f' ({_some(duplicates)})' if duplicates else ''}. "
            "Correct the list, or allow missing ids."
        )
    if wanted and not matched:
        raise DataError(
            f"None of {len(counts)} {what} matched a row ({_some(missing)}), so there is nothing to forget. Check the "
            "list and the column."
        )
    return Request(what, matched, len(missing), sum(counts.values()) - len(counts), mislabelled)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name[:40]) for name in names[:SHOWN])
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
