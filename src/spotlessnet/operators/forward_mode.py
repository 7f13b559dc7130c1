"""Forward mode with fewer passes through memory, for the layers that transformers are made of.

`jvp` takes a layer apart into small operations on all of its activations, each of which reads and writes them; on a
GPU that takes most of a product's time. Three layers have formulas with few operations. The Jacobians of
standardisation and of softmax are symmetric, so what leads back through them, one fused operation, leads forward too.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional
from torch.overrides import TorchFunctionMode

PAYS = ("cuda",)
"""Where: on a CPU, Python's share of each formula outlasts what small networks save."""

ALIGNED = 8
"""Lengths in half precision of which the matrix units take a multiple at once: others take several times as long."""


@contextmanager
def fewer_passes(device: torch.device) -> Iterator[None]:
    """Within this block forward mode takes these formulas, on devices where that pays."""
    if device.type not in PAYS:
        yield
        return
    with FewerPasses():
        yield


class FewerPasses(TorchFunctionMode):
    """Linear layers, layer norms and plain attention by the formulas below; everything else as it is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = _FORMULAS.get(func)
        answer = None if known is None else known(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if answer is None else answer


class Linear(Function):
    """`y = x Wᵀ + b`; `dy = x dWᵀ + db + dx Wᵀ` in two operations."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_forward(*inputs[:2])

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, dweight: Tensor, dbias: Tensor | None) -> Tensor:
        x, weight = ctx.saved_tensors
        rows, drows = x.reshape(-1, x.shape[-1]), dx.reshape(-1, x.shape[-1])
        dy = rows @ dweight.mT if dbias is None else torch.addmm(dbias, rows, dweight.mT)
        return dy.addmm_(drows, weight.mT).reshape(*x.shape[:-1], len(weight))


class LayerNorm(Function):
    r"""`y = h w + b` of `h`, standardised by row; `dy = J dx w + h dw + db`, where $J^\top = J$."""

    @staticmethod
    def forward(x: Tensor, shape: tuple[int, ...], weight: Tensor, bias: Tensor, eps: float) -> Any:
        return torch.native_layer_norm(x, shape, weight, bias, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.shape, weight, _, ctx.eps = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_forward(x, weight, *output[1:])

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, _: None, dweight: Tensor, dbias: Tensor, __: None) -> Any:
        x, weight, mean, scale = ctx.saved_tensors
        back = torch.ops.aten.native_layer_norm_backward
        moved = back(dx.contiguous(), x, ctx.shape, mean, scale, None, None, [True, False, False])[0]
        standardised = torch.native_layer_norm(x, ctx.shape, None, None, ctx.eps)[0]
        return torch.addcmul(dbias, moved, weight).addcmul_(standardised, dweight), None, None


class Attention(Function):
    r"""`P V` with `P = softmax(s Q Kᵀ)`, heads as one axis; `d(P V) = J d(s Q Kᵀ) V + P dV`, where $J^\top = J$.

    Keys and values come lengthened by rows of zeros, of which `length` count.
    """

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, length: int) -> Any:
        scores = torch.bmm(q, k.mT)
        scores[..., length:] = -torch.inf
        chosen = torch.softmax(scores, dim=-1)
        return torch.bmm(chosen, v), chosen

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_forward(*inputs[:3], output[1])

    @staticmethod
    def jvp(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor, _: None) -> Any:
        q, k, v, chosen = ctx.saved_tensors
        dscores = torch.bmm(dq, k.mT).baddbmm_(q, dk.mT)
        moved = torch._softmax_backward_data(dscores, chosen, -1, chosen.dtype)
        return torch.bmm(moved, v).baddbmm_(chosen, dv), None


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    if x.ndim < 2 or weight.ndim != 2:
        return None
    narrow = _formats(x)[0]
    with torch.autocast(x.device.type, enabled=False):
        bias = None if bias is None else bias.to(narrow)
        found: Tensor = Linear.apply(x.to(narrow), weight.to(narrow), bias)
    return found


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor | None:
    wide = _formats(x)[1]
    if weight is None or bias is None or {weight.dtype, bias.dtype} != {wide}:
        return None
    with torch.autocast(x.device.type, enabled=False):
        found: Tensor = LayerNorm.apply(x.to(wide), tuple(shape), weight, bias, eps)[0]
    return found


def _attention(q: Tensor, k: Tensor, v: Tensor, *masks: Any, scale: float | None = None, **more: Any) -> Tensor | None:
    # Masks, dropout, causal order and heads that share their keys are left to torch.
    given = [one for one in (*masks, *more.values()) if one is not None]
    if any(isinstance(one, Tensor) or one for one in given) or q.ndim < 3 or q.shape[:-2] != k.shape[:-2]:
        return None
    shape, length = q.shape[:-1], k.shape[-2]
    narrow = _formats(q)[0]
    with torch.autocast(q.device.type, enabled=False):
        q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
        q, k, v = (one.to(narrow).flatten(end_dim=-3) for one in (q, k, v))
        k, v = (functional.pad(one, (0, 0, 0, -length % ALIGNED)) for one in (k, v))
        found: Tensor = Attention.apply(q, k, v, length)[0]
    return found.reshape(*shape, v.shape[-1])


def _formats(x: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """In which number formats autocast has products and norms computed; the input's own where it is off."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64:
        return x.dtype, x.dtype
    return torch.get_autocast_dtype(kind), torch.float32


_FORMULAS: dict[Any, Callable[..., Tensor | None]] = {
    functional.linear: _linear,
    functional.layer_norm: _layer_norm,
    functional.scaled_dot_product_attention: _attention,
}
