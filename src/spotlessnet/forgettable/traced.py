"""A forgettable network as a graph of ordinary operations, for `torch.export` and ONNX.

Tangent features take gradients while they answer. Tracing writes these down as the operations that they consist of.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from spotlessnet.core.errors import MismatchError


def traced(network: nn.Module, example: Tensor) -> nn.Module:
    """The network for batches of the example's shape, with no gradient left to take.

    **Arguments:**

    - `example`: a batch; what comes later must have its shape.
    """
    table: dict[Any, Callable[..., Any]] = {
        torch.ops.aten.convolution_backward.default: _convolution_backward,
        torch.ops.aten.native_batch_norm.default: _batch_norm,
        torch.ops.aten.native_batch_norm_backward.default: _batch_norm_backward,
        torch.ops.aten.hardtanh_backward.default: _hardtanh_backward,
        torch.ops.aten.threshold_backward.default: _threshold_backward,
    }
    # The network's own buffers stay what they are; tracing must not record into a graph that trains.
    graph = make_fx(network, decomposition_table=table)(example)
    answer = graph(example)
    same = network(example)
    if not torch.allclose(answer, same, rtol=1e-3, atol=1e-4 * float(same.abs().max())):
        raise MismatchError("The traced network answers otherwise than the network itself. Report this backbone.")
    return graph.eval()


def _convolution_backward(
    slope: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> tuple[Tensor | None, None, None]:
    """The gradient in the inputs alone, as a convolution: weights are frozen, so nothing else is ever used."""
    if not output_mask[0]:
        return None, None, None
    if transposed:
        found = torch.ops.aten.convolution(slope, weight, None, stride, padding, dilation, False, [0, 0], groups)
        return found, None, None
    # Strides that leave inputs over at the edge are made up for by output padding.
    spare = []
    for i, (step, edge, wide) in enumerate(zip(stride, padding, dilation, strict=True), start=2):
        reached = (slope.shape[i] - 1) * step - 2 * edge + wide * (weight.shape[i] - 1) + 1
        spare.append(x.shape[i] - reached)
    found = torch.ops.aten.convolution(slope, weight, None, stride, padding, dilation, True, spare, groups)
    return found, None, None


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """Frozen statistics make normalisation a scale and a shift."""
    shape = [1, -1, *[1] * (x.ndim - 2)]
    scale = torch.rsqrt(var + eps)
    out = (x - mean.view(shape)) * scale.view(shape)
    if weight is not None:
        out = out * weight.view(shape)
    if bias is not None:
        out = out + bias.view(shape)
    return out, x.new_empty(0), x.new_empty(0)


def _batch_norm_backward(
    slope: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    var: Tensor,
    saved_mean: Tensor | None,
    saved_scale: Tensor | None,
    training: bool,
    eps: float,
    output_mask: list[bool],
) -> tuple[Tensor, None, None]:
    scale = torch.rsqrt(var + eps) if weight is None else torch.rsqrt(var + eps) * weight
    return slope * scale.view([1, -1, *[1] * (x.ndim - 2)]), None, None


def _hardtanh_backward(slope: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    return torch.where((x > low) & (x < high), slope, torch.zeros_like(slope))


def _threshold_backward(slope: Tensor, x: Tensor, threshold: float) -> Tensor:
    return torch.where(x > threshold, slope, torch.zeros_like(slope))
