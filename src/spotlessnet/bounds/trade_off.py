"""Trade-off: what accuracy the noise costs, and how many nats it buys."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from spotlessnet.core.bound import Bound
from spotlessnet.core.errors import SettingError, check_positive
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.intervals import t_interval
from spotlessnet.core.progress import track
from spotlessnet.core.readout import Reading, Readout
from spotlessnet.core.scrub import drawn_network
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained

SCALES = (0.01, 0.1, 1.0, 10.0, 100.0)


@dataclass(frozen=True)
class TradeOff:
    """One curve: for each scale of the covariance, the readings and the bounds.

    **Arguments:**

    - `scales`: factors of the covariance; the standard deviation grows with their root.
    - `readings`: for each readout its mean over draws, with an interval, per scale.
    - `nats`: for each bound its value per scale.
    """

    scales: tuple[float, ...]
    readings: Mapping[str, tuple[Reading, ...]]
    nats: Mapping[str, tuple[Reading, ...]]

    def points(self, readout: str, bound: str) -> list[tuple[float, float]]:
        """The curve that the papers plot: `(nats, reading)` per scale."""
        return [(float(n), float(r)) for n, r in zip(self.nats[bound], self.readings[readout], strict=True)]


def trade_off(
    scrubbed: Gaussian,
    reference: Gaussian,
    trained: Trained,
    split: Split,
    *,
    readouts: Sequence[Readout],
    bounds: Sequence[Bound],
    scales: Sequence[float] = SCALES,
    draws: int = 5,
    seed: int = 0,
) -> TradeOff:
    r"""Scale both covariances by the same factor, over a grid, and look at utility and nats.

    With equal covariances the nats fall as one over the factor. The same unit noise is used at every scale, so that
    the curve is smooth.

    **Arguments:**

    - `readouts`: what the noise may cost, the error on the retained data as a rule.
    - `draws`: noisy networks that each reading is averaged over.
    """
    if not len(scales) or draws < 1:
        raise SettingError(f"A trade-off needs at least one scale and one draw, but got {len(scales)} and {draws}.")
    for scale in scales:
        check_positive("scales", scale, "A factor of the covariance.")
    readings: dict[str, list[Reading]] = {r.name: [] for r in readouts}
    nats: dict[str, list[Reading]] = {b.name: [] for b in bounds}
    for scale in track(list(scales), "trading noise for nats"):
        here, there = scaled(scrubbed, scale), scaled(reference, scale)
        # Anew at every scale: the same unit noise, so that the curve shows the scale and not the draw.
        generator = torch.Generator().manual_seed(seed)
        networks = [drawn_network(trained, scrubbed, here.draw(generator), split.kept) for _ in range(draws)]
        for readout in readouts:
            readings[readout.name].append(_mean([readout(network, split) for network in networks]))
        for bound in bounds:
            nats[bound.name].append(bound(here, there, trained, split))
    return TradeOff(
        tuple(float(s) for s in scales),
        {name: tuple(values) for name, values in readings.items()},
        {name: tuple(values) for name, values in nats.items()},
    )


def scaled(gaussian: Gaussian, factor: float) -> Gaussian:
    """The same mean with `factor` times the covariance."""
    return replace(gaussian, covariance=gaussian.covariance.scaled(factor))


def _mean(readings: Sequence[Reading]) -> Reading:
    values = [float(reading) for reading in readings]
    if len(values) == 1 or not all(math.isfinite(v) for v in values):
        return Reading(sum(values) / len(values), note=f"{len(values)} draws")
    # Student's t: a handful of draws does not know its own spread.
    mean, low, high = t_interval(values)
    return Reading(mean, low, high, any(r.censored for r in readings), f"mean of {len(values)} draws")
