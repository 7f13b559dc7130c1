"""A step that was cut short, made as long as suits the rows that it was taken for."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data, evenly
from spotlessnet.core.targets import Distillation
from spotlessnet.core.trained import Trained

ASKED = 128
"""Rows whose answers say how long the step should be."""

LENGTHS = 3
"""At so many lengths they are asked."""


@torch.no_grad()
def extend_step(
    trained: Trained, step: Float[Tensor, " P"], data: Data, taught: Float[Tensor, "k C"], most: float
) -> float:
    r"""By how much to multiply a step from the network's weights, so that its answers come nearest to what was taught.

    $$\alpha = \arg\min_{1 \le a \le most} \overline{KL}(t \,\|\, f_{w_0 + a s})$$

    over some of the rows, on the parabola through three lengths. Where it bends down, the best of the three is taken.
    """
    at = evenly(len(data), ASKED)
    some = data.select(at)
    t = taught[at]
    lengths = torch.linspace(1, most, LENGTHS, dtype=torch.float64).tolist()
    answers = (trained.at(trained.weights + a * step).predict(some).cpu() for a in lengths)
    off = [float(Distillation()(f, t.to(f)).mean()) for f in answers]
    if not all(map(math.isfinite, off)):  # a network that breaks at some length is not led nearer to it
        return 1.0
    bend, slope = off[0] - 2 * off[1] + off[2], (off[2] - off[0]) / 2
    if bend <= 0:
        return lengths[min(range(LENGTHS), key=off.__getitem__)]
    # The vertex of the parabola through three equally spaced lengths, kept among them.
    return min(max(lengths[1] - (lengths[1] - lengths[0]) * slope / bend, 1.0), most)
