r"""The diagonal of the Fisher matrix, per sample always.

Squaring the gradient of a mini-batch instead of each sample's is wrong by up to the size of the batch.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Batch, Data
from spotlessnet.core.errors import NeedError, check_choice, check_positive
from spotlessnet.core.loss import Flat, Loss
from spotlessnet.core.progress import budget
from spotlessnet.core.trained import Trained
from spotlessnet.operators.layers import Layer, LinearLayer
from spotlessnet.operators.per_sample import Plan, Record, plan, pull_back, record_pass, rest_rows
from spotlessnet.operators.room import even_parts, footprint, rows_of
from spotlessnet.operators.sums import processes, sum_over

KINDS = ("exact", "monte carlo", "empirical")

AT_ONCE = {"cpu": 2**22, "cuda": 2**27}
"""How many entries of per-sample gradients are written out at a time."""


def fisher_diagonal(
    trained: Trained,
    data: Data,
    *,
    kind: str = "exact",
    sample_weights: Float[Tensor, " N"] | None = None,
    ridge: float = 0.0,
    generator: torch.Generator | None = None,
    draws: int = 1,
    batch_size: int | None = None,
) -> Float[Tensor, " P"]:
    r"""$\sum_i s_i\, \mathbb{E}_y (\nabla \ell_i)^2 + r$, elementwise, a sum over rows.

    **Arguments:**

    - `kind`: where the label $y$ of the gradient comes from. `"exact"` takes the expectation over the model's own
      distribution, as $\sum_r (J_i^\top S_r)^2$ with $S S^\top$ the output Hessian: one backward pass per column,
      `C - 1` of them for softmax. `"monte carlo"` draws labels from it, `draws` per row. `"empirical"` takes the
      labels of the data, which is not the Fisher matrix but is often used in its place.
    - `sample_weights`: $s$; a row with weight zero costs nothing.
    - `ridge`: $r$, as a rule `count * decay`.
    - `generator`: source of the draws. Several processes draw different labels, each from its own stream.
    - `batch_size`: rows that are read at once, and pass in parts where the memory budget holds fewer; 64 on the CPU and
      256 elsewhere, unless given.
    """
    check_choice("kind", kind, KINDS)
    check_positive("draws", draws)
    if kind == "monte carlo" and generator is None:
        raise NeedError("The Monte Carlo Fisher draws labels, so it needs a `generator`. Give a `torch.Generator`.")
    if sample_weights is not None and bool((sample_weights < 0).any()):
        parts = (
            fisher_diagonal(
                trained, data, kind=kind, sample_weights=(sign * sample_weights).clamp(min=0), generator=generator,
                draws=draws, batch_size=batch_size,
            )
            for sign in (1, -1)
        )  # fmt: skip
        return next(parts) - next(parts) + ridge
    if batch_size is None:
        # The fewer parts, the fewer launches: a device waits for those, however few the rows.
        batch_size = 64 if trained.device.type == "cpu" else 256
    draw = _own_stream(generator)
    plans: list[Plan] = []
    columns = {"exact": None, "monte carlo": draws, "empirical": 1}[kind]  # exact: as many as the outputs ask for
    # There one column of many rows keeps a device as busy as many columns of few, and needs no copies side by side.
    columns = 1 if trained.device.type == "cuda" else columns

    def piece(one: Batch, s: Tensor) -> Tensor:
        if not plans:
            plans.append(plan(trained, one.x))
        total = torch.zeros_like(trained.weights)
        into = trained.unflatten(total)
        # A batch is read at once but passed in parts: a wide layer may keep more for a row than the row itself takes.
        for few in even_parts(len(s), plans[0].rows_at_once(budget(trained.device), columns)):
            some = Batch(rows_of(one.x, few), one.y[few], one.rows[few])
            _add_rows(
                trained,
                plans[0],
                some,
                s[few],
                into,
                lambda record, rows: _cotangents(trained, record, rows, kind, draw, draws),
            )
        return total

    zero = trained.weights.new_zeros(()).expand(trained.size)  # its shape is all that is asked of it
    F = sum_over(
        trained, data, piece, sample_weights=sample_weights, batch_size=batch_size, taped=True,
        label="Fisher diagonal", zero=zero,
    )  # fmt: skip
    return F + ridge


def _add_rows(
    trained: Trained,
    plan: Plan,
    one: Batch,
    s: Float[Tensor, " n"],
    into: dict[str, Tensor],
    cotangents: Callable[[Record, Batch], Tensor],
) -> None:
    """Add the squares of a few rows: columns are pulled back in groups, so that memory holds one group at a time."""
    record = record_pass(trained, plan.layers, one.x)
    # Gradients follow in proportion, so that the square of each counts as often as its row.
    columns = cotangents(record, one) * s.sqrt().reshape(-1, 1, 1)
    R = columns.shape[2]
    few = 1 if trained.device.type == "cuda" else plan.columns_at_once(len(s), budget(trained.device))
    narrow = _Narrow()
    for r in range(0, R, few):
        group = columns[:, :, r : r + few]
        returned = pull_back(record, group, again=r + few < R)
        if r == 0:
            _cast_once(plan.layers, record.entered, returned)
        narrow.add(_add_squares(plan.layers, record.entered, returned, into))
        del returned  # or it would lie beside the next columns
        _add_rest(trained, plan, one, group, into)
    narrow.spread(into)


def _cast_once(layers: list[Layer], entered: list[Tensor | None], returned: list[Tensor]) -> None:
    """What entered linear layers, in the format in which it is multiplied with each column."""
    cast: dict[tuple[Any, ...], Tensor] = {}  # several layers may read the same
    for i, (layer, rows, back) in enumerate(zip(layers, entered, returned, strict=True)):
        if isinstance(layer, LinearLayer) and rows is not None and rows.dtype != back.dtype:
            key = (rows.data_ptr(), rows.shape, rows.stride(), back.dtype)
            if key not in cast:
                cast[key] = rows.to(back.dtype)
            entered[i] = cast[key]


def _cotangents(
    trained: Trained, record: Record, one: Batch, kind: str, draw: torch.Generator | None, draws: int
) -> Float[Tensor, "n C R"]:
    """The columns whose pulled-back squares add up to the diagonal."""
    outputs = record.outputs.detach()
    shape = record.shape
    loss = flat_loss(trained.loss, shape)
    y = one.y
    if kind == "exact":
        return loss.hessian_root(outputs, y)
    if kind == "empirical":
        return _slope(loss, outputs, y).unsqueeze(2)
    assert draw is not None  # checked above
    there, labels = outputs.to(draw.device), y.to(draw.device)
    drawn = [loss.score(there, labels, draw).to(outputs) for _ in range(draws)]
    # Squares of the columns are added later, so the mean over draws divides each column by the root of their number.
    return torch.stack(drawn, dim=2) / draws**0.5


def _slope(loss: Loss, outputs: Tensor, y: Tensor) -> Float[Tensor, "n C"]:
    with torch.enable_grad():
        out = outputs.detach().requires_grad_()
        return torch.autograd.grad(loss(out, y).sum(), out)[0]


def flat_loss(loss: Loss, shape: torch.Size) -> Loss:
    """The same loss for outputs with one axis per sample."""
    return loss if len(shape) == 1 else Flat(loss, shape)


class _Narrow:
    """Squares for biases and scales, side by side: each by itself is little work and several launches."""

    def __init__(self) -> None:
        self.shapes: dict[str, torch.Size] = {}
        self.total = torch.empty(0)

    def add(self, rows: dict[str, Float[Tensor, "n R *w"]]) -> None:
        """Add `Σ rows²`; the names are the same each time."""
        if not rows:
            return
        side_by_side = torch.cat([one.flatten(2) for one in rows.values()], dim=2)
        if not self.shapes:
            self.shapes = {name: one.shape[2:] for name, one in rows.items()}
            wide = torch.promote_types(side_by_side.dtype, torch.float32)
            self.total = side_by_side.new_zeros(side_by_side.shape[2], dtype=wide)
        _square_and_add(side_by_side, self.total)

    def spread(self, into: dict[str, Tensor]) -> None:
        """Give every parameter its own."""
        parts = self.total.split([shape.numel() for shape in self.shapes.values()]) if self.shapes else ()
        for (name, shape), part in zip(self.shapes.items(), parts, strict=True):
            into[name].add_(part.view(shape))


def _add_squares(
    layers: list[Layer], entered: list[Tensor | None], returned: list[Tensor], into: dict[str, Tensor]
) -> dict[str, Float[Tensor, "n R *w"]]:
    """Add `Σ g²` over samples and columns for all matrices, and give back the gradients of what is narrower."""
    narrow: dict[str, Tensor] = {}
    for layer, rows, back in zip(layers, entered, returned, strict=True):
        assert rows is not None  # plan() keeps only layers that were called
        if layer.bias is not None:
            narrow[layer.bias] = layer.bias_rows(back)
        if layer.weight is None:
            continue
        if into[layer.weight].ndim == 1:
            narrow[layer.weight] = layer.weight_rows(rows, back, slice(None))
        else:
            _add_wide(layer, rows, back, into[layer.weight])
    return narrow


def _add_wide(layer: Layer, entered: Tensor, returned: Tensor, weight: Tensor) -> None:
    squares = layer.weight_squares(entered, returned)
    if squares is not None:
        weight.add_(squares)
        return
    most = max(1, AT_ONCE.get(weight.device.type, 2**22) // weight.numel())  # pairs of a row and a column
    columns = min(most, returned.shape[1]) if layer.columns_together else 1
    for i, r in itertools.product(range(0, len(entered), most // columns), range(0, returned.shape[1], columns)):
        few = slice(i, i + most // columns)
        _square_and_add(layer.weight_rows(entered[few], returned[few, r : r + columns], slice(None)), weight)


def _square_and_add(rows: Float[Tensor, "n R *w"], total: Float[Tensor, "*w"]) -> None:
    """`total += Σ rows²` over samples and columns; the rows are not needed any more."""
    flat, total = rows.reshape(rows.shape[0] * rows.shape[1], -1), total.view(-1)
    if 0 in flat.stride():  # a weight without part in the answers: one zero stands for all
        flat = flat.clone()
    if flat.device.type == "cpu":
        total.add_(flat.new_ones(len(flat)) @ flat.square_())
        return
    # One way through memory, which is what this costs there; numbers of few bits are added up with more.
    norm = torch.linalg.vector_norm(flat, dim=0, dtype=torch.promote_types(flat.dtype, torch.float32))
    total.addcmul_(norm, norm)


def _add_rest(trained: Trained, plan: Plan, one: Batch, columns: Tensor, into: dict[str, Tensor]) -> None:
    """The same for parameters without a closed form: as many together as one way back may hold."""
    room = AT_ONCE.get(columns.device.type, 2**22) * 4
    free = budget(columns.device)
    if columns.device.type == "cpu":  # a GPU has counted what is held
        # Half at least is beside the graph of these rows, which waits for more columns. The other half of that
        # is for gradients, which are there twice on their way: by name and side by side.
        free = max(free - len(columns) * plan.graph, free / 2) / 2
        room = int(min(room, free / 2 / columns.element_size()))
    for names in _groups(plan.rest, into, room):
        most = max(1, room // sum(into[name].numel() for name in names))  # pairs of a row and a column
        width = min(most, columns.shape[2])
        # These rows pass once more, with a graph of their own.
        height = min(most // width, footprint(trained, one.x).rows(free, width))
        for i, r in itertools.product(range(0, len(columns), height), range(0, columns.shape[2], width)):
            few = slice(i, i + height)
            group = columns[few, :, r : r + width]
            for name, rows in rest_rows(trained, names, rows_of(one.x, few), group):
                _square_and_add(rows, into[name])


def _groups(names: list[str], into: dict[str, Tensor], room: int) -> Iterator[list[str]]:
    """The names in order, cut where the parameters of a group would take more room; one name at least."""
    group: list[str] = []
    taken = 0
    for name in names:
        if group and taken + into[name].numel() > room:
            yield group
            group, taken = [], 0
        group.append(name)
        taken += into[name].numel()
    if group:
        yield group


def _own_stream(generator: torch.Generator | None) -> torch.Generator | None:
    rank, count = processes()
    if generator is None or count == 1:
        return generator
    # The same stream everywhere would give all processes the same labels, and their errors would add up.
    return torch.Generator(generator.device).manual_seed(generator.initial_seed() + rank)
