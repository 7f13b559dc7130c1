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

CONFIRMING = 19
"""Fresh draws on which a level must hold: the next draw is the worst of twenty with a chance of one in twenty."""

BACK = 1.5
"""What a level that was not confirmed is divided by before the next attempt."""

ATTEMPTS = 60
"""Times that this may happen before it is said that no level will do."""


@dataclass(frozen=True, eq=False)
class Cost:
    """The rise of the error at one noise level.

    **Arguments:**

    - `mean`: over draws and rows.
    - `limit`: of the worst draw. After `confirmed`, one more network is worse with a chance of one in twenty.
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

    def most_noise(self, limit: float) -> tuple[float, Cost]:
        """The largest level that was chosen to stay within the limit and confirmed to, with its cost."""
        alpha = self._choose(limit)
        for attempt in track(range(ATTEMPTS), "confirming the noise level"):
            cost = self.confirmed(alpha, attempt)
            if cost.limit <= limit:
                return alpha, cost
            alpha /= BACK
        raise NumericsError(_nothing_holds(limit, len(self.rows)))

    def _choose(self, limit: float) -> float:
        """By doubling and bisection in the logarithm."""
        low, high = 1.0, 1.0
        while self.chosen(low).limit > limit:
            # Levels are variances: a quarter is noise of half the length.
            low /= 4
            if low < 1e-30:
                raise NumericsError(_nothing_holds(limit, len(self.rows)))
        while self.chosen(high).limit <= limit:
            high *= 4
            if high > 1e30:
                return high
        low, high = (low, high) if low < high else (high / 4, high)
        for _ in track(range(20), "finding the noise level"):
            # Halved in the logarithm, for the level may lie anywhere within sixty powers of ten.
            middle = (low * high) ** 0.5
            low, high = (middle, high) if self.chosen(middle).limit <= limit else (low, middle)
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
    return Cost(float(each.mean()), float(each.max()))


def _nothing_holds(limit: float, rows: int) -> str:
    return (
        f"No noise level keeps the error increase within {limit:.2%} on {rows} rows, half of which choose and half of "
        "which confirm. Allow more, give more validation rows, or check the data."
    )
