"""What noise costs: how much more often a network errs once noise is on its weights."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.answers import mistakes
from spotlessnet.core.buffers import reestimated
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NumericsError
from spotlessnet.core.gaussian import Covariance
from spotlessnet.core.progress import track
from spotlessnet.core.trained import Trained
from spotlessnet.methods.within_budget.levels import FURTHEST, Levels, scale_of

CONFIRMING = 19
"""Fresh draws on which a level must hold: the next draw is the worst of twenty with a chance of one in twenty."""

ROWS_CHANCE = 0.5
"""Standard errors that are added for the chance of the rows. Beside levels a factor of four apart so few are enough: on
seeds 2100 to 2123 of `tests/methods/test_budget_trials.py`, 30 to 200 rows, 0.1 % of new networks went too far at most
in one setting, and without any 2.2 %."""

LOOKS = (2 * FURTHEST + 1).bit_length()
"""Levels that are looked at for the loudest within an error: all that may be chosen, halved until one is left."""


@dataclass(frozen=True, eq=False)
class Cost:
    """The rise of the error at one noise level.

    **Arguments:**

    - `mean`: over draws and rows.
    - `limit`: of the worst draw, with room for the chance of the rows. After `confirmed`, one more network is worse
      with a chance of one in twenty.
    """

    mean: float
    limit: float


@dataclass(frozen=True, eq=False)
class NoiseCost:
    """Errors around one network, row by row and draw by draw, at any noise level.

    A level is **chosen** on one half of the rows with one set of draws and **confirmed** on the other half with fresh
    ones: on the draws that it was chosen on, any level looks better than it is.

    **Arguments:**

    - `network`: at the mean of the noise.
    - `covariance`: the noise of level one.
    - `rows`: where errors are counted.
    - `draws`: per level when a level is chosen and a curve is drawn.
    - `norms_from`: rows that BatchNorm's statistics are estimated from at every draw, as they are in what is released.
    """

    network: Trained
    covariance: Covariance
    rows: Data
    draws: int
    seed: int
    norms_from: Data | None = None

    def rise(self, alpha: float) -> float:
        """The mean rise on all rows, always with the same draws, so that a curve over levels is smooth."""
        return float(self._increases(alpha, self.rows, self.draws, self._stream(0)).mean())

    def chosen(self, alpha: float) -> Cost:
        """On the rows for choosing, with the draws for choosing."""
        return _cost(self._increases(alpha, self._half(0), self.draws, self._stream(0)))

    def confirmed(self, alpha: float, attempt: int = 0) -> Cost:
        """On the other rows, with draws that no choice has seen."""
        return _cost(self._increases(alpha, self._half(1), CONFIRMING, self._stream(1 + attempt)))

    def best(self, levels: Levels, unit_nats: float, limit: float) -> tuple[int, Cost]:
        """Of the levels that were chosen to stay within the limit and confirmed to, the one of the fewest nats."""
        loudest = self._loudest(levels, limit)
        for attempt in track(range(len(levels.choices)), "confirming the noise level"):
            if loudest < levels.choices[0]:
                break
            level = levels.cheapest(unit_nats, loudest)
            cost = self.confirmed(scale_of(level), attempt)
            if cost.limit <= limit:
                return level, cost
            loudest = level - 1
        raise NumericsError(_nothing_holds(limit, len(self.rows)))

    def _loudest(self, levels: Levels, limit: float) -> int:
        """The last level within the limit, by bisection; one below all others where none is."""
        low, high = levels.choices[0] - 1, levels.choices[-1] + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.chosen(scale_of(middle)).limit <= limit else (low, middle)
        return low

    def _half(self, which: int) -> Data:
        """Every other row, so that sorted labels are met in both halves; a single row must serve twice."""
        return self.rows if len(self.rows) < 2 else self.rows.select(torch.arange(which, len(self.rows), 2))

    def _stream(self, number: int) -> torch.Generator:
        # Like the noise itself, on the CPU: a seed then means the same on every device.
        return torch.Generator().manual_seed(self.seed + 1_000_003 * number)

    def _increases(self, alpha: float, rows: Data, draws: int, generator: torch.Generator) -> Float[Tensor, "S N"]:
        """For each draw and row, the mistake with noise less the one without."""
        covariance = self.covariance.scaled(alpha)
        w = self.network.weights
        clean = mistakes(self.network, rows)
        noisy = [mistakes(self._at(w + covariance.draw(generator).to(w)), rows) for _ in range(draws)]
        return torch.stack(noisy) - clean

    def _at(self, weights: Float[Tensor, " P"]) -> Trained:
        drawn = self.network.at(weights)
        return drawn if self.norms_from is None else drawn.at(weights, reestimated(drawn, self.norms_from))


def _cost(increases: Float[Tensor, "S N"]) -> Cost:
    # The worst draw counts beside the mean: one network is released, not their average.
    each = increases.mean(dim=1)
    error = increases.std(dim=1, correction=0) / max(1, increases.shape[1] - 1) ** 0.5
    return Cost(float(each.mean()), float((each + ROWS_CHANCE * error).max()))


def _nothing_holds(limit: float, rows: int) -> str:
    return (
        f"No noise level keeps the error increase within {limit:.2%} on {rows} rows, half of which choose and half of "
        "which confirm. Allow more, give more validation rows, or check the data."
    )
