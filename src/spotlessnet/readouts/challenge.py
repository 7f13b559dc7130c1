"""The metric of the NeurIPS 2023 unlearning challenge, with the ceiling that a perfect method reaches.

Triantafillou, Kairouz, Pedregosa and others (2024), *Are we making progress in unlearning?*
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.intervals import Array
from spotlessnet.core.progress import track
from spotlessnet.readouts.margin_kl import check_margins

DELTA = 1e-5
CAP = 50.0
PER_UNIT = 100
"""Thresholds per unit of the margin."""
BUFFER = 2.0
BUCKET = 0.5


def challenge_epsilons(scrubbed: Float[Tensor, "S T"], retrained: Float[Tensor, "R T"]) -> Float[Tensor, " T"]:
    r"""For each row, the largest $\varepsilon$ that any single or double threshold on the margin seems to show.

    $$\varepsilon = \max_{thresholds} \max\Big\{ \log\frac{1 - \delta - FPR}{FNR},\
      \log\frac{1 - \delta - FNR}{FPR} \Big\}$$

    Thresholds where exactly one of the two rates is zero are left out; perfect separation, or one side less than a
    hundredth as wide as the other, reads 50. A point estimate over very many thresholds, hence biased upward: equal
    distributions read about 1.5 at any number of models.
    """
    check_margins(scrubbed, retrained, least=2)
    a, b = scrubbed.double().cpu().numpy(), retrained.double().cpu().numpy()
    return torch.tensor(
        [_epsilon(a[:, i], b[:, i]) for i in track(range(a.shape[1]), "thresholds")], dtype=torch.float64
    )


def challenge_points(epsilons: Float[Tensor, " T"], models: int) -> Float[Tensor, " T"]:
    r"""Points per row: 1 below $\varepsilon = ½$, half as many for each further half.

    None where $\varepsilon$ is past what so many models could show, the logarithm of their number.

    >>> challenge_points(torch.tensor([0.2, 0.6, 1.4, 50.0]), models=512).tolist()
    [1.0, 0.5, 0.25, 0.0]
    """
    buckets = int(math.ceil(math.log(models - 1)) / BUCKET) if models > 2 else 0
    number = (epsilons / BUCKET).floor()
    return torch.where(number < buckets, 0.5 ** number.clamp(max=1000), 0.0)


@dataclass(frozen=True)
class Challenge:
    """The challenge's score and its parts.

    **Arguments:**

    - `forgetting`: `F`, mean points over the forgotten rows.
    - `ceiling`: `F` of a perfect method: equal distributions, this many models. About 0.17 to 0.20, not 1.
    - `retain_ratio`, `test_ratio`: accuracy of the scrubbed models over that of the retrained ones.
    """

    forgetting: float
    ceiling: float
    retain_ratio: float
    test_ratio: float

    @property
    def score(self) -> float:
        """As published: forgetting times both ratios."""
        return self.forgetting * self.retain_ratio * self.test_ratio

    @property
    def relative(self) -> float:
        """Forgetting as a share of what a perfect method gets."""
        return self.forgetting / self.ceiling if self.ceiling else math.nan


def challenge(
    scrubbed: Float[Tensor, "S T"],
    retrained: Float[Tensor, "R T"],
    *,
    retain_ratio: float = 1.0,
    test_ratio: float = 1.0,
    rows: int = 100,
    seed: int = 0,
) -> Challenge:
    """The challenge's score from margins of the forgotten rows under scrubbed and under retrained models.

    **Arguments:**

    - `retain_ratio`, `test_ratio`: accuracies of scrubbed over retrained models; above one they reward, as published.
    - `rows`: simulated rows behind the ceiling.
    """
    models = min(len(scrubbed), len(retrained))
    points = challenge_points(challenge_epsilons(scrubbed, retrained), models)
    return Challenge(float(points.mean()), challenge_ceiling(models, rows=rows, seed=seed), retain_ratio, test_ratio)


def challenge_ceiling(models: int, *, rows: int = 100, seed: int = 0) -> float:
    """`F` where both sides are samples of one Gaussian: what a perfect method is given."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(2, models, rows, generator=generator, dtype=torch.float64)
    return float(challenge_points(challenge_epsilons(draw[0], draw[1]), models).mean())


def _epsilon(scrubbed: Array, retrained: Array) -> float:
    # As in the published code: the side that lies higher is called positive, whichever it is.
    flipped = np.median(retrained) > np.median(scrubbed)
    positive, negative = (retrained, scrubbed) if flipped else (scrubbed, retrained)
    widths = np.ptp(positive), np.ptp(negative)
    if max(widths) == 0:
        return 0.0 if positive[0] == negative[0] else CAP
    if min(widths) / max(widths) < 0.01:
        return CAP
    rates = [_single(positive, negative), _double(positive, negative)]
    fpr, fnr = (np.concatenate(parts) for parts in zip(*rates, strict=True))
    if ((fpr == 0) & (fnr == 0)).any():
        return CAP
    # One rate of zero alone would read as infinite, which so few models cannot show.
    fpr, fnr = (x[(fpr > 0) & (fnr > 0)] for x in (fpr, fnr))
    if not len(fpr):
        return 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        shown = np.fmax(np.log(1 - DELTA - fpr) - np.log(fnr), np.log(1 - DELTA - fnr) - np.log(fpr))
    return float(np.clip(np.nanmax(shown, initial=0.0), 0.0, CAP))


def _single(positive: Array, negative: Array) -> tuple[Array, Array]:
    """Rates of 'at or above the threshold is positive'."""
    both = np.concatenate([positive, negative])
    thresholds = np.linspace(both.min(), both.max(), max(2, math.ceil(np.ptp(both) * PER_UNIT)))
    return 1 - _below(negative, thresholds, "left"), _below(positive, thresholds, "left")


def _double(positive: Array, negative: Array) -> tuple[Array, Array]:
    """Rates of 'between two thresholds is the narrower side'."""
    narrow, wide = (negative, positive) if np.ptp(positive) >= np.ptp(negative) else (positive, negative)
    width = np.ptp(narrow)
    first, last = narrow.min() + width - BUFFER, narrow.max() + BUFFER
    right = np.linspace(first, last, math.ceil((last - first) * PER_UNIT))
    offsets = np.linspace(-BUFFER, BUFFER, math.ceil(2 * BUFFER * PER_UNIT))
    left = right[:, None] - width + offsets

    def between(x: Array) -> Array:
        # A left threshold past the right one holds nothing.
        return np.clip(_below(x, right, "right")[:, None] - _below(x, left, "left"), 0, None).ravel()

    return between(wide), 1 - between(narrow)


def _below(x: Array, thresholds: Array, side: str) -> Array:
    return np.searchsorted(np.sort(x), thresholds, side=side) / len(x)  # type: ignore[call-overload]  # a plain str
