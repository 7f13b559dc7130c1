"""Residuals without rounding: products of whole numbers and sliced weights are exact, their sum has two parts."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

EPS = torch.finfo(torch.float64).eps
EXACT = 53
"""Whole numbers of up to so many bits are exact in float64."""

SPARE = 6
"""Bits beyond those of float64 with which weights are certain."""

SPLITTING = 64
"""Splitting the moments into halves costs about as much as this many more columns of a product."""

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


@dataclass(frozen=True)
class Scheme:
    """How a product is cut into exact ones.

    **Arguments:**

    - `shift`: the moments are halved at this bit; 0 leaves them whole.
    - `bits`, `slices`: of the weights.
    """

    shift: int
    bits: int
    slices: int

    @property
    def products(self) -> int:
        """How many times as many columns are multiplied as the weights have."""
        return (2 if self.shift else 1) * (self.slices + 1)


def scheme(largest: float, row: float, size: float, ridge: int, d: int, columns: int) -> Scheme:
    """The cheapest cut under which every partial product is exact and the tail is below the last bit of the answer.

    **Arguments:**

    - `largest`, `row`: at least the largest entry, and the largest sum of absolute entries of a row.
    - `size`: at least the norm of the matrix.
    """
    # The tail is multiplied in plain float64, and its rounding must stay far below `ridge` times the weights.
    wanted = SPARE + 2 + 1.5 * math.log2(max(d, 2)) + math.log2(max(size / ridge, 1.0))
    shift = max(1, math.ceil(math.log2(max(largest, 2.0)) / 2))
    found = []
    for cut, sums in ((0, row), (shift, max(row * 2.0**-shift, (d + 1) * 2.0**shift))):
        bits = EXACT - math.ceil(math.log2(max(sums, 2.0)))
        if bits >= 2:
            one = Scheme(cut, bits, math.ceil(wanted / bits))
            found.append((one.products * columns + (SPLITTING if cut else 0), one))
    return min(found, key=lambda pair: pair[0])[1]


def residual(
    gram: Float[Tensor, "d d"], cross: Float[Tensor, "d C"], ridge: int, W: Float[Tensor, "d C"], *, size: float
) -> Residual:
    r"""The residual of whole-number moments at weights of float64, as exact as if computed with many more bits.

    $W = \sum_k W_k + W'$ with slices of so few bits that $G W_k$ are sums of whole numbers below 2⁵³: no product
    rounds. Where the moments are large they are halved first, $G = 2^s H + \Lambda$. What is left of the weights,
    $W'$, is so small that plain rounding does no harm. The partial products are added with the rounding of each
    addition kept.

    **Arguments:**

    - `size`: at least the Frobenius norm of $G + rI$; `size_of` gives one.
    """
    d, C = W.shape
    roots = (gram.diagonal() + ridge).sqrt()
    # A positive semi-definite matrix has |G_ij| ≤ √(G_ii G_jj), so its diagonal bounds entries and rows.
    top, total = torch.stack([roots.amax(), roots.sum()]).tolist()
    cut = scheme(1.01 * top * top, 1.01 * top * total, size, ridge, d, C)
    slices, rest = _slices(W, cut)
    joined = torch.cat([*slices, rest], dim=1)
    pieces = _halves(gram, ridge, joined, cut.shift) if cut.shift else [gram @ joined, ridge * joined]
    sums = cross
    error = torch.zeros_like(cross)
    for piece in pieces:
        for part in piece.split(C, dim=1):
            sums, lost = _two_sum(sums, -part)
            error += lost
    value = sums + error
    terms = cut.products + slices_of_ridge(cut)
    # The tail W' is multiplied in plain float64; the kept errors are added in plain float64; the value is rounded once.
    slack = 2 * d * EPS * size * rest.norm(dim=0)
    slack += (terms * EPS) ** 2 * (cross.norm(dim=0) + terms * size * W.norm(dim=0) * math.sqrt(d))
    return Residual(value, slack + EPS * value.norm(dim=0))


def slices_of_ridge(cut: Scheme) -> int:
    """Whole moments are multiplied apart from the ridge, so there are as many terms again."""
    return 0 if cut.shift else cut.slices + 1


def size_of(gram: Float[Tensor, "d d"], ridge: int) -> float:
    """At least the Frobenius norm of the moments plus ridge: of a positive semi-definite matrix, the trace is."""
    return 1.01 * float(gram.diagonal().sum()) + ridge * math.sqrt(len(gram))


def _halves(
    gram: Float[Tensor, "d d"], ridge: int, joined: Float[Tensor, "d n"], shift: int
) -> list[Float[Tensor, "d n"]]:
    high_sum, low_sum = torch.empty_like(joined), torch.empty_like(joined)
    for start in range(0, len(gram), ROWS):
        rows = slice(start, min(start + ROWS, len(gram)))
        # Two passes over the moments: on a GPU the time of a request goes into reading them.
        high = torch.div(gram[rows], 2.0**shift, rounding_mode="trunc")
        low = torch.add(gram[rows], high, alpha=-(2.0**shift))
        high.diagonal(offset=start).add_(ridge >> shift)
        low.diagonal(offset=start).add_(ridge % 2**shift)
        torch.mm(high, joined, out=high_sum[rows])
        torch.mm(low, joined, out=low_sum[rows])
    return [high_sum * 2.0**shift, low_sum]


def _slices(W: Float[Tensor, "d C"], cut: Scheme) -> tuple[list[Float[Tensor, "d C"]], Float[Tensor, "d C"]]:
    """The weights as a sum of slices, each a whole number of `bits` bits times a power of two per column."""
    top = W.abs().amax(dim=0, keepdim=True)
    exponent = torch.where(top > 0, torch.frexp(top)[1], torch.zeros_like(top, dtype=torch.int32))
    rest = W.clone()
    made = []
    for k in range(1, cut.slices + 1):
        step = torch.ldexp(torch.ones_like(top), exponent - k * cut.bits)
        part = (rest / step).round_() * step
        made.append(part)
        rest = rest - part
    return made, rest


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded sum, and exactly what rounding took (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)
