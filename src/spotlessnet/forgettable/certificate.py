"""Certificates: an upper bound on the distance between kept weights and the exact optimum, computed and not assumed."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.forgettable.factor import solve
from spotlessnet.forgettable.moments import Moments
from spotlessnet.forgettable.residual import Residual, residual

UNIT = torch.finfo(torch.float64).eps / 2
"""Half a unit in the last place: what storing a number can cost."""

REFINEMENTS = 8
"""How often weights are corrected before a factor is given up as too coarse."""


@dataclass(frozen=True)
class Certificate:
    r"""How far weights can be from the exact optimum on the examples that are left, in the units of the weights.

    With $A = G + rI$, an exact residual $R = C - AW$ and the factor's correction $\Delta \approx A^{-1}R$, the
    optimum is $W + \Delta + A^{-1}(R - A\Delta)$, and $A$ has no eigenvalue below the ridge $r$. So for the corrected
    weights

    $$\|W' - W^*\|_F \le \|R - A\Delta\|_F / r + u\,\|W'\|_F,$$

    where $u\|W'\|$ is the rounding of $W' = W + \Delta$. The factor may be wrong; the bound holds all the same.

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
    - `coarse`: whether the factor could not correct the weights, so that it must be made anew.
    """

    weights: Float[Tensor, "d C"]
    certificate: Certificate
    steps: int
    coarse: bool


def refine(moments: Moments, ridge: int, L: Float[Tensor, "d d"], W: Float[Tensor, "d C"]) -> Refined:
    """Correct the weights until float64 holds no better ones, and certify them.

    The residual is exact, so the limit does not depend on the factor nor on the start: one problem has one set of
    weights, up to the last bit, whatever requests led to it.
    """
    best: tuple[Tensor, Certificate] | None = None
    norm = float(moments.gram.norm()) + ridge * math.sqrt(len(W))
    # An output that nothing teaches is zero, with no trace of what taught it once.
    W = W * moments.cross.any(dim=0)
    # The first correction is large, so plain rounding does no harm in it.
    W = W + solve(L, moments.cross - moments.gram @ W - ridge * W)
    for step in range(1, REFINEMENTS + 1):
        r = residual(moments.gram, moments.cross, ridge, W, norm=norm)
        delta = solve(L, r.value)
        better = W + delta
        outside = _left_over(moments.gram, ridge, r, delta, norm) / ridge
        sizes = better.norm(dim=0)
        # What is added up here is rounded too, by less than this factor.
        found = Certificate(float((outside + UNIT * sizes).norm()) * (1 + 1e-12), float(better.norm()))
        if best is not None and not found.bound < 0.25 * best[1].bound:
            keep = min(best, (better, found), key=lambda pair: pair[1].bound)
            return Refined(*keep, step, coarse=keep[1].bound > 64 * UNIT * keep[1].size)
        # Column by column: an output with small weights must be as sharp as one with large weights.
        if bool((outside <= UNIT * sizes / 16).all()):
            return Refined(better, found, step, coarse=False)
        best, W = (better, found), better
    assert best is not None
    return Refined(*best, REFINEMENTS, coarse=True)


def _left_over(
    gram: Float[Tensor, "d d"], ridge: int, r: Residual, delta: Float[Tensor, "d C"], norm: float
) -> Float[Tensor, " C"]:
    r"""Per column, at least $\|R - A\Delta\|$: a plain product, and what rounding can hide in it."""
    left = r.value - gram @ delta - ridge * delta
    size = norm * delta.norm(dim=0) + r.value.norm(dim=0)
    return left.norm(dim=0) + r.slack + (len(delta) + 4) * 2 * UNIT * size
