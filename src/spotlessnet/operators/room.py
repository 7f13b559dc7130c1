"""How much goes through the network at once: as many rows and vectors as asked for, and no more than memory holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from spotlessnet.core.data import Batch
from spotlessnet.core.passes import are_halved
from spotlessnet.core.progress import Footprint, Made, budget
from spotlessnet.core.source import Inputs
from spotlessnet.core.trained import Trained
from spotlessnet.operators.rows import attention_spelled_out

ON_THE_WAY, COPIES = 3, 6
"""Vectors of all weights that one vector becomes on its way, gradients by name, flat, and put together; and all in all,
with itself and the sum in float64."""


LEAST = 0.25
"""The part of the budget that rows may always take, however much of it vectors do."""

ANEW = 0.2
"""A tape that keeps a smaller share of what a pass makes is of a network that computes activations anew."""

_KNOWN: WeakKeyDictionary[nn.Module, dict[Any, Footprint]] = WeakKeyDictionary()


def footprint(trained: Trained, x: Inputs) -> Footprint:
    """What one row takes, from a pass of the first; found once for each network and shape of a row."""
    row = rows_of(x, slice(0, 1))
    shapes = sorted((name, value.shape) for name, value in row.items()) if isinstance(row, dict) else row.shape
    known = _KNOWN.setdefault(trained.model, {})
    key = (str(shapes), trained.dtype, trained.device, are_halved())
    if key not in known:
        with torch.no_grad(), attention_spelled_out(), Made(trained.weights) as made:
            trained.outputs(row)
        known[key] = made.footprint
    return known[key]


def on_the_tape(trained: Trained, x: Inputs) -> Footprint:
    """The same where autograd's own tape leads back: what it keeps of a row, not all that a pass makes."""
    known = _KNOWN.setdefault(trained.model, {})
    found = footprint(trained, x)
    key = (found, are_halved())
    if key not in known:
        kept = []
        # Copies of weights in bfloat16 are kept once, however many rows pass: one more row tells what a row adds.
        for rows in (1, 2) if are_halved() else (1,):
            few = _apart(rows_of(x, slice(0, rows)))
            with torch.enable_grad(), kept_for_way_back(trained) as bytes:
                trained.outputs(few, trained.weights.detach().requires_grad_())
            kept.append(float(sum(bytes.values())))
        kept_by_one = kept[-1] - kept[0] or kept[0]
        # A network that keeps next to nothing computes it anew on the way back: some of it, or all.
        known[key] = found._replace(graph=kept_by_one) if kept_by_one > ANEW * found.graph else found
    return known[key]


@contextmanager
def kept_for_way_back(trained: Trained) -> Iterator[dict[int, int]]:
    """Bytes of each storage that autograd keeps within this block, the weights themselves left out."""
    own = trained.weights.untyped_storage().data_ptr()
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() != own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def in_parts(
    trained: Trained, one: Batch, vectors: int = 0, *, taped: bool = False, forward: bool = False, tangents: int = 0
) -> Iterator[tuple[Batch, slice]]:
    """A batch as it is, or in parts where all of it would take more than the budget; each with its place in it.

    **Arguments:**

    - `vectors`, `taped`, `forward`, `tangents`: as for `sums.stream`.
    """
    length = len(one.rows)
    whole = budget(trained.device)
    # Row after row would take many times as long as a few at a time, and those take little.
    room = max(whole - ON_THE_WAY * _vector(trained) * vectors, LEAST * whole)
    each = on_the_tape if taped else footprint
    kept = 0.0 if forward else 1.0 + tangents  # where nothing leads back, only what is alive at a time counts
    found = each(trained, one.x)
    few = found._replace(graph=kept * found.graph).rows(room, vectors) if length > 1 else 1
    if few >= length:
        yield one, slice(0, length)
        return
    for part in even_parts(length, few):
        yield Batch(rows_of(one.x, part), one.y[part], one.rows[part]), part


def even_parts(length: int, most: int) -> list[slice]:
    """As few parts as may be, none longer than `most`, and all about as long.

    >>> even_parts(10, 4)
    [slice(0, 4, None), slice(4, 8, None), slice(8, 10, None)]
    >>> even_parts(64, 43)
    [slice(0, 32, None), slice(32, 64, None)]
    """
    size = -(-length // -(-length // max(1, most))) if length else 1
    return [slice(i, min(i + size, length)) for i in range(0, length, size)]


def vectors_at_once(trained: Trained, most: int) -> int:
    """How many vectors may go through the network together: half of the budget is for them."""
    return max(1, min(most, int(budget(trained.device) / 2 / (COPIES * _vector(trained)))))


def rows_of(x: Inputs, which: slice) -> Inputs:
    """Some rows of the inputs."""
    return {name: value[which] for name, value in x.items()} if isinstance(x, dict) else x[which]


def _apart(x: Inputs) -> Inputs:
    """A copy: a view would be counted with the whole batch that it is part of."""
    return {name: value.clone() for name, value in x.items()} if isinstance(x, dict) else x.clone()


def _vector(trained: Trained) -> float:
    return float(trained.size * trained.weights.element_size())
