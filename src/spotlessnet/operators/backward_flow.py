"""Where following a training backwards stops to mean anything: rounding, and steps longer than the training was."""

import math

from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import NumericsError
from spotlessnet.core.trained import Trained
from spotlessnet.operators.dense import eigenbasis

LOST, LONGEST = 1e-3, 20.0
"""What rounding may become when a training is undone, in units of the gradient; and times that are always refused."""

SLACK = 3.0
"""How far beyond its limit the step of a stopped training may lead: the start may be another than the decay's."""


def check_rounding(A: Float[Tensor, "P P"], B: Float[Tensor, "P P"], t: float, eps: float) -> None:
    r"""$e^{-Bt}e^{At}$ makes an error of the gradient up to $e^{(a_{max} - b_{min})t}$ times larger."""
    exponent = (float(eigenbasis(A)[0][-1]) - float(eigenbasis(B)[0][0])) * t
    most = math.log(LOST / eps)
    if exponent > most or t >= LONGEST:
        raise NumericsError(
            f"Undoing a training of time {t:g} must leave digits of the gradient, so that the time may be below "
            f"{LONGEST:g} and, times the largest curvature less the least, {most:.3g}, but that is {exponent:.3g}. "
            "Use `clamp=True`, a shorter `time`, or leave `time` out."
        )


def check_reach(trained: Trained, step: Float[Tensor, " P"], d_r: Float[Tensor, " P"], t: float) -> None:
    r"""No flow on a convex quadratic goes further from its optimum than where it began.

    So $\|h_t(w) - w\| \le \|w - w_{start}\| + 2\|d_r\|$. A step beyond it is $e^{At}$ at work on what was not left by
    such a flow.
    """
    most = float((trained.weights - trained.anchor).double().norm()) + 2 * float(d_r.norm())
    length = float(step.norm())
    if length > SLACK * most:
        raise NumericsError(
            f"Undoing a training of time {t:g} must not lead further than that training can have gone, {most:.3g}, "
            f"but leads {length:.3g} away: the training was no gradient flow on this quadratic. Use `clamp=True`, a "
            "shorter `time`, or leave `time` out."
        )
