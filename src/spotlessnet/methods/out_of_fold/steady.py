"""A learning rate at which distilling does not diverge, from the curvature of what is distilled."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from spotlessnet.core.data import Data, evenly
from spotlessnet.core.trained import Trained
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.largest_curvature import PRODUCTS, largest_curvature

PROBED = 64
"""Rows of the batch that the curvature is taken from."""

TWICE = 2.0
"""A gradient may be so many times as long as that of the batch at the beginning before it is shortened."""

FARTHEST = 5.0
"""Logits, root mean square over the batch at the beginning, that steps may at most move answers by at full speed."""

ROW_READS = 9 + 4 * PRODUCTS
"""What a row of it costs, in answers of a row: linearised for six, a gradient for three, each product for four."""


def unlucky(visits: int, heavy: int, batch_size: int) -> tuple[int, int]:
    """How many rows of either kind are probed, mixed as in a batch with two standard deviations more heavy ones.

    >>> unlucky(visits=6400, heavy=100, batch_size=64)
    (3, 61)
    """
    rows = min(PROBED, visits)
    share = heavy / visits
    size = min(batch_size, PROBED)
    often = share + 2 * math.sqrt(share * (1 - share) / size)
    many = min(rows, heavy, math.ceil(rows * often - 1e-9))
    return many, min(rows - many, visits - heavy)


class Steady(NamedTuple):
    """The first learning rate, and the longest gradient that is followed in full."""

    lr: float
    longest: float

    def clip(self, g: Tensor, w: Tensor, done: float) -> None:
        """Shorten a gradient that is longer than those at the beginning, or that would move answers too far."""
        g.mul_((self.longest / g.norm().clamp(min=1e-30)).clamp(max=1))


def steady(pupil: Trained, told: Data, heavy: int, *, lr: float, momentum: float, batch_size: int) -> Steady:
    r"""At most the rate $(1 + m) / \lambda$: half of where gradient descent with momentum $m$ begins to diverge.

    Heavy-ball steps on a curvature $\lambda$ are stable below $2 (1 + m) / \lambda$. The curvature, and the gradient
    that no later one may exceed twice, are those of a batch with more forgotten visits than usual, for these may weigh
    most: the first `heavy` of `told`. Nor may one be longer than

    $$\frac{(1 - m)\, a}{\eta \sqrt\lambda},$$

    at which steps with momentum move answers by $a = 5$ logits each in the steepest direction: targets that lie forty
    logits away make gradients along which curvature at the beginning says nothing of what follows.
    """
    many, others = unlucky(len(told), heavy, batch_size)
    chosen = told.select(torch.cat([evenly(heavy, many), heavy + evenly(len(told) - heavy, others)]))
    top = largest_curvature(pupil, chosen)
    longest = TWICE * float(gradient(pupil, chosen).norm()) / len(chosen)
    if not top > 0:
        return Steady(lr, longest)
    lr = min(lr, (1 + momentum) / top)
    return Steady(lr, min(longest, (1 - momentum) * FARTHEST / (lr * math.sqrt(top))))
