"""`Split`: what is kept, what must go, and what tests them; and cohorts, the ways to say which rows must go.

A cohort is a small value that turns data into a `Split`: `whole_class(6)(train, test)`.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from spotlessnet.core.data import Data, spelled
from spotlessnet.core.errors import DataError, NeedError, SettingError, count_of
from spotlessnet.core.id_lists import SHOWN, Listing, read_list


@dataclass(frozen=True)
class Request:
    """What was asked for, and what was found: counts only, never the ids themselves.

    **Arguments:**

    - `duplicates`: ids that the list names more than once.
    - `comments`: lines of the list that were skipped.
    - `copies`: kept rows with the very inputs of a forgotten one; `None` where nobody looked.
    """

    text: str = "some rows"
    matched: int = 0
    missing: int = 0
    duplicates: int = 0
    mislabelled: bool = False
    copies: int | None = None
    comments: int = 0

    def __str__(self) -> str:
        found = f"{count_of(self.matched, 'row')} matched, {count_of(self.missing, 'id')} missing"
        said = f"{self.text}: {found}, {count_of(self.duplicates, 'duplicate')}"
        skipped = f", {self.comments} comment{'s' if self.comments > 1 else ''} skipped" if self.comments else ""
        return said + skipped


@dataclass(frozen=True, eq=False)
class Split:
    r"""$D = D_r \sqcup D_f$, with data that tests and, where there are, validation and core data.

    Usually made by a cohort: `whole_class(6)(train, test)`.

    **Arguments:**

    - `forget`: $D_f$, the rows that must go.
    - `kept`: $D_r$, the rows that stay; `None` when they are no longer at hand (statistics must then stand in).
    - `test`: rows that no scrub may read.
    - `validation`: held-out rows that a scrub may read to tune itself.
    - `core`: rows that will never be asked to go (mixed privacy).
    - `gone`: rows that earlier requests removed: they count neither as kept nor as forgotten.
    """

    forget: Data
    kept: Data | None = None
    test: Data | None = None
    validation: Data | None = None
    core: Data | None = None
    gone: Data | None = None
    request: Request = field(default_factory=Request)

    def __post_init__(self) -> None:
        if self.kept is not None and self.kept.source is self.forget.source:
            both = int(torch.isin(self.kept.rows, self.forget.rows).sum())
            if both:
                raise DataError(
                    f"{both} rows are both kept and forgotten. Each training row must be on one side of the split."
                )

    @property
    def retain(self) -> Data:
        """$D_r$; an error that names the remedy when it is not at hand."""
        if self.kept is None:
            raise NeedError(
                "This needs the retained data, but the split has none. Give `kept`, or a method that works from "
                "statistics (`precompute` writes them at the end of training)."
            )
        return self.kept

    @property
    def unasked(self) -> "Split":
        """The same rows as if nobody had asked: what must go is in no part of it, not even as a count."""
        return replace(self, forget=self.forget.select([]), request=Request("nothing"))

    @cached_property
    def whole(self) -> Data:
        """$D$, all rows that training saw and that were not removed before, in the order of their source."""
        if self.retain.source is self.forget.source:
            return self.retain.join(self.forget)
        return joined(self.retain, self.forget)

    @cached_property
    def first_trained_on(self) -> Data:
        """All rows that the original training saw, those of earlier requests too: the order that a coupled one follows.

        A permutation of fewer rows is another permutation, so `whole` gives that order for a first request only.
        """
        return self.whole if self.gone is None or not len(self.gone) else self.whole.join(self.gone)

    @cached_property
    def forgotten(self) -> Bool[Tensor, " N"]:
        """For each row of `whole`, whether it must go."""
        if self.retain.source is self.forget.source:
            return torch.isin(self.whole.rows, self.forget.rows)
        return torch.arange(len(self.retain) + len(self.forget)) >= len(self.retain)

    @property
    def tests(self) -> Data:
        """$D_{test}$; an error that names the remedy when there is none."""
        if self.test is None:
            raise NeedError("This needs test data, but the split has none. Give `test` when making the split.")
        return self.test

    def next_request(self, forget: Data) -> "Split":
        """The next request: rows of this one are gone, and never count again.

        >>> data = Data.of((torch.zeros(4, 1), torch.zeros(4)))
        >>> first = Split(forget=data.select([0]), kept=data.select([1, 2, 3]))
        >>> second = first.next_request(data.select([0, 1]))
        >>> len(second.forget), len(second.retain), len(second.gone)
        (1, 2, 1)
        """
        gone = self.forget if self.gone is None else self.gone.join(self.forget)
        # Asked for twice is asked for once: a row that went before must not be subtracted again.
        fresh = forget.without(gone)
        kept = None if self.kept is None else self.kept.without(fresh)
        request = replace(
            self.request, text="a further request", matched=len(fresh), missing=0, duplicates=0, copies=None
        )
        return replace(self, forget=fresh, kept=kept, gone=gone, request=request)

    def joint(self) -> "Split":
        """All requests so far as one."""
        if self.gone is None:
            return self
        return replace(self, forget=self.forget.join(self.gone), gone=None)


def as_split(given: Split) -> Split:
    """The split as it is; refused where something else was handed in, with what makes one."""
    if not isinstance(given, Split):
        raise SettingError(
            f"A request must be a `Split`, but got {type(given).__name__}. Give `sn.rows([0, 1])(data, test)`, or "
            "`sn.ids(...)` of a list of ids, with `data = sn.Data.of(...)`."
        )
    return given


@dataclass(frozen=True, eq=False)
class _Chained:
    """The rows of several sources, one after the other."""

    parts: tuple[Data, ...]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def fetch(self, rows: Tensor) -> tuple[Tensor | dict[str, Tensor], Tensor]:
        ends = torch.tensor([len(part) for part in self.parts]).cumsum(0)
        which = torch.bucketize(rows, ends, right=True)
        asked, pieces = [], []
        for i, part in enumerate(self.parts):
            positions = (which == i).nonzero().squeeze(1)
            if len(positions):
                asked.append(positions)
                pieces.append(part.fetch(part.rows[rows[positions] - (ends[i] - len(part))]))
        # Pieces come source by source; this is the way back to the order that was asked for.
        back = torch.cat(asked).argsort()
        y = torch.cat([piece.y for piece in pieces])[back]
        first = pieces[0].x
        if isinstance(first, dict):
            return {n: torch.cat([p.x[n] for p in pieces if isinstance(p.x, dict)])[back] for n in first}, y
        return torch.cat([piece.x for piece in pieces if isinstance(piece.x, Tensor)])[back], y

    def column(self, name: str) -> list[object]:
        return [value for part in self.parts for value in part.column(name)]


def joined(*parts: Data) -> Data:
    """Rows of different sources as one `Data`."""
    source = _Chained(parts)
    return Data(source, torch.arange(len(source)))


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
    - `allow_missing`: go on when the data have no row of some numbers; they are counted in the request.
    - `mislabelled`: say so if these rows carry wrong labels; methods that compare them with held-out rows then refuse.
    """

    def __init__(self, numbers: Iterable[int], *, allow_missing: bool = False, mislabelled: bool = False) -> None:
        self.numbers = [int(number) for number in numbers]
        self.allow_missing, self.mislabelled = allow_missing, mislabelled

    def choose(self, train: Data) -> tuple[Tensor, Request]:
        place = {row: i for i, row in enumerate(train.rows.tolist())}
        positions = sorted({place[number] for number in self.numbers if number in place})
        names = [str(number) for number in self.numbers]
        known = {str(number) for number in self.numbers if number in place}
        request = _matched(
            "row numbers",
            names,
            known,
            len(positions),
            allow_missing=self.allow_missing,
            mislabelled=self.mislabelled,
            called="rows",
            hint=lambda _: f" The data have {count_of(len(train), 'row')}, counted from zero.",
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
            hint=lambda missing: self.listing.hint(missing) or _if_rows_are_meant(missing, names),
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
    what: str,
    wanted: Sequence[str],
    known: set[str],
    matched: int,
    *,
    allow_missing: bool,
    mislabelled: bool,
    called: str = "ids",
    hint: Callable[[str], str] = lambda _: "",
) -> Request:
    counts = Counter(wanted)
    missing = [name for name in counts if name not in known]
    duplicates = [name for name, n in counts.items() if n > 1]
    if missing and not allow_missing:
        without = f"without them (`--allow-missing`, in Python `sn.{called}(..., allow_missing=True)`)"
        go_on = f", or go on {without}" if matched else ""  # without all of them there is nothing to forget
        twice = f" ({_some(duplicates)})" if duplicates else ""
        raise DataError(
            f"Of {len(counts)} {what}, {len(counts) - len(missing)} matched, {len(missing)} missing "
            f"({_some(missing)}), {count_of(len(duplicates), 'duplicate')}{twice}. "
            f"Correct the list{go_on}.{hint(missing[0])}"
        )
    if wanted and not matched:
        raise DataError(
            f"None of {len(counts)} {what} matched a row ({_some(missing)}), so there is nothing to forget. Check the "
            "list and the column."
        )
    return Request(what, matched, len(missing), sum(counts.values()) - len(counts), mislabelled)


def _if_rows_are_meant(missing: str, names: Sequence[str]) -> str:
    """What to say of a number that is not found among ids none of which is one."""
    if not missing.isdecimal() or any(name.isdecimal() for name in names):
        return ""
    return " No id of the data is a number: for row numbers say `--id-column row` (in Python `sn.rows`)."


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name[:40]) for name in names[:SHOWN])
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
