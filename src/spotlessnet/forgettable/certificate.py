"""Certificates: an upper bound on the distance between kept weights and the exact optimum, computed and not assumed."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.forgettable.moments import Moments
from spotlessnet.forgettable.residual import Residual, residual, size_of

UNIT = torch.finfo(torch.float64).eps / 2
"""Half a unit in the last place: what storing a number can cost."""

SHARP = 1 / 16
"""The share of that up to which weights are corrected, so that as a rule they are the same to the last bit."""

GRID = -60
"""Weights are rounded to this power of two of their column's largest. Without it, weights that are nearly zero would
keep digits that no certificate covers, and two ways to one problem would differ in them."""

REFINEMENTS = 8
"""How often weights are corrected before an inverse is given up as too coarse."""


@dataclass(frozen=True)
class Certificate:
    r"""How far weights can be from the exact optimum on the examples that are left, in the units of the weights.

    With $A = G + rI$, an exact residual $R = C - AW$ and the correction $\Delta = PR \approx A^{-1}R$, the
    optimum is $W + \Delta + A^{-1}(R - A\Delta)$, and $A$ has no eigenvalue below the ridge $r$. So for the corrected
    weights

    $$\|W' - W^*\|_F \le \|R - A\Delta\|_F / r + u\,\|W'\|_F,$$

    where $u\|W'\|$ is the rounding of $W' = W + \Delta$. The inverse $P$ may be wrong; the bound holds all the same.

    **Arguments:**

    - `bound`: the right-hand side.
    - `size`: $\|W'\|_F$, to compare with.
    """

    bound: float
    size: float

    @property
    def relative(self) -> float:
        """The bound as a share of the weights' length."""
        return self.bound / self.size if self.size else self.bound


@dataclass(frozen=True, eq=False)
class Refined:
    """Weights with their certificate.

    **Arguments:**

    - `steps`: how many corrections it took.
    - `coarse`: whether the inverse could not correct the weights, so that it must be made anew.
    """

    weights: Float[Tensor, "d C"]
    certificate: Certificate
    steps: int
    coarse: bool


def refine(
    moments: Moments, ridge: int, P: Float[Tensor, "d d"], W: Float[Tensor, "d C"], *, near: bool = False
) -> Refined:
    """Correct the weights until float64 holds no better ones, and certify them.

    The residual is exact, so the limit does not depend on the inverse nor on the start: one problem has one set of
    weights, up to the last bit, whatever requests led to it.

    **Arguments:**

    - `P`: about the inverse of the moments plus ridge.
    - `near`: whether the weights solve the problem already, up to plain rounding.
    """
    best: tuple[Tensor, Certificate] | None = None
    size = size_of(moments.gram, ridge)
    # An output that nothing teaches is zero, with no trace of what taught it once.
    W = W * moments.cross.any(dim=0)
    if not near:
        # The first correction is large, so plain rounding does no harm in it.
        W = W + P @ (moments.cross - moments.gram @ W - ridge * W)
    for step in range(1, REFINEMENTS + 1):
        r = residual(moments.gram, moments.cross, ridge, W, size=size)
        delta = P @ r.value
        better, rounded = _on_grid(W + delta)
        outside = _left_over(moments.gram, ridge, r, delta, size) / ridge
        sizes = better.norm(dim=0)
        # One look at the device for three answers. What another step could not better is no reason for one: the grid.
        bound, length, sharp = torch.stack(
            [(outside + rounded + UNIT * sizes).norm(), better.norm(), (outside <= UNIT * sizes * SHARP).all().to(W)]
        ).tolist()
        # What was added up here is rounded too, by less than this factor.
        found = Certificate(bound * (1 + 1e-12), length)
        # Column by column: an output with small weights must be as sharp as one with large weights.
        if sharp:
            return Refined(better, found, step, coarse=False)
        if best is not None and not found.bound < 0.25 * best[1].bound:
            keep = min(best, (better, found), key=lambda pair: pair[1].bound)
            return Refined(*keep, step, coarse=keep[1].bound > 64 * UNIT * keep[1].size)
        best, W = (better, found), better
    assert best is not None
    return Refined(*best, REFINEMENTS, coarse=True)


def _on_grid(W: Float[Tensor, "d C"]) -> tuple[Float[Tensor, "d C"], Float[Tensor, " C"]]:
    """Weights on their column's grid, and per column how far they can have moved."""
    top = W.abs().amax(dim=0)
    step = torch.where(top > 0, torch.ldexp(torch.ones_like(top), torch.frexp(top)[1] + GRID), torch.ones_like(top))
    return (W / step).round_() * step, (top > 0) * step * (0.5 * math.sqrt(len(W)))


def _left_over(
    gram: Float[Tensor, "d d"], ridge: int, r: Residual, delta: Float[Tensor, "d C"], size: float
) -> Float[Tensor, " C"]:
    r"""Per column, at least $\|R - A\Delta\|$: a plain product, and what rounding can hide in it."""
    left = r.value - gram @ delta - ridge * delta
    hidden = size * delta.norm(dim=0) + r.value.norm(dim=0)
    return left.norm(dim=0) + r.slack + (len(delta) + 4) * 2 * UNIT * hidden
