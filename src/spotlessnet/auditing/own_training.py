"""Networks that are said never to have seen the forgotten rows, and know them all the same."""

from collections.abc import Sequence
from statistics import fmean

import torch
from scipy import stats

from spotlessnet.auditing.asking import probed
from spotlessnet.core.loss import Loss, wrong_class
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.error import Error
from spotlessnet.readouts.matched_controls import drawn
from spotlessnet.readouts.parts import class_labels
from spotlessnet.readouts.scores import kind_of

CHANCE = 0.005
"""Probability of so few mistakes on rows like those of the test, below which chance is no answer."""

FAR = 0.5
"""Of the error on new rows: what a network makes no more of on rows that stay, it was trained on."""

KNEW_WRONG_LABELS = 0.5
"""The error that a network makes at least on wrong labels that it never saw."""


def learnt_elsewhere(retrained: Sequence[Trained], split: Split) -> str:
    """Why it cannot be said that retrained networks never saw the rows; nothing where nothing speaks against it.

    Only of a training by the user's own function: a recipe is trained by this package, on the rows that it is given.
    They give themselves away by answers that are far better than on test rows, which nobody trained on.
    """
    if retrained[0].trainer is None:
        return ""
    known = _far_better(retrained, split)
    if not known:
        return ""
    return (
        f"networks that were trained without the forgotten examples answer them far better than new ones ({known}): "
        "they may be easier, have near copies among those that stay, or the training reads them from elsewhere. See "
        "that it takes its rows from `examples` alone"
    )


def known_at_the_start(original: Trained, split: Split) -> str:
    """Why it cannot be said that training began before the rows were seen; nothing where nothing speaks against it.

    Whoever retrains from weights that know the rows trains networks that do, and so are all that they are held against.
    """
    if original.init is None:
        return ""
    start = original.at(original.init, original.began_with)
    said = "the network that training is said to have begun at answers"
    remedy = "every network that is trained from it knows them. Give the weights from before they were first seen"
    for known, how in ((_far_better([start], split), ""), (_known_to_probe(start, split), " through a new last layer")):
        if known:
            return (
                f"{said} the forgotten examples far better than new ones{how} ({known}): it may have been trained on "
                f"them, and then {remedy}"
            )
    kept = _stay_known(start, split)
    if not kept:
        return ""
    return (
        f"{said} examples that stay far better than new ones ({kept}): it was trained on these data before, and if the "
        f"forgotten examples were among them, {remedy}"
    )


def _stay_known(start: Trained, split: Split) -> str:
    """The errors, where a network answers retained rows surely and by far better than rows that nobody saw."""
    if split.kept is None or split.test is None or type(start.loss).mistakes is Loss.mistakes:
        return ""
    kept, test = (float(Error(part)(start, split)) for part in ("retain", "test"))
    sizes = len(split.kept), len(split.test)
    wrong = [[round(e * n), round((1 - e) * n)] for e, n in zip((kept, test), sizes, strict=True)]
    # Data may be a little easier than test data: that many a network finds them so, says nothing.
    if kept > FAR * test or stats.fisher_exact(wrong, alternative="less").pvalue >= CHANCE:
        return ""
    return f"error {kept:.0%}, on new ones {test:.0%}"


def _far_better(networks: Sequence[Trained], split: Split) -> str:
    """The errors, where those on forgotten rows are surely lower than on rows that nobody saw; else nothing."""
    if split.test is None or type(networks[0].loss).mistakes is Loss.mistakes:
        return ""
    forget, test = (fmean(float(Error(part)(one, split)) for one in networks) for part in ("forget", "test"))
    return _surely_lower(forget, test, split)


@torch.no_grad()
def _known_to_probe(start: Trained, split: Split) -> str:
    """The same of its last hidden layer, which may know rows that a new head or the last epochs hide."""
    if split.test is None or kind_of(start, split.forget) != "classes":
        return ""
    found = probed([start], split)
    if found is None:
        return ""
    asked = ((found.rows, split.forget), (found.controls, drawn(split.test)))
    forget, test = (float(wrong_class(said[0], class_labels(start, data).cpu()).mean()) for said, data in asked)
    return _surely_lower(forget, test, split)


def _surely_lower(forget: float, test: float, split: Split) -> str:
    """Both errors, where forgotten rows have surely fewer mistakes than rows that nobody saw; else nothing."""
    expected = KNEW_WRONG_LABELS if split.request.mislabelled else test
    rows = len(split.forget)
    if stats.binom.cdf(round(forget * rows), rows, expected) >= CHANCE:
        return ""
    return f"error {forget:.0%}, where {expected:.0%} would be expected"
