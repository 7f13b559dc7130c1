"""`Data`: a view of rows that can be streamed in batches, wherever they come from (see `adapters`), and their digests.

Digests of rows are equal where two rows hold the same numbers, wherever they stand. Two kinds, for two readers:
`content_digests` are plain SHA-256, inputs apart from the label: they find copies of a row and never leave the process.
`keyed_digests` are BLAKE2b under a salt, inputs and label together: they are written to files, where a plain digest
would let anyone test a guess at a row. `GoneRows` knows rows again in other number formats and shapes too.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64, Shaped, UInt8
from torch import Tensor

from spotlessnet.core.adapters import Relabelled, source_of
from spotlessnet.core.deprecated import OldName
from spotlessnet.core.errors import DataError, MismatchError, SettingError
from spotlessnet.core.source import HasLabels, Inputs, Source

WIDTH = 16
"""Bytes of a keyed digest: among 2^32 rows two share one by chance with a probability below 1e-19."""

FORMATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""Number formats in which rows are compared, from fine to coarse. Networks read no finer one, as a rule."""

TELLING = 4
"""So many broken numbers of a row, all in a coarse format, are no accident: other rows are not taken for it."""


class Batch(NamedTuple):
    """Some rows: inputs, labels, and where they stand in their source."""

    x: Inputs
    y: Shaped[Tensor, "n *d"]
    rows: Int64[Tensor, " n"]


def evenly(length: int, count: int) -> Int64[Tensor, " n"]:
    """At most `count` of `length` positions, evenly spaced: of rows sorted by label, all labels are met.

    >>> evenly(9, 3).tolist(), evenly(2, 3).tolist()
    ([0, 3, 6], [0, 1])
    """
    few = min(count, length)
    return torch.arange(few) * length // max(few, 1)


