"""`Data`: rows that can be streamed in batches, wherever they come from."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from spotlessnet.core.deprecated import OldName
from spotlessnet.core.errors import DataError, MismatchError

Inputs = Tensor | dict[str, Tensor]
"""What a network is called with: one tensor, or named ones (`model(**inputs)`)."""

LABEL_NAMES = ("labels", "label", "y", "target")


class Batch(NamedTuple):
    """Some rows: inputs, labels, and where they stand in their source."""

    x: Inputs
    y: Shaped[Tensor, "n *d"]
    rows: Int64[Tensor, " n"]


@runtime_checkable
class Source(Protocol):
    """Where rows lie: something with a length that can fetch any of them."""

    def __len__(self) -> int: ...

    def fetch(self, rows: Int64[Tensor, " n"]) -> tuple[Inputs, Tensor]:
        """Inputs and labels of these rows, in this order."""
        ...

    def column(self, name: str) -> Sequence[Any] | None:
        """A named column of the source, one entry per row, or `None`."""
        ...


@runtime_checkable
class HasLabels(Protocol):
    """A source that can tell labels without reading inputs."""

    def labels(self, rows: Int64[Tensor, " n"]) -> Tensor:
        """The labels of these rows, in this order."""
        ...


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
    def of(anything: Any, *, columns: Mapping[str, Sequence[Any]] | None = None, label: str | None = None) -> "Data":
        """Rows from a pair of arrays, a `Dataset`, a `DataLoader` or a Hugging Face dataset.

        **Arguments:**

        - `columns`: names that cohorts can select by, such as `{"id": [...], "person": [...]}`.
        - `label`: the name of the label where rows are dictionaries; found by itself if it is a usual one.
        """
        if isinstance(anything, Data):
            return anything
        source = _source(anything, label)
        columns = dict(columns or {})
        for name, values in columns.items():
            if len(values) != len(source):
                raise MismatchError(
                    f"Column {name!r} has {len(values)} entries for {len(source)} rows. Give one entry per row."
                )
        return Data(source, torch.arange(len(source)), columns)

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
        if not len(self):
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
                f"Pass it, one entry per row: `Data.of(..., columns={{{name!r}: [...]}})`."
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
        place = torch.full((len(self.source),), -1)
        place[self.rows] = torch.arange(len(self))
        return Data(_Relabelled(self.source, place, y), self.rows, self.columns)

    def _check_same_source(self, other: "Data") -> None:
        if self.source is not other.source:
            raise MismatchError(
                "Two views can be joined or subtracted only when they look at the same source. "
                "Pick both from one `Data`."
            )


@dataclass(frozen=True, eq=False)
class Arrays:
    """Rows held in memory: the fastest source."""

    x: Inputs
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def fetch(self, rows: Int64[Tensor, " n"]) -> tuple[Inputs, Tensor]:
        if isinstance(self.x, dict):
            return {name: value[rows] for name, value in self.x.items()}, self.y[rows]
        return self.x[rows], self.y[rows]

    def labels(self, rows: Int64[Tensor, " n"]) -> Tensor:
        return self.y[rows]

    def column(self, name: str) -> Sequence[Any] | None:
        return None


@dataclass(frozen=True, eq=False)
class MapStyle:
    """Rows of a `torch.utils.data.Dataset`, put together by a collate function."""

    dataset: Any
    collate: Callable[[list[Any]], Any]
    label: str | None

    def __len__(self) -> int:
        return len(self.dataset)

    def fetch(self, rows: Int64[Tensor, " n"]) -> tuple[Inputs, Tensor]:
        return take_apart(self.collate([self.dataset[i] for i in rows.tolist()]), self.label)

    def column(self, name: str) -> Sequence[Any] | None:
        return None


@dataclass(frozen=True, eq=False)
class HuggingFace:
    """Rows of a `datasets.Dataset`: its label column, and every other numeric column as a named input."""

    dataset: Any
    label: str | None

    def __len__(self) -> int:
        return len(self.dataset)

    def fetch(self, rows: Int64[Tensor, " n"]) -> tuple[Inputs, Tensor]:
        columns = self.dataset.with_format("numpy")[rows.tolist()]
        tensors = {
            name: _stacked(name, values) if values.dtype == object else torch.as_tensor(values)
            for name, values in columns.items()
            if name != "id" and (values.dtype == object or values.dtype.kind in "biuf")
        }
        return take_apart(tensors, self.label)

    def column(self, name: str) -> Sequence[Any] | None:
        # The slice reads the whole column at once; newer versions would otherwise read it entry by entry.
        return list(self.dataset[name][:]) if name in self.dataset.column_names else None

    def labels(self, rows: Int64[Tensor, " n"]) -> Tensor:
        name = label_name(self.dataset.column_names, self.label)
        return torch.as_tensor(self.dataset.select_columns([name]).with_format("numpy")[rows.tolist()][name])


@dataclass(frozen=True, eq=False)
class _Relabelled:
    """A source with the labels of some rows replaced.

    `place` holds, for each row of the source, where its new label stands in `y`, and -1 where the old one holds.
    """

    source: Source
    place: Int64[Tensor, " M"]
    y: Tensor

    def __len__(self) -> int:
        return len(self.source)

    def fetch(self, rows: Int64[Tensor, " n"]) -> tuple[Inputs, Tensor]:
        x, y = self.source.fetch(rows)
        at = self.place[rows]
        new = at >= 0
        # New labels may have another shape or type than the old ones, as long as the two are not mixed.
        if bool(new.all()):
            return x, self.y[at]
        y = y.clone()
        y[new] = self.y[at[new]].to(y)
        return x, y

    def column(self, name: str) -> Sequence[Any] | None:
        return self.source.column(name)


@runtime_checkable
class _LooksLikeHuggingFace(Protocol):
    column_names: Any

    def with_format(self, type: Any = ...) -> Any: ...


def _source(anything: Any, label: str | None) -> Source:
    if isinstance(anything, DataLoader):
        # The loader's own order does not matter: rows are fetched by number from what it loads.
        return _map_style(anything.dataset, anything.collate_fn, label)
    if isinstance(anything, _LooksLikeHuggingFace):
        return _hugging_face(anything, label)
    if isinstance(anything, Dataset):
        return _map_style(anything, default_collate, label)
    if isinstance(anything, tuple) and len(anything) == 2:
        return _arrays(*anything)
    numbered = hasattr(anything, "__getitem__") and hasattr(anything, "__len__") and len(anything)
    if numbered and not isinstance(anything, (Mapping, str, bytes)):
        return _map_style(anything, default_collate, label)
    raise DataError(
        f"Data must be a pair of arrays, a Dataset, a DataLoader or a Hugging Face dataset, but got "
        f"{type(anything).__name__}."
    )


def _arrays(x: Any, y: Any) -> Arrays:
    inputs: Inputs = {name: _tensor(value) for name, value in x.items()} if isinstance(x, Mapping) else _tensor(x)
    labels = _tensor(y)
    shapes = [tuple(v.shape) for v in (*(inputs.values() if isinstance(inputs, dict) else [inputs]), labels)]
    if () in shapes or len({shape[0] for shape in shapes}) != 1:
        raise MismatchError(
            f"Inputs and labels must have the same number of rows, but have the shapes "
            f"{', '.join(str(shape) for shape in shapes)}. Give one label for each input."
        )
    return Arrays(inputs, labels)


def _hugging_face(dataset: Any, label: str | None) -> Source:
    if isinstance(dataset, Mapping):
        raise DataError(
            f"This holds several data sets ({', '.join(map(str, dataset))}). Choose one of them, such as "
            f"`dataset[{next(iter(dataset), 'train')!r}]`."
        )
    _check_numbered(dataset)
    return HuggingFace(dataset, label)


def _check_numbered(dataset: Any) -> None:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise DataError(
            "Rows must have numbers, so that some of them can be forgotten, but this data set can only be iterated. "
            "Give a map-style Dataset (with __getitem__ and __len__), or arrays."
        )


def _map_style(dataset: Any, collate: Callable[[list[Any]], Any], label: str | None) -> Source:
    _check_numbered(dataset)
    return MapStyle(dataset, collate, label)


def label_name(names: Iterable[str], label: str | None) -> str:
    """Which of the names is the label: the one given, or the usual one."""
    present = sorted(names)
    found = next((name for name in ((label,) if label else LABEL_NAMES) if name in present), None)
    if found is None:
        raise DataError(
            f"Rows are dictionaries with {present}, but none is the label{f' {label!r}' if label else ''}. "
            "Say which: `Data.of(..., label=...)`."
        )
    return found


def take_apart(collated: Any, label: str | None) -> tuple[Inputs, Tensor]:
    """Inputs and labels of a collated batch: a pair, or a mapping with a label among its names."""
    if isinstance(collated, Mapping):
        name = label_name(collated, label)
        rest = {n: _tensor(v) for n, v in collated.items() if n != name}
        return (rest["x"] if set(rest) == {"x"} else rest), _tensor(collated[name])
    if isinstance(collated, (tuple, list)) and len(collated) == 2:
        x, y = collated
        return ({n: _tensor(v) for n, v in x.items()} if isinstance(x, Mapping) else _tensor(x)), _tensor(y)
    raise DataError(
        "A row must be a pair (input, label) or a dictionary with a label, but got "
        f"{type(collated).__name__}. Wrap the data set or pass a collate function through a DataLoader."
    )


def _tensor(value: Any) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as e:
        raise DataError(
            f"Inputs and labels must be numbers of one shape, but got {type(value).__name__} ({e}). Encode text as "
            "numbers, and give every row the same shape."
        ) from e


def _stacked(name: str, values: Any) -> Tensor:
    """A column whose entries are arrays."""
    shapes = {np.shape(value) for value in values}
    if len(shapes) > 1:
        raise DataError(
            f"Entries of column {name!r} must have one shape, but have {len(shapes)}. "
            "Pad them to one length, or remove the column."
        )
    return _tensor(np.stack(list(values)))
