"""A step made longer or shorter, as suits the rows that it was taken for and those that it must leave alone."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data, evenly
from spotlessnet.core.loss import wrong_class
from spotlessnet.core.targets import Distillation
from spotlessnet.core.trained import Trained

ASKED = 128
"""Forgotten rows whose answers say how long the step should be."""

ASKED_RETAINED = 512
"""Retained rows that are asked too."""

ASKED_BETWEEN = 48
"""Of either kind, rows that are asked while visits go on."""

LENGTHS = 3
"""At so many lengths they are asked."""

SHORTEST = 0.5
"""Of them the shortest, in steps as they were taken."""

SHORTER = (0.25, 0.125, 0.0625)
"""Lengths that are tried, too, where retained rows allow none of them."""

HALVINGS = 3
"""Of the gap between a length that they allow and one that they do not."""

TOLERANCE = 0.005
"""How much larger the error of retained rows may become: half a point."""


class Side(NamedTuple):
    """Some rows, the answers that they are held to at a temperature, and the share of the objective that is theirs."""

    data: Data
    answers: Float[Tensor, "n C"]
    weight: float
    temperature: float

    def some(self, count: int) -> "Side":
        """At most so many of them."""
        at = evenly(len(self.data), count)
        return self._replace(data=self.data.select(at), answers=self.answers[at])


@torch.no_grad()
def objective(trained: Trained, weights: Float[Tensor, " P"], *sides: Side) -> tuple[float, Float[Tensor, "n C"]]:
    """How far answers are from what they are held to, and what is said of the rows of the last side."""
    there = trained.at(weights)
    said = [there.predict(side.data).cpu() for side in sides]
    each = (
        side.weight * float(Distillation(side.temperature)(f, side.answers.to(f)).mean())
        for side, f in zip(sides, said, strict=True)
    )
    return sum(each), said[-1]


@torch.no_grad()
def step_length(
    trained: Trained,
    begun: Float[Tensor, " P"],
    step: Float[Tensor, " P"],
    forget: Side,
    retain: Side,
    *,
    most: float,
) -> float:
    r"""By how much to multiply a step, so that answers come nearest to what was taught and to what was known.

    $$\alpha = \arg\min_{\frac12 \le a \le most} \beta\,\overline{D_T}(t \,\|\, f_{w_0 + a s})_{D_f}
      + (1 - \beta)\,\overline{D_T}(f_{w_0} \,\|\, f_{w_0 + a s})_{D_r}$$

    over some of the rows, on the parabola through three lengths; where it bends down, the best of the three is taken.
    Never longer than the longest length at which the error of the retained rows has grown by half a point at most,
    which is looked for between those that they allow and do not; where it has grown by more at each, a quarter of the
    step and less is tried, and zero is the last resort.
    """
    forget, retain = forget.some(ASKED), retain.some(ASKED_RETAINED)
    labels = retain.data.labels().cpu().long()
    most_errors = float(wrong_class(retain.answers, labels).double().mean()) + TOLERANCE

    def looked(a: float, *sides: Side) -> tuple[float, bool]:
        """The objective at a length, and whether retained rows, the last of the sides, allow it."""
        off, said = objective(trained, begun + a * step, *sides)
        errors = float(wrong_class(said, labels).double().mean())
        return off, math.isfinite(off) and errors <= most_errors

    lengths = torch.linspace(SHORTEST, most, LENGTHS, dtype=torch.float64).tolist()
    found = [looked(a, forget, retain) for a in lengths]
    best = _best(lengths, [off for off, _ in found])
    allowed = [a for a, (_, fits) in zip(lengths, found, strict=True) if fits]
    low = max(allowed) if allowed else next((a for a in SHORTER if looked(a, retain)[1]), 0.0)
    if best <= low or not low:
        return min(best, low)
    high = min(a for a in (*SHORTER, *lengths) if a > low)  # refused: `low` is the longest that is not
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if looked(middle, retain)[1] else (low, middle)
    return min(best, low)


def _best(lengths: list[float], off: list[float]) -> float:
    finite = [a for a, value in zip(lengths, off, strict=True) if math.isfinite(value)]
    if len(finite) < LENGTHS:  # a network that breaks at some length is not led nearer to it
        return min(finite)
    bend, slope = off[0] - 2 * off[1] + off[2], (off[2] - off[0]) / 2
    if bend <= 0:
        return lengths[min(range(LENGTHS), key=off.__getitem__)]
    # The vertex of the parabola through three equally spaced lengths, kept among them.
    return min(max(lengths[1] - (lengths[1] - lengths[0]) * slope / bend, lengths[0]), lengths[-1])