@dataclass(frozen=True, eq=False)
class Data:
    """A view of some rows of a source. Nothing is read until batches are asked for.

    >>> data = Data.of((torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0])))
    >>> len(data), data.labels().tolist()
    (3, [0, 1, 0])
    >>> [batch.rows.tolist() for batch in data.batches(2)]
    [[0, 1], [2]]
    """

    source: Source
    rows: Int64[Tensor, " N"]
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @staticmethod
    def of(anything: Any, *, columns: Mapping[str, Iterable[Any]] | None = None, label: str | None = None) -> "Data":
        """Rows from a pair of arrays, a `Dataset`, a `DataLoader` or a Hugging Face dataset.

        **Arguments:**

        - `columns`: names that cohorts can select by, such as `{"id": [...], "person": [...]}`.
        - `label`: the name of the label where rows are dictionaries; found by itself if it is a usual one.
        """
        if isinstance(anything, Data):
            return anything
        source = source_of(anything, label)
        # In their order: a column of pandas finds entries by label, and after shuffling that is another row's.
        listed = {name: list(values) for name, values in (columns or {}).items()}
        for name, values in listed.items():
            if len(values) != len(source):
                raise MismatchError(
                    f"Column {name!r} has {len(values)} entries for {len(source)} rows. Give one entry per row."
                )
        return Data(source, torch.arange(len(source)), listed)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Data({len(self)} of {len(self.source)} rows)"

    def batches(self, size: int = 256) -> Iterator[Batch]:
        """The rows in order, `size` at a time."""
        for rows in self.rows.split(size):
            if len(rows):
                x, y = self.source.fetch(rows)
                yield Batch(x, y, rows)

    def fetch(self, rows: Int64[Tensor, " n"]) -> Batch:
        """These rows of the source, in one batch."""
        x, y = self.source.fetch(rows)
        return Batch(x, y, rows)

    def labels(self) -> Shaped[Tensor, "N *d"]:
        """All labels; reads inputs too where the source cannot fetch labels alone."""
        if isinstance(self.source, HasLabels):
            return self.source.labels(self.rows)
        if not len(self):  # `cat` refuses an empty list
            return torch.empty(0, dtype=torch.long)
        return torch.cat([batch.y for batch in self.batches()])

    def column(self, name: str) -> list[Any]:
        """The entries of a named column for these rows."""
        values = self.columns.get(name)
        if values is None:
            values = self.source.column(name)
        if values is None:
            known = ", ".join(sorted(self.columns)) or "none"
            raise DataError(
                f"The data has no column {name!r} (columns given: {known}). "
                f"Pass it, one entry per row: `Data.of(..., columns={{{name!r}: [...]}})`, or the third value of the "
                "function that --data names. Row numbers need none: `--id-column row`, in Python `sn.rows`."
            )
        return [values[i] for i in self.rows.tolist()]

    def select(self, positions: Sequence[int] | Tensor) -> "Data":
        """The rows at these positions of this view."""
        return Data(self.source, self.rows[torch.as_tensor(positions, dtype=torch.long)], self.columns)

    pick = OldName("select")

    def without(self, other: "Data") -> "Data":
        """The rows that are not in `other`, in order."""
        self._check_same_source(other)
        return Data(self.source, self.rows[~torch.isin(self.rows, other.rows)], self.columns)

    def join(self, other: "Data") -> "Data":
        """The rows of both, each once, in the order of the source."""
        self._check_same_source(other)
        return Data(self.source, torch.cat([self.rows, other.rows]).unique(), self.columns)

    def relabel(self, y: Shaped[Tensor, "N *d"]) -> "Data":
        """The same rows with other labels; the source is left alone."""
        if len(y) != len(self):
            raise MismatchError(f"Relabelling {len(self)} rows needs {len(self)} labels, but got {len(y)}.")
        # By the row's number in the source, so that a later selection or reordering still finds its label.
        place = torch.full((len(self.source),), -1)
        place[self.rows] = torch.arange(len(self))
        return Data(Relabelled(self.source, place, y), self.rows, self.columns)

    def _check_same_source(self, other: "Data") -> None:
        if self.source is not other.source:
            raise MismatchError(
                "Two views can be joined or subtracted only when they look at the same source. "
                "Pick both from one `Data`."
            )


def as_data(given: Data) -> Data:
    """The rows as they are; refused where something else was handed in, with what makes rows of it."""
    if not isinstance(given, Data):
        raise SettingError(
            f"Rows must be a `Data`, but got {type(given).__name__}. Give `sn.Data.of(...)` of a pair of arrays, a "
            "Dataset or a DataLoader."
        )
    return given


def spelled(values: Iterable[Any]) -> list[str]:
    """One spelling for ids, whether they came as numbers, numpy scalars, tensors or text."""
    # Most ids are text, and there may be millions.
    return [
        value.strip() if type(value) is str else str(value.item() if hasattr(value, "item") else value).strip()
        for value in values
    ]


def content_digests(batch: Batch) -> Iterator[tuple[bytes, bytes]]:
    """For each row a digest of its inputs and one of its label."""
    inputs = _by_name(batch)
    # Shape and number format belong to the contents: the same bytes may mean other numbers.
    head = repr([(name, str(value.dtype), tuple(value.shape[1:])) for name, value in inputs]).encode()
    label_head = repr((str(batch.y.dtype), tuple(batch.y.shape[1:]))).encode()
    columns = [_bytes_of_rows(value) for _, value in inputs]
    for *x, y in zip(*columns, _bytes_of_rows(batch.y), strict=True):
        yield hashlib.sha256(head + b"".join(x)).digest(), hashlib.sha256(label_head + y).digest()


