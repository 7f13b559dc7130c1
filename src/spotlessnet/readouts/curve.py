"""Straight lines between two networks of the same kind, and what is measured on the way."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError
from spotlessnet.core.progress import track
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.mean_loss import mean_loss


class Curve(NamedTuple):
    """A quantity along a line: `0` is its start, `1` its end."""

    positions: Float64[Tensor, " K"]
    values: Float64[Tensor, " K"]


def along_line(
    start: Trained,
    end: Trained,
    measure: Callable[[Trained], float],
    *,
    steps: int = 20,
    low: float = 0.0,
    high: float = 1.0,
) -> Curve:
    r"""Measure the networks at $w(a) = (1 - a)\, w_{start} + a\, w_{end}$.

    **Arguments:**

    - `steps`: number of equal steps, so one more point than that.
    - `low`, `high`: the first and the last `a`; go below 0 or above 1 to look past the ends.
    """
    if steps < 1:
        raise SettingError(f"`steps` must be at least 1, but got {steps}.")
    goal = start.at(end.weights).weights
    positions = torch.linspace(low, high, steps + 1, dtype=torch.float64)
    values = [
        measure(start.at(start.weights.lerp(goal, a))) for a in track(positions.tolist(), "along the line", steps + 1)
    ]
    return Curve(positions, torch.tensor(values, dtype=torch.float64))


def loss_along_line(
    start: Trained, end: Trained, data: Data, *, steps: int = 20, low: float = 0.0, high: float = 1.0
) -> Curve:
    """Mean loss on `data` along the line: a barrier between two networks shows as a hill."""
    return along_line(start, end, lambda network: mean_loss(network, data), steps=steps, low=low, high=high)
