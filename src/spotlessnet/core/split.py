"""`Split`: what is kept, what must go, and what tests them."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Bool
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, NeedError


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
        said = f"{self.text}: {self.matched} rows matched, {self.missing} ids missing, {self.duplicates} duplicates"
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
