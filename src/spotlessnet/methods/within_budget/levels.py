r"""Levels of noise that may be chosen, and what the choice tells: a grid with weights, made from retained data alone.

A level $4^i$ that is chosen on the request tells of it. So the reference is no Gaussian at the same level, but the pair
of a level drawn with weights $p_i$ and weights drawn at it, in which nothing knows the forgotten rows. To it

$$KL\big(i, N(h, 4^i\Sigma) \,\|\, p_i\, N(w_{D_r}, 4^i\Sigma_0)\big)
  = KL\big(N(h, 4^i\Sigma) \,\|\, N(w_{D_r}, 4^i\Sigma_0)\big) + \log\tfrac1{p_i},$$

since the level is certain on the one side. Whoever sees the weights alone sees less: $\sum_j p_j q_j \ge p_i q_i$, so
the divergence from the mixture is at most that.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.damping import ridge_of
from spotlessnet.core.gaussian import Covariance, Notes
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.solve import conjugate_gradient

STEP = 4.0
"""From one level of variance to the next: noise of twice the length. A power of two, so that scaling rounds nothing."""

FURTHEST = 20
"""Levels on either side of the expected one that may be chosen."""

WIDEST = 0.5
"""The largest ratio of the weights of neighbouring levels: a level further away costs 0.69 nats at least."""

SHARE = 16.0
"""The ratio is one of so many parts of the budget: a small budget is spent on noise, not on a choice of levels."""

PROBES = 4
"""Halvings of the stand-ins that the expected level is the mean of."""

MARGIN = 4.0
"""How much further than a Newton step two trainings are taken to lie apart, in nats: in trials half of them did
(`ESTIMATE_RANGE`)."""

FITTED = 8.0
"""The same again where trained rows stand in, for want of validation rows: a network fits what it was trained on. Both
were chosen on seeds 100 to 107 of the problems of `tests/methods/test_budget_trials.py`."""

TOLERANCE, USUAL, SOLVED = 0.03, 15, 50
"""How well a halving is solved for, and the curvature products that it takes as a rule and at most."""


@dataclass(frozen=True)
class Levels:
    r"""Levels $4^i$ with weights $p_i = \frac{1-q}{1+q}\,q^{|i-e|}$.

    **Arguments:**

    - `expected`: $e$, from retained data and the number of rows alone.
    - `ratio`: $q$, from the budget alone.
    """

    expected: int
    ratio: float

    @staticmethod
    def around(unit_nats: float, max_nats: float | None) -> "Levels":
        """With the level at which so many nats, of noise of level one, would keep the budget with `MARGIN` to spare."""
        levels = Levels(0, WIDEST if max_nats is None else min(WIDEST, max_nats / SHARE))
        room = 1.0 if max_nats is None else max_nats - levels.price(0)
        found = math.ceil(math.log(max(MARGIN * unit_nats, 1e-30) / room, STEP))
        return Levels(min(max(found, -50), 50), levels.ratio)

    def price(self, level: int) -> float:
        r"""$\log\frac{1}{p_i}$, the nats that choosing this level on the request tells."""
        q = self.ratio
        return math.log((1 + q) / (1 - q)) + abs(level - self.expected) * math.log(1 / q)

    @property
    def choices(self) -> range:
        """Those that may be chosen, from little noise to much."""
        return range(self.expected - FURTHEST, self.expected + FURTHEST + 1)

    def quietest(self, unit_nats: float, max_nats: float) -> int | None:
        """The level with the least noise that keeps the budget, its own price included; `None` if there is none."""
        kept = (i for i in self.choices if unit_nats / scale_of(i) + self.price(i) <= max_nats)
        return next(kept, None)

    def cheapest(self, unit_nats: float, loudest: int) -> int:
        """Up to a level, the one that leaves the fewest nats, its own price included."""
        return min((i for i in self.choices if i <= loudest), key=lambda i: unit_nats / scale_of(i) + self.price(i))


def scale_of(level: int) -> float:
    """What the covariance is multiplied by."""
    return STEP**level


def level_of(scale: float) -> int:
    """The level of a factor that `scale_of` made."""
    return round(math.log(scale, STEP))


def expected_nats(network: Trained, covariance: Covariance, split: Split, count: int) -> float:
    r"""Nats that a request of `count` rows leaves on average where nothing is done, without a look at any request.

    A sum of $n$ gradients with random signs is as long as that of a random cohort is, times $\sqrt{n/k}$; half of the
    stand-ins less the other half is one. Validation rows stand in where there are any: the retrained network never saw
    the forgotten rows either, while it fits those that it was trained on.
    """
    held_out = split.validation if split.validation is not None and len(split.validation) > 1 else None
    rows = split.retain if held_out is None else held_out
    draw = torch.Generator().manual_seed(0)
    sums = []
    for _ in range(PROBES):
        first, second = torch.randperm(len(rows), generator=draw).tensor_split(2)
        sums.append(gradient(network, rows.select(first)) - gradient(network, rows.select(second)))
    curvature = GaussNewton(network, split.retain, ridge=len(split.retain) * ridge_of(network, None, Notes()))
    solved = conjugate_gradient(
        curvature, torch.stack(sums), tolerance=TOLERANCE, max_iterations=SOLVED, on_failure="return"
    )
    mean = sum(nats_of(gap, covariance) for gap in solved.x) / PROBES
    return (FITTED if held_out is None else 1.0) * count / len(rows) * mean


def nats_of(gap: Float[Tensor, " P"], covariance: Covariance) -> float:
    """`½ Δᵀ Σ⁻¹ Δ`."""
    return 0.5 * float((gap.double() * covariance.double().solve(gap.double())).sum())
