"""How each kind of request is served where the caller does not say."""

import math
from typing import Literal, NamedTuple

Targets = Literal["out of fold", "calibrated", "in minus out", "in minus out, shrunk"]
"""What forgotten rows are held to, where there are fold models."""


class Preset(NamedTuple):
    """The weight of the forgotten rows, temperatures, what is added to retained rows' labels, targets, and steps."""

    forget_weight: float
    temperature: float
    label_boost: float
    retain_temperature: float
    targets: Targets
    lr_scale: float = 0.3
    momentum: float = 0.8


SHRUNK = Preset(0.5, temperature=3.0, label_boost=0.0, retain_temperature=3.0, targets="in minus out, shrunk")
"""Ordinary rows by fold models."""

CORRECTED = Preset(0.3, math.inf, 0.0, retain_temperature=3.0, targets="in minus out", lr_scale=0.3, momentum=0.9)
"""Few visits to ordinary rows where no held-out rows are at hand, and for who asks for targets "in minus out": squares,
which see margins that probabilities do not show, and so many of the visits to forgotten rows."""

CALIBRATED = CORRECTED._replace(forget_weight=0.5, retain_temperature=math.inf, targets="calibrated")
"""Few visits to ordinary rows."""

UNTAUGHT = CORRECTED._replace(forget_weight=0.4)
"""Few visits to rows whose labels were wrong: margins lie forty logits away."""

SMALL = {CALIBRATED: 32, UNTAUGHT: 64}
"""Rows of a batch; of a training's usual ones there are so few that margins stop two logits short of their targets."""

BY_VISITS = (CORRECTED, CALIBRATED, UNTAUGHT)
"""Forgotten rows are the share of the visits that they weigh, so that no visit counts more than another."""

RELABELLED = Preset(0.25, math.inf, 0.0, retain_temperature=1.0, targets="out of fold")
"""Rows whose labels were wrong, by fold models. With the steps of `CORRECTED` they diverged on full CIFAR-10."""

ORDINARY = Preset(0.5, temperature=3.0, label_boost=0.0, retain_temperature=3.0, targets="out of fold")
"""Rows with the labels that they should have, without fold models."""

MISLABELLED = Preset(0.25, temperature=3.0, label_boost=0.0, retain_temperature=3.0, targets="out of fold")
"""Rows whose labels were wrong, without fold models: the label is struck out, and there is no margin to meet."""

WHOLE_CLASS = Preset(0.1, temperature=1.0, label_boost=1.0, retain_temperature=1.0, targets="out of fold")
"""Retained rows teach the same, for no answer names the class; and what is left is an easier task, better learnt."""

HEAVIEST = 7.0
"""Times that a visit to a forgotten row counts at most, unless its weight is given: few rows must not dominate."""

HOT = 3.0
"""The highest temperature at which steps of the usual size were never seen to diverge."""

STRETCH = 1.5
"""What the step of a request that may not visit all rows is at most multiplied by in the end."""


def preset_for(
    *,
    leaving: bool,
    mislabelled: bool,
    fold_models: bool,
    targets: Targets | None = None,
    few: bool = False,
    held_out: bool = False,
) -> Preset:
    """The preset of a kind of request; a class that leaves decides, also where labels were wrong.

    **Arguments:**

    - `few`: whether visits are limited.
    - `held_out`: whether there are held-out rows.
    """
    if leaving:
        return WHOLE_CLASS
    if not fold_models:
        return MISLABELLED if mislabelled else ORDINARY
    if targets == "calibrated":
        return CALIBRATED
    if targets == "in minus out":
        return CORRECTED
    if targets is None and few:
        if mislabelled:
            return UNTAUGHT
        return CALIBRATED if held_out else CORRECTED
    return RELABELLED if mislabelled else SHRUNK
