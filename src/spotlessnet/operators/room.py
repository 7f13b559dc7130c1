"""How much goes through the network at once: as many rows and vectors as asked for, and no more than memory holds."""

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from spotlessnet.core.data import Batch
from spotlessnet.core.progress import Footprint, Made, budget
from spotlessnet.core.source import Inputs
from spotlessnet.core.trained import Trained
from spotlessnet.operators.rows import attention_spelled_out

ON_THE_WAY, COPIES = 3, 6
"""Vectors of all weights that one vector becomes on its way, gradients by name, flat, and put together; and all in all,
with itself and the sum in float64."""


_KNOWN: WeakKeyDictionary[nn.Module, dict[Any, Footprint]] = WeakKeyDictionary()


def footprint(trained: Trained, x: Inputs) -> Footprint:
    """What one row takes, from a pass of the first; found once for each network and shape of a row."""
    row = rows_of(x, slice(0, 1))
    shapes = sorted((name, value.shape) for name, value in row.items()) if isinstance(row, dict) else row.shape
    known = _KNOWN.setdefault(trained.model, {})
    key = (str(shapes), trained.dtype, trained.device)
    if key not in known:
        with torch.no_grad(), attention_spelled_out(), Made() as made:
            trained.outputs(row)
        known[key] = made.footprint
    return known[key]


def in_parts(trained: Trained, one: Batch, vectors: int = 0) -> Iterator[tuple[Batch, slice]]:
    """A batch as it is, or in parts where all of it would take more than the budget; each with its place in it."""
    length = len(one.rows)
    room = budget(trained.device) - ON_THE_WAY * _vector(trained) * vectors
    few = footprint(trained, one.x).rows(max(room, 0.0), vectors) if length > 1 else 1
    if few >= length:
        yield one, slice(0, length)
        return
    for i in range(0, length, few):
        part = slice(i, min(i + few, length))
        yield Batch(rows_of(one.x, part), one.y[part], one.rows[part]), part


def vectors_at_once(trained: Trained, most: int) -> int:
    """How many vectors may go through the network together: half of the budget is for them."""
    return max(1, min(most, int(budget(trained.device) / 2 / (COPIES * _vector(trained)))))


def rows_of(x: Inputs, which: slice) -> Inputs:
    """Some rows of the inputs."""
    return {name: value[which] for name, value in x.items()} if isinstance(x, dict) else x[which]


def _vector(trained: Trained) -> float:
    return float(trained.size * trained.weights.element_size())
