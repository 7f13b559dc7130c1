"""Grouped folds: rows that will be asked to go together lie in one fold, as in scikit-learn's `GroupKFold`."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from spotlessnet.core.data import Data, spelled
from spotlessnet.core.errors import MismatchError, SettingError

ID = "id"
"""The column that says who belongs together where nobody says another."""

BY_ID = "by id"
"""The column of ids where the data have one, and every row by itself where they have none."""

Groups = str | Sequence[Any] | Tensor | None


def has_column(data: Data, name: str) -> bool:
    """Whether the data have a column of this name."""
    return name in data.columns or data.source.column(name) is not None


def groups_of(data: Data, groups: Groups, folds: int) -> Int64[Tensor, " N"] | None:
    """A number for each row, the same for rows that belong together; `None` where every row stands by itself."""
    if groups is None:
        return None
    if isinstance(groups, str):
        if groups == BY_ID and not has_column(data, ID):
            return None
        entries = spelled(data.column(ID if groups == BY_ID else groups))
    else:
        entries = spelled(groups)
    if len(entries) != len(data):
        raise MismatchError(f"`groups` must have one entry for each of {len(data)} rows, but has {len(entries)}.")
    number: dict[str, int] = {}
    found = torch.tensor([number.setdefault(entry, len(number)) for entry in entries], dtype=torch.long)
    _check_enough(len(number), folds)
    return found


def _check_enough(groups: int, folds: int) -> None:
    if groups < folds:
        raise SettingError(
            f"{folds} folds need as many groups of rows at least, but there are {groups}: rows of one group, and "
            "copies of a row, lie in one fold. Take fewer folds, another column, or every row by itself "
            "(`groups=None`, `--groups none`)."
        )


def joined_by_copies(group: Int64[Tensor, " N"], place: Int64[Tensor, " N"]) -> Int64[Tensor, " N"]:
    """Groups that hold copies of one row become one: else a fold model that misses a row would know its copy.

    `place` is the same for copies of a row.

    >>> joined_by_copies(torch.tensor([0, 1, 1, 2]), torch.tensor([5, 5, 6, 7])).tolist()
    [0, 0, 0, 1]
    """
    label = group
    while True:
        # The smallest label of all copies of a row, then of all rows of a group, until nothing changes.
        spread = _least(_least(label, place), group)
        if torch.equal(spread, label):
            return label.unique(return_inverse=True)[1]
        label = spread


def _least(label: Int64[Tensor, " N"], of: Int64[Tensor, " N"]) -> Int64[Tensor, " N"]:
    """For each row the smallest label among rows that are alike in `of`."""
    least = label.new_full((int(of.max()) + 1,), len(label)).scatter_reduce(0, of, label, "amin")
    return least[of]


def grouped_folds(group: Int64[Tensor, " N"], folds: int, draw: torch.Generator) -> Int64[Tensor, " N"]:
    """A fold for each row: groups in an order that `draw` gives, the largest first, each to the fold with fewest rows.

    Where every group is one row, folds are as even as can be and every division is as likely as any other.

    >>> part = grouped_folds(torch.tensor([0, 0, 0, 1, 1, 2]), 2, torch.Generator().manual_seed(0))
    >>> part.bincount().tolist(), len(part[:3].unique()), len(part[3:5].unique())
    ([3, 3], 1, 1)
    """
    sizes = group.bincount()
    _check_enough(len(sizes), folds)
    order = torch.randperm(len(sizes), generator=draw)
    order = order[sizes[order].argsort(descending=True, stable=True)]
    # Equal folds are filled in an order that is drawn too, or the first would always hold the largest group.
    name = torch.randperm(folds, generator=draw).tolist()
    rows = [0] * folds
    of_group = torch.zeros_like(sizes)
    for g in order.tolist():
        least = min(range(folds), key=rows.__getitem__)
        rows[least] += int(sizes[g])
        of_group[g] = name[least]
    return of_group[group]
