"""Adapters: arrays, Datasets, DataLoaders and Hugging Face datasets as a `Source` of rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from spotlessnet.core.errors import DataError, MismatchError
from spotlessnet.core.source import Inputs, Source

LABEL_NAMES = ("labels", "label", "y", "target")


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
    """Rows of a `torch.utils.data.Dataset`, put together by a collate function.

    **Arguments:**

    - `id_name`: what cohorts call the third entry of a row `(input, label, id)`.
    """

    dataset: Any
    collate: Callable[[list[Any]], Any]
    label: str | None
    id_name: str = "id"
    _columns: dict[str, list[Any]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.dataset)

    def fetch(self, rows: Int64[Tensor, " n"]) -> tuple[Inputs, Tensor]:
        return take_apart(self.collate([self.dataset[i] for i in rows.tolist()]), self.label)

    def column(self, name: str) -> Sequence[Any] | None:
        first = self.dataset[0] if len(self) else None
        if isinstance(first, Mapping):
            place: Any = name if name in first else None
        else:
            place = 2 if name == self.id_name and isinstance(first, (tuple, list)) and len(first) == 3 else None
        if place is None:
            return None
        if name not in self._columns:  # every row must be read for it, so once
            self._columns[name] = [self.dataset[i][place] for i in range(len(self))]
        return self._columns[name]


@dataclass(frozen=True, eq=False)
class HuggingFace:
    """Rows of a `datasets.Dataset`: its label column, and every other numeric column as a named input."""

    dataset: Any
    label: str | None

    def __len__(self) -> int:
        return len(self.dataset)

    def fetch(self, rows: Int64[Tensor, " n"]) -> tuple[Inputs, Tensor]:
        # As numpy, whatever format the caller chose: text then shows by its dtype and can be left out.
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
class Relabelled:
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


def source_of(anything: Any, label: str | None) -> Source:
    """The source that fits what was given; `label` names the label where rows are dictionaries."""
    if isinstance(anything, DataLoader):
        # The loader's own order does not matter: rows are fetched by number from what it loads.
        return _map_style(anything.dataset, anything.collate_fn, label)
    # Before `Dataset`: newer versions of the library make theirs one, and its columns would be lost.
    if isinstance(anything, _LooksLikeHuggingFace):
        return _hugging_face(anything, label)
    if isinstance(anything, Dataset):
        return _map_style(anything, default_collate, label)
    if isinstance(anything, tuple) and len(anything) == 2:
        return _arrays(*anything)
    # A list of rows also serves, but neither a dictionary of columns nor text, which have lengths and items too.
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
        # As in a data set of Hugging Face: ids and text say whose a row is, and no network reads them.
        rest = {n: _tensor(v) for n, v in collated.items() if n not in (name, "id") and not _is_text(v)}
        # A lone "x" is a positional input; under any other name it is the keyword that the model expects.
        return (rest["x"] if set(rest) == {"x"} else rest), _tensor(collated[name])
    if isinstance(collated, (tuple, list)) and (len(collated) == 2 or (len(collated) == 3 and _are_ids(collated[2]))):
        x, y = collated[:2]
        return ({n: _tensor(v) for n, v in x.items()} if isinstance(x, Mapping) else _tensor(x)), _tensor(y)
    many = f" of {len(collated)} entries" if isinstance(collated, (tuple, list)) else ""
    raise DataError(
        "A row must be a pair (input, label), a triple (input, label, id) or a dictionary with a label, but rows of "
        f"this data set put together are a {type(collated).__name__}{many}. Wrap the data set or pass a collate "
        "function through a DataLoader."
    )


def _is_text(values: Any) -> bool:
    return isinstance(values, (list, tuple)) and len(values) > 0 and all(isinstance(one, str) for one in values)


def _are_ids(values: Any) -> bool:
    """Text or whole numbers, one a row: what else stands third in a row could be meant for the network."""
    numbers = isinstance(values, Tensor) and values.ndim == 1 and not values.is_floating_point()
    return _is_text(values) or (numbers and values.dtype != torch.bool)


def _tensor(value: Any) -> Tensor:
    try:
        # Tables of pandas are read in their order; torch would ask them for rows by label, and see their columns.
        return torch.as_tensor(np.array(value.to_numpy()) if hasattr(value, "to_numpy") else value)
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
