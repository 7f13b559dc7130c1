"""Is the network that was given one that its recipe makes? Where it is not, an audit speaks of other networks."""

import math
from collections.abc import Sequence
from statistics import fmean, variance

from scipy import stats

from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.mean_loss import mean_loss

CHANCE = 0.001
"""Probability below which chance is no answer to how far one more network of the recipe lies from the others."""

FACTOR = 1.05
"""A ratio that is no other training: another machine or number of threads rounds otherwise."""

WAY, LOSS = "distance from the initial weights", "loss on retained examples"

OTHER_RECIPE = "The recipe does not give this network"


def unlike_recipe(given: Trained, trained: Sequence[Trained], split: Split) -> str:
    """How the network that was given differs from those that its recipe or trainer makes of the same rows; or nothing.

    How far weights moved tells of epochs, rate, decay and initial weights, and the loss of what was minimised. Each is
    compared, by its logarithm, with what one more training would give.

    **Arguments:**

    - `given`: with the start of its training; one that was never trained says nothing.
    - `trained`: from the same start on all rows, one for each seed.
    """
    # After earlier requests it was scrubbed, which no recipe tells.
    after_others = split.gone is not None and len(split.gone) > 0
    if given.init is None or given.weights.equal(given.init) or after_others or len(trained) < 2:
        return ""
    found = [
        f"its {what} is {_words(ratio)}"
        for what, ratio in (
            (WAY, _ratio(_way(given), [_way(one) for one in trained])),
            (LOSS, _ratio(mean_loss(given, split.retain), [mean_loss(one, split.retain) for one in trained])),
        )
        if ratio is not None
    ]
    if not found:
        return ""
    how = "the trainer" if given.trainer is not None else "epochs, lr, optimizer, weight decay, augment"
    return (
        f"{OTHER_RECIPE}: {' and '.join(found)} than after a training by it. So the audit speaks of other networks "
        f"than yours, and a retraining would not repeat yours. Check {how}, loss, initial weights, and that these are "
        "the examples it was trained on."
    )


def _way(network: Trained) -> float:
    assert network.init is not None  # they all began there
    return float((network.weights - network.init).double().norm())


def _ratio(ours: float, theirs: Sequence[float]) -> float | None:
    """How many times as large as theirs it is; `None` where chance explains it, or there is no such ratio."""
    if min(ours, *theirs) <= 0 or not all(math.isfinite(one) for one in (ours, *theirs)):
        return None
    logs = [math.log(one) for one in theirs]
    apart, n = math.log(ours) - fmean(logs), len(logs)
    reach = stats.t.isf(CHANCE / 2, n - 1) * math.sqrt(variance(logs) * (1 + 1 / n))
    return None if abs(apart) <= max(reach, math.log(FACTOR)) else math.exp(apart)


def _words(ratio: float) -> str:
    """Without digits that would tell more of the rows than of the recipe."""
    times = ratio if ratio > 1 else 1 / ratio
    size = "a little" if times < 1.5 else "much"
    return f"{size} {'larger' if ratio > 1 else 'smaller'}"
