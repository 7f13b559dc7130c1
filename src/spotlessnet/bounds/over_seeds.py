"""Over seeds: one divergence from several trainings."""

import math
from collections.abc import Sequence

from spotlessnet.core.errors import DataError
from spotlessnet.core.intervals import upper_limit
from spotlessnet.core.readout import Reading


def over_seeds(nats: Sequence[float], *, level: float = 0.95) -> Reading:
    r"""The mean over paired seeds, and the one-sided limit that its expectation stays under.

    $$m + t_{level,\,n-1}\, s / \sqrt n$$

    By joint convexity the divergence between the two mixtures over seeds is at most the mean over **paired** seeds.
    The lower limit of the reading is zero: only the upper one says something about safety.

    >>> over_seeds([1.0, 2.0, 3.0]).note
    'mean of 3 paired seeds, largest 3; above: 95 % limit'
    """
    if not len(nats):
        raise DataError("The mean over seeds needs at least one divergence, but got none.")
    mean = sum(nats) / len(nats)
    largest = max(nats)
    high = math.inf if math.isinf(largest) or len(nats) == 1 else upper_limit(list(nats), level)
    note = f"mean of {len(nats)} paired seeds, largest {largest:.3g}; above: {level:.0%} limit".replace("%", " %")
    return Reading(mean, low=0.0, high=high, note=note)
