"""Sums over data: streamed in batches, shared among processes, added up in float64.

Under `torch.distributed` (started with `torchrun`, gloo or NCCL) each process takes its share of the rows and the
sums are all-reduced, so every process holds the same result; with one process nothing else happens. Every process
must hold the same data and the same weights.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor

from spotlessnet.core.data import Batch, Data
from spotlessnet.core.errors import DataError, MismatchError, check_positive
from spotlessnet.core.progress import track
from spotlessnet.core.trained import Trained
from spotlessnet.operators.room import in_parts

Piece = Callable[[Batch, Tensor], Tensor]
"""What one batch adds: `piece(batch, sample_weights of the batch) -> Tensor`."""

Rows = tuple[int, Tensor]
"""A few rows of a sum of vectors, `[k, P]`, and the number of the first of them."""


def sum_over(
    trained: Trained,
    data: Data,
    piece: Piece,
    *,
    sample_weights: Float[Tensor, " N"] | None = None,
    batch_size: int = 256,
    vectors: int = 0,
    taped: bool = False,
    label: str = "summing",
    zero: Float[Tensor, "*d"] | None = None,
) -> Float[Tensor, "*d"]:
    r"""$\sum_{batches} piece(batch, s)$ over the rows whose weight is not zero.

    **Arguments:**

    - `piece`: gets a batch on the network's device and its sample weights `[n]`.
    - `sample_weights`: how often each row counts; rows with weight zero are never read.
    - `vectors`, `taped`: as for `stream`.
    - `zero`: what the sum over no row at all is; also tells an idle process the shape.
    """
    weights = torch.ones(len(data)) if sample_weights is None else sample_weights.detach().cpu()
    weights = weights.to(trained.dtype)
    parts = (
        piece(one, weights[where].to(trained.device))
        for one, where in stream(
            trained,
            data,
            counted(data, sample_weights),
            batch_size=batch_size,
            vectors=vectors,
            taped=taped,
            label=label,
        )
    )
    return total_of(trained, parts, zero).to(trained.dtype)


def stream(
    trained: Trained,
    data: Data,
    positions: Int64[Tensor, " n"],
    *,
    batch_size: int = 256,
    vectors: int = 0,
    taped: bool = False,
    forward: bool = False,
    tangents: int = 0,
    label: str = "reading",
) -> Iterator[tuple[Batch, Int64[Tensor, " m"]]]:
    """Batches of the rows at these positions that fall to this process, each with its positions.

    **Arguments:**

    - `batch_size`: rows that are read at once, and passed at once where the memory budget holds them.
    - `vectors`: of all weights that will go through the network together with a batch.
    - `taped`: the way back is by autograd's tape.
    - `forward`: there is none, so that nothing is kept for it.
    - `tangents`: of how many vectors what is kept for the way back is kept as well.
    """
    check_positive("batch_size", batch_size)
    mine = my_share(positions)
    batches = zip(trained.batches(data.select(mine), batch_size), mine.split(batch_size), strict=False)
    for one, where in track(batches, label, total=-(-len(mine) // batch_size)):
        for part, place in in_parts(trained, one, vectors, taped=taped, forward=forward, tangents=tangents):
            yield part, where[place]


def total_of(
    trained: Trained, parts: Iterable[Float[Tensor, "*d"]], zero: Float[Tensor, "*d"] | None = None
) -> Float[Tensor, "*d"]:
    """The sum of this process's parts and of everybody else's, in float64."""
    total = None if zero is None else _start(zero)
    for part in parts:
        total = _start(part).add_(part.detach()) if total is None else total.add_(part.detach())
        del part  # or it would lie beside the next one
    return _reduced(total, trained)


def total_by_rows(trained: Trained, parts: Iterable[Rows], zero: Float[Tensor, "K P"]) -> Float[Tensor, "K P"]:
    """The same of vectors of which a few come at a time: all of them, once more, are as much as the sum itself."""
    total = _start(zero)
    for first, part in parts:
        total[first : first + len(part)].add_(part.detach())
        del part
    return _reduced(total, trained)


def fill_over(
    trained: Trained,
    data: Data,
    piece: Callable[[Batch, Int64[Tensor, " n"]], Tensor],
    *,
    batch_size: int = 256,
    vectors: int = 0,
    label: str = "answering",
) -> Float[Tensor, "N *d"]:
    """One row of the answer per row of the data, in order: `piece(batch, positions) -> [n, ...]`."""
    if not len(data):
        raise DataError("There is no row to answer about. Give data with at least one row.")
    answer: Tensor | None = None
    everything = torch.arange(len(data))
    for one, where in stream(trained, data, everything, batch_size=batch_size, vectors=vectors, label=label):
        value = piece(one, where).detach()
        if answer is None:
            answer = value.new_zeros(len(data), *value.shape[1:])
        # Rows of other processes stay zero, so that adding up over processes puts every row in its place.
        answer[where.to(answer.device)] = value
    return _reduced(answer, trained)


def counted(data: Data, sample_weights: Float[Tensor, " N"] | None) -> Int64[Tensor, " n"]:
    """Positions of the rows that count at all."""
    if sample_weights is None:
        return torch.arange(len(data))
    if sample_weights.shape != (len(data),):
        raise MismatchError(
            f"Sample weights must be one number per row, shape ({len(data)},), but have shape "
            f"{tuple(sample_weights.shape)}."
        )
    return sample_weights.detach().cpu().nonzero().squeeze(1)


def processes() -> tuple[int, int]:
    """The number of this process and how many there are: `(0, 1)` unless `torch.distributed` runs."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def my_share(positions: Int64[Tensor, " n"]) -> Int64[Tensor, " m"]:
    """The contiguous piece of `positions` that this process works on."""
    rank, count = processes()
    return positions.tensor_split(count)[rank]


def add_up(value: Tensor) -> Tensor:
    """The sum of `value` over all processes, in place."""
    if processes()[1] > 1:
        dist.all_reduce(value)
    return value


def _start(like: Tensor) -> Tensor:
    # Batches are added in float64: the order of the rows and the number of processes then leave no trace in float32.
    wide = torch.float32 if like.device.type == "mps" else torch.float64
    return torch.zeros(like.shape, dtype=wide, device=like.device)


def _reduced(total: Tensor | None, trained: Trained) -> Tensor:
    """The sum over processes; one that had no row learns the shape from the others."""
    if processes()[1] > 1:
        known: list[tuple[torch.Size, torch.dtype] | None] = [None] * processes()[1]
        dist.all_gather_object(known, None if total is None else (total.shape, total.dtype))
        if total is None:
            shape, dtype = next((k for k in known if k is not None), (None, None))
            total = None if shape is None else torch.zeros(shape, dtype=dtype, device=trained.device)
    if total is None:
        raise DataError("There is no row to sum over. Give data with at least one row of weight other than zero.")
    return add_up(total)
