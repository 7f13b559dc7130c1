"""Residuals without rounding: products of whole numbers and sliced weights are exact, their sum has two parts."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

HIGH = 26
"""Bits of the lower half of a moment; both halves have at most 27."""

SLICES_BITS = 72
"""Bits below the largest weight of a column that are multiplied exactly."""

ROWS = 4096


@dataclass(frozen=True, eq=False)
class Residual:
    r"""$R = C - (G + rI) W$, and how wrong the number can be at most.

    **Arguments:**

    - `value`: $R$ rounded to float64.
    - `slack`: per column, at least the distance of `value` to the true residual.
    """

    value: Float[Tensor, "d C"]
    slack: Float[Tensor, " C"]


def residual(
    gram: Float[Tensor, "d d"],
    cross: Float[Tensor, "d C"],
    ridge: int,
    W: Float[Tensor, "d C"],
    *,
    norm: float | None = None,
) -> Residual:
    r"""The residual of whole-number moments at weights of float64, as exact as if computed with 100 bits.

    $G = 2^{26} H + \Lambda$ with halves of at most 27 bits, and $W = \sum_k W_k + W'$ with slices of so few bits that
    $H W_k$ and $\Lambda W_k$ are sums of whole numbers below 2⁵³: no product rounds. What is left of the weights,
    $W'$, lies 72 bits below the largest one. The partial products are added with the rounding of each addition kept.

    **Arguments:**

    - `norm`: at least the Frobenius norm of $G + rI$, where it is known.
    """
    d, C = W.shape
    slices, rest = _slices(W, bits=53 - 27 - max(1, math.ceil(math.log2(max(d, 2)))))
    joined = torch.cat([*slices, rest], dim=1)
    high_sum, low_sum = torch.empty_like(joined), torch.empty_like(joined)
    for start in range(0, d, ROWS):
        rows = slice(start, min(start + ROWS, d))
        low = gram[rows].clone()
        low.diagonal(offset=start).add_(ridge)
        high = (low * 2.0**-HIGH).round_()
        low.add_(high, alpha=-(2.0**HIGH))
        torch.mm(high, joined, out=high_sum[rows])
        torch.mm(low, joined, out=low_sum[rows])
    total, error = cross, torch.zeros_like(cross)
    for piece in (high_sum * -(2.0**HIGH)).split(C, dim=1) + (-low_sum).split(C, dim=1):
        total, lost = _two_sum(total, piece)
        error += lost
    value = total + error
    size = float(gram.norm()) + ridge * math.sqrt(d) if norm is None else norm
    eps = torch.finfo(torch.float64).eps
    terms = 2 * (len(slices) + 1)
    # The tail W' is multiplied in plain float64; the kept errors are added in plain float64; the value is rounded once.
    slack = 2 * d * eps * size * rest.norm(dim=0)
    slack += (terms * eps) ** 2 * (cross.norm(dim=0) + terms * size * W.norm(dim=0) * math.sqrt(d))
    return Residual(value, slack + eps * value.norm(dim=0))


def _slices(W: Float[Tensor, "d C"], bits: int) -> tuple[list[Float[Tensor, "d C"]], Float[Tensor, "d C"]]:
    """The weights as a sum of slices, each a whole number of `bits` bits times a power of two per column."""
    top = W.abs().amax(dim=0, keepdim=True)
    exponent = torch.where(top > 0, torch.frexp(top)[1], torch.zeros_like(top, dtype=torch.int32))
    rest, made = W.clone(), []
    for k in range(1, math.ceil(SLICES_BITS / bits) + 1):
        step = torch.ldexp(torch.ones_like(top), exponent - k * bits)
        part = (rest / step).round_() * step
        made.append(part)
        rest = rest - part
    return made, rest


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded sum, and exactly what rounding took (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)
