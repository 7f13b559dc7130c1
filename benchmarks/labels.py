"""The field's words for what rows of earlier runs call by other names.

Rows under `results/` are records: nobody edits them. Tables and figures made from them show today's names.
"""

import re

RENAMED = (
    ("unlabel", "out-of-fold distillation"),
    (", from fold models, a ", ", a "),
    (", from fold models", ""),
    (", a hundredth", ", 1 % of FLOPs"),
    (", a tenth", ", 10 % of FLOPs"),
    ("what a hundredth or a tenth pays for", "what 1 % or 10 % of FLOPs pays for"),
    (", alone, ", ", no fold models, "),
    ("class struck out, nothing learnt", "class logit masked, weights untouched"),
    ("negative gradient +", "NegGrad+"),
    ("negative gradient", "gradient ascent"),
    ("selective dampening", "SSD"),
    ("| ours |", "| short retraining, 1/5 of epochs |"),
    ("memory, all rows at hand", "statistics, all retained examples"),
    ("memory, 150 rows at hand", "statistics, 150 retained examples"),
    ("memory, effects purged", "statistics, `private` destroyed"),
    ("the memory", "the statistics"),
    ("tutors", "fold models"),
    ("forgotten rows", "forgotten examples"),
    ("rows that stay", "retained examples"),
    ("| wear |", "| ridge, × first |"),
    ("looked at again", "pairs looked at"),
    (" operations |", " FLOPs |"),
)
"""In this order: a later one sees what an earlier one left."""

SETTINGS = {
    "share": "forget_weight",
    "own": "self_weight",
    "lift": "label_boost",
    "stretch": "max_step_scale",
    "speed": "lr_scale",
}


def in_the_fields_words(text: str) -> str:
    """A table with methods and settings under the names that they have now.

    >>> in_the_fields_words("| unlabel, from fold models, a hundredth | share=0.5 own=0 |")
    '| out-of-fold distillation, 1 % of FLOPs | forget_weight=0.5 self_weight=0 |'
    """
    for old, new in RENAMED:
        text = text.replace(old, new)
    text = re.sub(r"\b(\d+|[Mm]islabelled|[Oo]rdinary|[Aa]ll) rows\b", r"\1 examples", text)
    return re.sub(r"\b(\w+)=", lambda found: f"{SETTINGS.get(found[1], found[1])}=", text)
