"""Per-sample gradients of a whole network: layer by layer where a closed form holds, by `torch.func` elsewhere."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import vjp, vmap
from torch.utils.hooks import RemovableHandle

from spotlessnet.core.source import Inputs
from spotlessnet.core.trained import Trained
from spotlessnet.operators.jacobian import as_function
from spotlessnet.operators.layers import Layer, LentLayer, layers_of
from spotlessnet.operators.room import kept_for_way_back, rows_of
from spotlessnet.operators.rows import by_row


class Plan(NamedTuple):
    """Which layers are done in closed form, the names of the parameters that are not, and what a row takes.

    `graph` is what one row's pass keeps for its way back, `returned` what one column of one row brings back to all
    layers together, both in bytes.
    """

    layers: list[Layer]
    rest: list[str]
    graph: float = 0.0
    returned: float = 0.0

    def rows_at_once(self, bytes: float, columns: int | None = None) -> int:
        """How many rows may pass together within so many bytes; a row at least, whatever it takes.

        Half is for their graph, half for what comes back. Where few columns come back, that leaves much unused: then
        two thirds are for both, and the rest for gradients that are written out.
        """
        each = max(1.0, self.graph + self.returned)
        halves = bytes / 2 / each
        if columns is None:
            return max(1, int(halves))
        return max(1, int(halves), int(2 * bytes / 3 / max(1.0, self.graph + columns * self.returned)))

    def columns_at_once(self, rows: int, bytes: float) -> int:
        """How many columns of these rows may be pulled back together."""
        return max(1, int(bytes / 2 / max(1.0, rows * self.returned)))


class Record(NamedTuple):
    """One pass through the network: at each layer what entered, and where gradients return to.

    Outputs are flat; `shape` is that of one row's before.
    """

    outputs: Float[Tensor, "n C"]
    shape: torch.Size
    weights: Float[Tensor, " P"]
    entered: list[Tensor | None]
    edges: list[GradientEdge | None]


def plan(trained: Trained, x: Inputs) -> Plan:
    """Layers whose closed form reproduces autograd on the first two rows of `x`; the other parameters are `rest`.

    So modules called twice, weights used outside their module, layers that see the rows along another axis and anything
    else unforeseen go the slow, sure way.
    """
    layers = layers_of(trained)
    with kept_for_way_back(trained) as kept_for_one:
        record_pass(trained, layers, rows_of(x, slice(0, 1)))
    with kept_for_way_back(trained) as kept:
        record = record_pass(trained, layers, rows_of(x, slice(0, 2)))
    rows = len(record.outputs)
    # What one row more keeps: copies of the weights in another number format are kept once.
    graph = sum(kept.values()) - (sum(kept_for_one.values()) if rows > 1 else 0)
    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(record.outputs.shape, generator=generator, dtype=torch.float64).to(record.outputs)
    cotangent[1:] = 0  # only the first row is asked for, so nothing may come back to the second
    edges = [edge for edge in record.edges if edge is not None]
    places = [record.weights, *edges]
    truth, *back = torch.autograd.grad(record.outputs, places, cotangent, allow_unused=True)  # type: ignore[arg-type]  # edges are accepted, the stub lags
    by_name = trained.unflatten(truth)
    brought = sum(one.nbytes for one in back if one is not None) / rows
    returned = iter(back)
    good = [
        layer
        for layer, entered, edge in zip(layers, record.entered, record.edges, strict=True)
        if edge is not None and _agrees(layer, entered, next(returned), by_name, len(cotangent))
    ]
    done = {name for layer in good for name in (layer.weight, layer.bias)}
    lent = [
        layer
        for layer in _lendable(trained, [name for name in trained.names if name not in done])
        if _answers_the_same(trained, layer, rows_of(x, slice(0, 2)), record.outputs, cotangent, by_name)
    ]
    done |= {layer.weight for layer in lent}
    return Plan([*good, *lent], [name for name in trained.names if name not in done], graph, brought)


def _lendable(trained: Trained, names: list[str]) -> list[Layer]:
    shapes = dict(zip(trained.names, trained.shapes, strict=True))
    return [LentLayer(None, name, None) for name in names if shapes[name][:1] == (1,)]


def _answers_the_same(
    trained: Trained, layer: Layer, x: Inputs, outputs: Tensor, cotangent: Tensor, truth: dict[str, Tensor]
) -> bool:
    """Whether the network takes a copy of this parameter for each row, and nothing else changes."""
    try:
        record = record_pass(trained, [layer], x)
        (returned,) = torch.autograd.grad(record.outputs, record.edges, cotangent, allow_unused=True)  # type: ignore[arg-type]  # edges are accepted, the stub lags
    except RuntimeError:
        return False
    same = record.outputs.shape == outputs.shape and torch.allclose(record.outputs, outputs, rtol=1e-3, atol=1e-6)
    return same and _agrees(layer, record.entered[0], returned, truth, len(outputs))


def record_pass(trained: Trained, layers: list[Layer], x: Inputs) -> Record:
    """Run the network on `x` and note what enters each layer; a layer not called exactly once notes nothing."""
    calls = [0] * len(layers)
    entered: list[Tensor | None] = [None] * len(layers)
    edges: list[GradientEdge | None] = [None] * len(layers)

    def note(i: int, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        calls[i] += 1
        once = calls[i] == 1 and len(arguments) == 1
        entered[i] = arguments[0].detach() if once else None
        # The edge, not the tensor: an activation in place would move the tensor past the layer.
        edges[i] = get_gradient_edge(output) if once else None

    handles: list[RemovableHandle] = []
    try:
        with torch.enable_grad():
            w = trained.weights.detach().requires_grad_()
            parameters = trained.unflatten(w)
            for i, layer in enumerate(layers):
                if isinstance(layer, LentLayer):
                    assert layer.weight is not None
                    own = parameters[layer.weight].expand(_count(x), *parameters[layer.weight].shape[1:])
                    parameters[layer.weight] = own
                    entered[i] = own.detach()
                    edges[i] = get_gradient_edge(own)
                else:
                    handles.append(layer.module.register_forward_hook(partial(note, i)))
            outputs = trained.outputs(x, parameters)
    finally:
        for handle in handles:
            handle.remove()
    return Record(outputs.flatten(1), outputs.shape[1:], w, entered, edges)


def pull_back(
    record: Record, cotangents: Float[Tensor, "n C R"], *, again: bool = False
) -> list[Float[Tensor, "n R ..."]]:
    """The gradient at the output of every layer, for each of the `R` columns; `again` if more columns will follow."""
    if not record.edges:
        return []
    columns = cotangents.to(record.outputs).unbind(dim=2)
    back = [
        list(torch.autograd.grad(record.outputs, record.edges, column, retain_graph=again or r + 1 < len(columns)))  # type: ignore[arg-type]  # edges are accepted, the stub lags
        for r, column in enumerate(columns)
    ]
    if len(back) == 1:  # one column needs no copy
        return [at_layer.unsqueeze(1) for at_layer in back[0]]
    # Each layer's is let go once it is copied: all of them twice would be twice what is planned.
    return [torch.stack([column.pop() for column in back], dim=1) for _ in record.edges][::-1]


def rest_rows(
    trained: Trained, rest: list[str], x: Inputs, cotangents: Float[Tensor, "n C R"]
) -> Iterator[tuple[str, Float[Tensor, "n R ..."]]]:
    """Per-sample gradients of the parameters in `rest`, by `vmap`: all of them in one way back."""
    if not rest:
        return
    known = trained.unflatten(trained.weights)
    sizes = [known[name].numel() for name in rest]

    def one_row(single: Inputs, columns: Tensor) -> Tensor:
        def outputs(values: Tensor) -> Tensor:
            # Only `rest` is asked for: through all weights, every row and column would pull back each of them.
            own = {n: v.view_as(known[n]) for n, v in zip(rest, values.split(sizes), strict=True)}
            return as_function(trained, _as_batch(single))({**known, **own})[0].flatten()

        _, pull = vjp(outputs, torch.cat([known[name].flatten() for name in rest]))[:2]
        return vmap(lambda column: pull(column)[0], in_dims=1)(columns)

    def one_row_plainly(single: Inputs, columns: Tensor) -> Tensor:
        values = torch.cat([known[name].flatten() for name in rest]).detach().requires_grad_()
        with torch.enable_grad():
            own = {n: v.view_as(known[n]) for n, v in zip(rest, values.split(sizes), strict=True)}
            answer = as_function(trained, _as_batch(single))({**known, **own})[0].flatten()
            back = [torch.autograd.grad(answer, values, c, retain_graph=True)[0] for c in columns.unbind(1)]
        return torch.stack(back)

    rows = by_row(one_row, x, cotangents, otherwise=one_row_plainly)
    for name, part in zip(rest, rows.split(sizes, dim=2), strict=True):
        yield name, part.unflatten(2, known[name].shape)


def _count(x: Inputs) -> int:
    return len(next(iter(x.values())) if isinstance(x, dict) else x)


def _as_batch(single: Inputs) -> Inputs:
    if isinstance(single, dict):
        return {name: value.unsqueeze(0) for name, value in single.items()}
    return single.unsqueeze(0)


def _agrees(layer: Layer, entered: Tensor | None, returned: Tensor | None, truth: dict[str, Tensor], rows: int) -> bool:
    """Whether the first row's gradient is `truth` in closed form, and the first axis is that of the rows."""
    if entered is None or returned is None:
        return False
    if len(entered) != rows or len(returned) != rows or returned[1:].any():
        return False  # the first axis holds positions, or rows and positions together
    pairs = []
    entered, returned = entered[:1], returned[:1].unsqueeze(1)
    try:
        if layer.weight is not None:
            pairs.append((layer.weight_rows(entered, returned, slice(None))[0, 0], truth[layer.weight]))
        if layer.bias is not None:
            pairs.append((layer.bias_rows(returned)[0, 0], truth[layer.bias]))
    except RuntimeError:
        return False  # the layer was fed in a shape that the closed form does not know, such as no batch axis
    close = {torch.float64: 1e-8, torch.float32: 1e-3}.get(returned.dtype, 5e-2)
    return all(a.shape == b.shape and bool((a - b).norm() <= close * b.norm() + 1e-30) for a, b in pairs)