def keyed_digests(data: Data, salt: bytes) -> list[bytes]:
    """The keyed digest of each row's inputs and label, in the order of the rows."""
    found: list[bytes] = []
    for batch in data.batches():
        tensors = [(f"x {name}", value) for name, value in _by_name(batch)] + [("y", batch.y)]
        # As above; files hold these digests, so this spelling of the head may not change.
        head = "\0".join(f"{name} {t.dtype} {tuple(t.shape[1:])}" for name, t in tensors).encode()
        found += (
            hashlib.blake2b(b"".join((head, *parts)), digest_size=WIDTH, key=salt).digest()
            for parts in zip(*(_bytes_of_rows(t) for _, t in tensors), strict=True)
        )
    return found


def _by_name(batch: Batch) -> list[tuple[str, Tensor]]:
    """Inputs in the order of their names: a dictionary's own order is the loader's accident."""
    return sorted(batch.x.items()) if isinstance(batch.x, dict) else [("", batch.x)]


def _bytes_of_rows(value: Tensor) -> Iterator[bytes]:
    if not value[0].numel():  # a row without numbers cannot be viewed as bytes
        return iter([b""] * len(value))
    flat = as_bytes(value).numpy()
    return (row.tobytes() for row in flat)


def as_bytes(value: Tensor) -> UInt8[Tensor, "n b"]:
    """The bytes of each row; minus zero is zero, for both are the same number.

    >>> as_bytes(torch.tensor([[0.0], [-0.0]])).unique(dim=0).shape[0]
    1
    """
    told = value.detach().cpu()
    if told.is_floating_point() or told.is_complex():
        told = torch.where(told == 0, torch.zeros_like(told), told)
    return told.contiguous().reshape(len(value), -1).view(torch.uint8)


def value_digests(data: Data, called: str) -> list[bytes]:
    """A digest of each row's numbers, rounded to one of `FORMATS`, whatever format and shape they come in.

    Plain, so it never leaves the process.
    """
    return [one for batch in data.batches() for one in _digests(batch, FORMATS[called])]


def rounded_digests(data: Data) -> dict[str, list[bytes]]:
    """As `value_digests`, for each of `FORMATS`, of those rows alone whose inputs went through that format before."""
    found: dict[str, list[bytes]] = {name: [] for name in FORMATS}
    for batch in data.batches():
        # With a side more at the end, so that rows of one number have one to go through.
        inputs = [_as_numbers(value, torch.float32).unsqueeze(-1).flatten(1) for _, value in _by_name(batch)]
        broken = torch.stack([(value != value.round()).sum(dim=1) for value in inputs]).sum(dim=0) >= TELLING
        for name, kind in FORMATS.items():
            kept = torch.stack([(value == value.to(kind).float()).all(dim=1) for value in inputs]).all(dim=0)
            if bool((kept & broken).any()):
                digests = _digests(batch, kind)
                found[name] += (digests[i] for i in (kept & broken).nonzero().flatten().tolist())
    return found


def _digests(batch: Batch, kind: torch.dtype) -> list[bytes]:
    inputs = _by_name(batch)
    # A tensor, and a dictionary of this one tensor, hold the same row.
    names = [name for name, _ in inputs] if len(inputs) > 1 else [""]
    head = repr(names).encode()
    columns = [_bytes_of_rows(_as_numbers(value, kind)) for value in (*(v for _, v in inputs), batch.y)]
    sized = (b"".join(len(part).to_bytes(8, "big") + part for part in parts) for parts in zip(*columns, strict=True))
    return [hashlib.sha256(head + row).digest() for row in sized]


def _as_numbers(value: Tensor, kind: torch.dtype) -> Tensor:
    real = torch.view_as_real(value) if value.is_complex() else value
    return real.detach().to(torch.float32).to(kind).to(torch.float32)


def format_of(data: Data) -> str:
    """In which of `FORMATS` rows come; whole numbers and finer ones are compared in the finest."""
    if not len(data):
        return next(iter(FORMATS))
    batch = next(iter(data.batches(1)))
    kinds = {value.dtype for value in (*(v for _, v in _by_name(batch)), batch.y)}
    return next((name for name in reversed(FORMATS) if FORMATS[name] in kinds), next(iter(FORMATS)))


