r"""The neural tangent kernel $\Theta = J J^\top$, dense, without ever holding the Jacobian `J`.

A layer's share of `J` is the product of what entered the layer and what came back to it, so only those two are held.
`J` is written out a few columns at a time, multiplied with itself and thrown away.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, check_positive
from spotlessnet.core.progress import budget, track
from spotlessnet.core.trained import Trained
from spotlessnet.operators.layers import Layer, LentLayer, LinearLayer
from spotlessnet.operators.per_sample import Plan, plan, pull_back, record_pass, rest_rows
from spotlessnet.operators.room import even_parts
from spotlessnet.operators.sums import add_up, processes

COLUMNS, FEWEST = 2**15, 32
"""The most columns of `J` that are written out at a time, and what is written out however little room there is."""

HELD, PASSING, WRITTEN = 0.7, 0.2, 0.125
"""Parts of the budget: for rows that passed, for those that pass, and, once none does, for columns written out."""

STRIPES, LEAST = 8, 125
"""Into how many stripes of rows a symmetric block is cut, and their least height, below which products are slow; what
lies above the diagonal is not computed."""


def kernel(
    trained: Trained, a: Data, b: Data | None = None, *, batch_size: int | None = None, memory: float | None = None
) -> Float[Tensor, "n m"]:
    r"""$\Theta(A, B) = J_A J_B^\top$, row and column index `row * C + output`; $\Theta(A, A)$ if `b` is not given.

    Several processes share the products; each makes its own passes through the network.

    **Arguments:**

    - `batch`: rows that go through the network at once; 16 on the CPU and 128 elsewhere, unless given.
    - `memory`: GiB that may hold activations and gradients. More rows than fit are done in pairs of blocks, with
      further passes through the network. Unless given, the memory budget: `memory_limit`, or a share of what is free.
    """
    if batch_size is None:
        batch_size = 16 if trained.device.type == "cpu" else 128
    check_positive("batch_size", batch_size)
    if not len(a) or (b is not None and not len(b)):
        raise DataError("A kernel needs rows on both sides, but one side has none. Give at least one row.")
    work = plan(trained, trained.fetch(a, a.rows[:2]).x)
    # One row tells what all of them will take, before anything large is allocated.
    probe = hold(trained, work, a.select([0]), batch_size)
    C, other = probe.outputs, a if b is None else b
    theta = trained.weights.new_zeros(len(a) * C, len(other) * C)
    fit = _rows_that_fit(trained, probe, memory)
    # Two blocks are held at once when they differ, so each may take half of the room.
    block = fit if (len(a) if b is None else len(a) + len(b)) <= fit else max(1, fit // 2)
    for i in range(0, len(a), block):
        left = hold(trained, work, a.select(range(i, min(i + block, len(a)))), batch_size)
        # Of a symmetric kernel the blocks on and below the diagonal; `_mirrored` fills the rest.
        for j in range(0, len(other) if b is not None else i + 1, block):
            same = b is None and i == j
            right = (
                left if same else hold(trained, work, other.select(range(j, min(j + block, len(other)))), batch_size)
            )
            target = theta[i * C : (i + block) * C, j * C : (j + block) * C]
            add_products(left, right, target, symmetric=same)
            del right  # or it would be held beside the next block
        del left
    add_up(theta)
    return theta if b is not None else _mirrored(theta)


@dataclass(frozen=True, eq=False)
class Held:
    """Some rows after their passes through the network, in the cheaper of two forms for each layer.

    `dense` holds columns of `J` themselves, `[rows · outputs, p]`. `factors` holds a layer with what entered,
    `[rows, ...]`, and what came back for every output, `[rows, outputs, ...]`.
    """

    outputs: int
    dense: list[Float[Tensor, "nC _"]]
    factors: list[tuple[Layer, Float[Tensor, "n ..."], Float[Tensor, "n C ..."]]]

    @property
    def bytes(self) -> int:
        """What is held, in bytes."""
        tensors = [*self.dense, *(t for _, entered, returned in self.factors for t in (entered, returned))]
        return sum(t.numel() * t.element_size() for t in tensors)


def hold(trained: Trained, work: Plan, data: Data, batch_size: int) -> Held:
    """Pass all rows through the network and back once per output."""
    kept: list[Tensor] = []
    layers: list[Layer] = []
    outputs, done = 0, 0
    batch_size = min(batch_size, _passing(trained, work, data))
    for one in track(trained.batches(data, batch_size), "kernel: passes", total=-(-len(data) // batch_size)):
        record = record_pass(trained, work.layers, one.x)
        n, outputs = record.outputs.shape
        eye = torch.eye(outputs, dtype=trained.dtype, device=trained.device).expand(n, -1, -1)
        returned = [r.to(trained.dtype) for r in pull_back(record, eye)]
        entered = [e.to(trained.dtype) for e in record.entered if e is not None]
        tall = _small_columns(work, entered, returned)
        tall += [rows.reshape(n, outputs, -1) for _, rows in rest_rows(trained, work.rest, one.x, eye)]
        layers, pairs = _factored(work, entered, returned)
        for k, piece in enumerate([torch.cat(tall, dim=2), *pairs] if tall else [eye[:, :, :0], *pairs]):
            if len(kept) <= k:
                kept.append(piece.new_empty(len(data), *piece.shape[1:]))
            kept[k][done : done + n] = piece
        done += n
    pairs_held = zip(layers, kept[1::2], kept[2::2], strict=True)
    return Held(outputs, [kept[0].flatten(0, 1)], list(pairs_held))


def add_products(left: Held, right: Held, theta: Float[Tensor, "n m"], *, symmetric: bool) -> None:
    """Add `J Jᵀ` of two sides to `theta`; of a symmetric one only what lies on or below the diagonal stripes."""
    rank, processes_count = processes()
    turn = 0
    jobs = [(a, b) for a, b in zip(left.factors, right.factors, strict=True)]
    for (layer, entered, returned), (_, entered_b, returned_b) in track(jobs, "kernel: products"):
        if _is_outer(layer, entered):
            turn += 1
            if turn % processes_count == rank:
                _add_outer(entered, returned, entered_b, returned_b, theta)
            continue
        for part in layer.parts(_columns_at_once(returned, theta, symmetric=symmetric)):
            turn += 1
            if turn % processes_count != rank:
                continue
            J = layer.weight_rows(entered, returned, part).flatten(0, 1).flatten(1)
            K = J if symmetric else layer.weight_rows(entered_b, returned_b, part).flatten(0, 1).flatten(1)
            _add_block(J, K, theta, symmetric)
    for J, K in zip(left.dense, right.dense, strict=True):
        turn += 1
        if turn % processes_count == rank:
            _add_block(J, K, theta, symmetric)


def _columns_at_once(returned: Tensor, theta: Float[Tensor, "n m"], *, symmetric: bool) -> int:
    """Columns that take no more room than a few copies of `theta`, and no more than their part of the budget."""
    tall = len(theta) if symmetric else sum(theta.shape)
    room = WRITTEN * budget(returned.device, more_helps=True) / (tall * returned.element_size())
    return max(FEWEST, min(max(256, min(COLUMNS, 2**26 // len(theta))), int(room)))


def _small_columns(work: Plan, entered: list[Tensor], returned: list[Tensor]) -> list[Float[Tensor, "n C ..."]]:
    """Columns of `J` that take less room than the two factors they come from."""
    columns = []
    for layer, e, r in zip(work.layers, entered, returned, strict=True):
        if layer.bias is not None:
            columns.append(layer.bias_rows(r).flatten(2))
        if layer.weight is not None and not _keeps_factors(layer, e, r):
            columns.append(layer.weight_rows(e, r, slice(None)).flatten(2))
    return columns


def _factored(work: Plan, entered: list[Tensor], returned: list[Tensor]) -> tuple[list[Layer], list[Tensor]]:
    layers, pairs = [], []
    for layer, e, r in zip(work.layers, entered, returned, strict=True):
        if layer.weight is not None and _keeps_factors(layer, e, r):
            layers.append(layer)
            pairs += [e, r]
    return layers, pairs


def _keeps_factors(layer: Layer, entered: Tensor, returned: Tensor) -> bool:
    if isinstance(layer, LentLayer):
        return False  # what came back is the column itself
    whole = layer.module.weight.numel() * returned.shape[1]
    return _is_outer(layer, entered) or entered[0].numel() + returned[0].numel() < whole


def _is_outer(layer: Layer, entered: Tensor) -> bool:
    return isinstance(layer, LinearLayer) and entered.ndim == 2


def _add_outer(A: Tensor, G: Tensor, A_b: Tensor, G_b: Tensor, theta: Tensor) -> None:
    """A linear layer on vectors: the gradients are outer products, so their products are products of products."""
    n, C = G.shape[:2]
    room = WRITTEN * budget(theta.device, more_helps=True) / (C * theta.shape[1] * theta.element_size())
    for few in even_parts(n, int(room)):
        back = (G[few].flatten(0, 1) @ G_b.flatten(0, 1).T).unflatten(1, (-1, C)).unflatten(0, (-1, C))
        back.mul_((A[few] @ A_b.T)[:, None, :, None])
        theta[few.start * C : few.stop * C].add_(back.flatten(2).flatten(0, 1))


def _add_block(J: Tensor, K: Tensor, theta: Tensor, symmetric: bool) -> None:
    if not symmetric:
        theta.addmm_(J, K.T)
        return
    stripe = max(LEAST, -(-len(J) // STRIPES))
    for i in range(0, len(J), stripe):
        theta[i : i + stripe, : i + stripe].addmm_(J[i : i + stripe], J[: i + stripe].T)


def _mirrored(theta: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    stripe = max(1, -(-len(theta) // STRIPES))
    for i in range(0, len(theta), stripe):
        square = theta[i : i + stripe, i : i + stripe]
        # A stripe was computed up to its own end, so the square on the diagonal is whole; one half is taken for both.
        square.copy_(square.tril() + square.tril(-1).T)
        theta[:i, i : i + stripe] = theta[i : i + stripe, :i].T
    return theta


def _passing(trained: Trained, work: Plan, data: Data) -> int:
    """How many rows may pass at once: each keeps its graph, and brings back something for every output."""
    outputs = int(trained.predict(data.select([0])).numel())
    each = work.graph + 2 * outputs * work.returned  # as they come, and stacked
    return max(1, int(PASSING * budget(trained.device) / max(1.0, each)))


def _rows_that_fit(trained: Trained, probe: Held, memory: float | None) -> int:
    if memory is not None:
        check_positive("memory", memory)
    room = HELD * budget(trained.device, more_helps=True) if memory is None else memory * 2**30
    return max(2, int(room // max(1, probe.bytes)))
