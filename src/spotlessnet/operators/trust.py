"""How much damping a linear model needs before the network does what the model promises."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

ENOUGH = 0.5
"""The share of the promised decrease that the network must deliver."""

RAISES = 8
"""How often the damping is raised before the last step is taken as it is."""


class Trusted(NamedTuple):
    """A step, the damping that gave it, and the share of its promise that came true."""

    step: Float[Tensor, " P"]
    damping: float
    ratio: float


def dampings(first: float, factor: float = 4.0) -> list[float]:
    """What is tried in turn: none, then from `first` upwards.

    >>> dampings(0.5)[:4]
    [0.0, 0.5, 2.0, 8.0]
    """
    return [0.0] + [first * factor**i for i in range(RAISES)]


def least_trusted(
    step_at: Callable[[float], Float[Tensor, " P"]],
    promised: Callable[[Float[Tensor, " P"], float], float],
    delivered: Callable[[Float[Tensor, " P"]], float],
    tried: Iterable[float],
) -> Trusted:
    r"""The step with the least damping whose decrease is at least half of what the linear model promised.

    For a quadratic objective promise and delivery agree, so the undamped step is taken.

    **Arguments:**

    - `step_at`: the step for a damping.
    - `promised`, `delivered`: by how much the linear model, and the network, lower the objective over a step.
    """
    taken: Trusted | None = None
    for damping in tried:
        step = step_at(damping)
        promise = promised(step, damping)
        # A promise of nothing or less is rounding at a minimum: there is nothing to distrust.
        taken = Trusted(step, damping, delivered(step) / promise if promise > 0 else 1.0)
        if taken.ratio >= ENOUGH:
            break
    assert taken is not None  # there is always a first damping to try
    return taken