@dataclass(frozen=True, eq=False)
class GoneRows:
    """Keyed digests of rows that a request forgot, by which they are known again among others.

    Rows that came in half precision are looked for in that, and so is every row among rows in half precision, and every
    row that was rounded to half precision before it came in a finer format.

    **Arguments:**

    - `salt`: without it nobody can test a guess.
    - `called`: which of `FORMATS` the rows came in.
    - `digests`: one for every row, for each of `FORMATS`, each with how many copies of the row stayed.
    """

    salt: bytes = field(repr=False)
    called: str
    digests: Mapping[str, Mapping[bytes, int]] = field(repr=False)

    @staticmethod
    def of(forget: Data, retain: Data, salt: bytes) -> "GoneRows":
        """Those that go, told apart from those that stay."""
        digests = {}
        for name in FORMATS:
            stay = Counter(_keyed(value_digests(retain, name), salt))
            digests[name] = {one: stay[one] for one in _keyed(value_digests(forget, name), salt)}
        return GoneRows(salt, format_of(forget), digests)


def count_left(data: Data, gone: Sequence[GoneRows]) -> list[int]:
    """For each request, how many of the rows that it forgot are among these; copies that had stayed do not count."""
    own = format_of(data)
    order = list(FORMATS)
    known: dict[str, list[bytes]] = {}
    rounded = rounded_digests(data) if gone else {}
    found = []
    for request in gone:
        called = max(own, request.called, key=order.index)
        if called not in known:
            known[called] = value_digests(data, called)
        left = [_count_known(known[called], request, called)]
        left += (_count_known(rounded[name], request, name) for name in order[order.index(called) + 1 :])
        found.append(max(left))
    return found


def _count_known(digests: list[bytes], request: GoneRows, called: str) -> int:
    there = Counter(_keyed(digests, request.salt))
    # Row by row: a copy of one row that is gone by now must not make room for another row.
    return sum(max(0, there[one] - stayed) for one, stayed in request.digests[called].items())


def _keyed(digests: Iterable[bytes], salt: bytes) -> Iterator[bytes]:
    return (hashlib.blake2b(one, digest_size=WIDTH, key=salt).digest() for one in digests)


@dataclass(frozen=True)
class Contents:
    """What one pass over some rows found.

    **Arguments:**

    - `count`: how many rows there are.
    - `sha256`: of inputs, labels and order, as the loader gave them. It can confirm a guess, so only a keyed digest of
      it is ever written down.
    - `copies`: rows with the very inputs of a row to forget, whatever their label.
    - `is_finite`: whether no input or label is NaN or infinite.
    """

    count: int
    sha256: str
    copies: int = 0
    is_finite: bool = True


def contents_of(data: Data, forget: Data | None = None) -> Contents:
    """Read every row once, and those of `forget` twice.

    >>> data = Data.of((torch.tensor([[1.0], [2.0], [1.0]]), torch.tensor([0, 1, 1])))
    >>> contents_of(data, data.select([0])).copies
    1
    """
    gone: set[bytes] = set()
    going: set[int] = set()
    if forget is not None:
        gone = {x for batch in forget.batches() for x, _ in content_digests(batch)}
        going = set(forget.rows.tolist())
    copies = 0
    is_finite = True
    whole = hashlib.sha256()
    for batch in data.batches():
        is_finite = is_finite and _is_finite(batch)
        for row, (x, y) in zip(batch.rows.tolist(), content_digests(batch), strict=True):
            whole.update(x + y)
            # A row to forget is not a copy of itself, nor is a second row that goes too.
            copies += x in gone and row not in going
    return Contents(len(data), whole.hexdigest(), copies, is_finite)


def _is_finite(batch: Batch) -> bool:
    values = [*(batch.x.values() if isinstance(batch.x, dict) else [batch.x]), batch.y]
    return all(bool(value.isfinite().all()) for value in values if value.is_floating_point())
