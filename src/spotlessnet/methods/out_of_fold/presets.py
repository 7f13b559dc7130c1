"""How each kind of request is served where the caller does not say."""

from typing import NamedTuple


class Preset(NamedTuple):
    """The weight of the forgotten rows, the temperature of answers, and what is added to retained rows' own labels."""

    forget_weight: float
    temperature: float
    label_boost: float


ORDINARY = Preset(forget_weight=0.5, temperature=3.0, label_boost=0.0)
"""Rows of classes that stay, with the labels that they should have."""

MISLABELLED = Preset(forget_weight=0.25, temperature=3.0, label_boost=0.0)
"""Rows whose labels were wrong."""

WHOLE_CLASS = Preset(forget_weight=0.1, temperature=1.0, label_boost=1.0)
"""Retained rows teach the same, for no answer names the class; and what is left is an easier task, better learnt."""

HEAVIEST = 7.0
"""Times that a visit to a forgotten row counts at most, unless its weight is given: few rows must not dominate."""

STRETCH = 1.5
"""What the step of a request that may not visit all rows is at most multiplied by in the end."""


def preset_for(*, leaving: bool, mislabelled: bool) -> Preset:
    """The preset of a kind of request; a class that leaves decides, also where labels were wrong."""
    if leaving:
        return WHOLE_CLASS
    return MISLABELLED if mislabelled else ORDINARY
