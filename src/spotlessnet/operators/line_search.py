"""How far a step may go: shorten it until the network itself, not its linearisation, agrees that it helps."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Batch, Data
from spotlessnet.core.progress import track
from spotlessnet.core.trained import Trained
from spotlessnet.operators.sums import sum_over

ENOUGH = 1e-4
"""The share of the promised decrease that must come true (Armijo)."""

HALVINGS = 12
"""How often a step is halved before it is given up."""


class Search(NamedTuple):
    """The factor that was accepted, and whether any was: `scale` is zero where none was.

    `rounding` is how far two values of the objective may differ by rounding alone.
    """

    scale: float
    accepted: bool
    rounding: float = 0.0


def summed_objective(
    trained: Trained,
    data: Data,
    weights: Float[Tensor, " P"],
    *,
    ridge: float = 0.0,
    tilt: Float[Tensor, " P"] | None = None,
    batch_size: int = 256,
) -> float:
    r"""$\sum_i \ell_i(\theta) + \tfrac r2 \|\theta - w_{anchor}\|^2 - t^\top \theta$ at some weights."""

    def piece(one: Batch, s: Tensor) -> Tensor:
        # One loss may round in float32, their sum must not: the differences looked for are small.
        return (s.double() * trained.losses(one.x, one.y, weights).double()).sum()

    with torch.no_grad():
        zero = torch.zeros((), dtype=torch.float64, device=trained.device)
        total = float(sum_over(trained, data, piece, batch_size=batch_size, label="line search", zero=zero))
    theta = weights.double()
    total += 0.5 * ridge * float((theta - trained.anchor.double()).square().sum())
    return total if tilt is None else total - float(tilt.double() @ theta)


def backtrack(
    trained: Trained,
    data: Data,
    step: Float[Tensor, " P"],
    slope: float,
    *,
    ridge: float = 0.0,
    tilt: Float[Tensor, " P"] | None = None,
    batch_size: int = 256,
) -> Search:
    r"""The largest of $1, \tfrac12, \tfrac14, \dots$ with $\varphi(s) \le \varphi(0) + 10^{-4} s\, \varphi'(0)$.

    $\varphi(s)$ is `summed_objective` at $w + s\delta$. For a quadratic and its own Newton step the answer is one.

    **Arguments:**

    - `step`, `slope`: $\delta$ and $\varphi'(0)$, which is negative for a step that goes down.
    """
    w = trained.weights
    begin = summed_objective(trained, data, w, ridge=ridge, tilt=tilt, batch_size=batch_size)
    # Differences below this are rounding; a step at a minimum must not be refused for them.
    rounding = 8 * torch.finfo(trained.dtype).eps * abs(begin)
    for scale in track([0.5**i for i in range(HALVINGS + 1)], "line search"):
        now = summed_objective(trained, data, w + scale * step, ridge=ridge, tilt=tilt, batch_size=batch_size)
        if now <= begin + ENOUGH * scale * slope + rounding:
            return Search(scale, True, rounding)
    return Search(0.0, False, rounding)
