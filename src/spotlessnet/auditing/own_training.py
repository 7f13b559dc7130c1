"""Networks that were trained without the forgotten rows, by the user's own function, and know them all the same."""

from collections.abc import Sequence
from statistics import fmean

from scipy import stats

from spotlessnet.core.loss import Loss
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.error import Error

CHANCE = 0.005
"""Probability of so few mistakes on rows like those of the test, below which chance is no answer."""

KNEW_WRONG_LABELS = 0.5
"""The error that a network makes at least on wrong labels that it never saw."""


def learnt_elsewhere(retrained: Sequence[Trained], split: Split) -> str:
    """Why it cannot be said that retrained networks never saw the rows; nothing where nothing speaks against it.

    Only of a training by the user's own function: a recipe is trained by this package, on the rows that it is given.
    They give themselves away by answers that are far better than on test rows, which nobody trained on.
    """
    first = retrained[0]
    if first.trainer is None or split.test is None or type(first.loss).mistakes is Loss.mistakes:
        return ""
    forget, test = (fmean(float(Error(part)(one, split)) for one in retrained) for part in ("forget", "test"))
    expected = KNEW_WRONG_LABELS if split.request.mislabelled else test
    rows = len(split.forget)
    if stats.binom.cdf(round(forget * rows), rows, expected) >= CHANCE:
        return ""
    return (
        "networks that were trained without the forgotten examples answer them far better than new ones (error "
        f"{forget:.0%}, where {expected:.0%} would be expected): they may be easier, have near copies among those that "
        "stay, or the training reads them from elsewhere. See that it takes its rows from `examples` alone"
    )
