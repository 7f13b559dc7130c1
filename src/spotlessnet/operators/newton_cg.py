"""Minimise a convex objective over the weights by damped Newton steps, each solved by conjugate gradients."""

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import check_positive
from spotlessnet.core.progress import track
from spotlessnet.core.trained import Trained
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.line_search import backtrack
from spotlessnet.operators.solve import conjugate_gradient


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where the steps ended.

    **Arguments:**

    - `residual`: the gradient's length there, as a share of the first one's.
    - `failure`: why it is not below the tolerance; empty where it is.
    """

    weights: Float[Tensor, " P"]
    residual: float
    steps: int
    failure: str = ""


MOST = 50
"""Steps at most."""


def rough(left: float) -> float:
    """How well a step is solved for where so much of the gradient is left."""
    return min(0.1, left**0.5)


def minimise(
    trained: Trained,
    data: Data,
    *,
    ridge: float,
    tilt: Float[Tensor, " P"] | None = None,
    tolerance: float = 1e-6,
    max_steps: int = MOST,
    max_iterations: int = 500,
    batch_size: int = 256,
) -> Minimum:
    r"""Minimise $\sum_i \ell_i(\theta) + \tfrac r2\|\theta - w_{anchor}\|^2 - t^\top\theta$ from `trained.weights`.

    The curvature is Gauss-Newton, which is the Hessian where outputs are linear in the weights; there, with a convex
    loss, the minimum is the only one.

    **Arguments:**

    - `ridge`, `tilt`: $r > 0$ and $t$; with a tilt the gradient of the rest is $t$ at the minimum, not zero.
    """
    check_positive("ridge", ridge, "Give a decay or a damping; without either the minimum may lie at infinity.")
    here, first, last = trained, 0.0, 0.0
    promised, rounding, before = math.inf, 0.0, math.inf
    for steps in track(range(max_steps + 1), "linearised training"):
        G = gradient(here, data, ridge=ridge, batch_size=batch_size)
        G = G if tilt is None else G - tilt
        last = float(G.double().norm())
        first = first or last
        if last <= tolerance * first:
            return Minimum(here.weights, last / first if first else 0.0, steps)
        # Once the last step promised less than the objective rounds, the gradient falls or rounding has taken over.
        if steps == max_steps or (promised <= rounding and not last <= 0.5 * before):
            break
        H = GaussNewton(here, data, ridge=ridge, batch_size=batch_size)
        # A rough solve is enough far from the minimum; near it the steps become Newton's own.
        enough = rough(last / first)
        step = conjugate_gradient(
            H, -G, tolerance=max(enough, 1e-10), max_iterations=max_iterations, on_failure="return"
        ).x
        slope = float(G.double() @ step.double())
        # Convex is not enough for a whole step: where softmax saturates, curvature falls along the way.
        found = backtrack(here, data, step, slope, ridge=ridge, tilt=tilt, batch_size=batch_size)
        if not found.accepted:
            break
        here = here.at(here.weights + found.scale * step)
        promised, rounding, before = -0.5 * slope, found.rounding, last
    why = (
        f"The gradient must fall to {tolerance:g} of its first length, but is {last / first:.2g} of it after {steps} "
        f"steps in {str(trained.dtype).removeprefix('torch.')}. Loosen the tolerance, raise the damping, or work in "
        "float64."
    )
    return Minimum(here.weights, last / first, steps, why)
