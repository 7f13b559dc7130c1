"""The isosceles trapezium: how long a step of the linearised network must be for the network that SGD found.

Golatkar, Achille and Soatto (2020), *Forgetting Outside the Box*, supplement, Figure 5.
"""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Scale(NamedTuple):
    """A factor for a step: `used` after the guards, `raw` before them."""

    used: float
    raw: float


def trapezium_scale(
    step: Float[Tensor, " P"], leg: Float[Tensor, " P"], least: float = 0.25, most: float = 4.0
) -> Scale:
    r"""$1 + 2\sin(\alpha)\|m\| / \|\delta\|$, within limits, with $\alpha = \angle(\delta, m) - \pi/2$.

    As $\sin(\angle - \pi/2) = -\cos\angle$, this is $1 - 2\,\delta^\top m / \|\delta\|^2$. It is one where the linear
    model ends where SGD did ($m = 0$).

    **Arguments:**

    - `step`: $\delta$, from the linear solution on $D$ to the one on $D_r$.
    - `leg`: $m = (w - w_{start}) - u(D)$, from the linear solution on $D$ to where SGD ended.
    - `least`, `most`: the factor is held between them, so that the direction never flips and nothing blows up.
    """
    d, m = step.double(), leg.double()
    square = float(d @ d)
    raw = 1.0 - 2.0 * float(d @ m) / square if square else 1.0
    # A factor beyond the limits says that the trapezium of the paper is none here: SGD did not end near the linear
    # solution.
    return Scale(min(max(raw, least), most), raw)


def published_scale(step: Float[Tensor, " P"], diagonal: Float[Tensor, " P"]) -> float:
    r"""The published code's rule, for comparison only: $1 + 2\,|\cos\angle(\delta, m')|\,\|m'\| / \|\delta\|$.

    It takes the diagonal $m' = w - w_{start} - u(D_r)$ for the leg and lengthens whatever the angle is.
    """
    d, m = step.double(), diagonal.double()
    square = float(d @ d)
    return 1.0 + 2.0 * abs(float(d @ m)) / square if square else 1.0
