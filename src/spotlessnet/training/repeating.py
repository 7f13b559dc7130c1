"""Whether a retraining repeats the training of the network that was given, as far as two networks can tell."""

from spotlessnet.core.scrub import Notes
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.core.trainer import name_of

FACTOR = 1.5
"""How many times as far from its start a network lies that was trained otherwise: seeds change a few per cent."""

MOST = 0.1
"""Share of the rows that may go; without more of them the same recipe may well lead elsewhere."""


def note_other_training(trained: Trained, made: Trained, split: Split, notes: Notes) -> None:
    """Note a retrained network whose weights moved much further, or much less far, than those of the one given."""
    if trained.init is None or len(split.forget) > MOST * len(split.whole):
        return
    ours, theirs = (float((one.weights - trained.init).double().norm()) for one in (made, trained))
    if theirs == 0 or (ours <= FACTOR * theirs and theirs <= FACTOR * ours):
        return
    by = "the recipe" if trained.trainer is None else name_of(trained.trainer)
    moved = "less far from" if ours < theirs else "further from"
    notes.assume(
        f"{by} leads to weights that lie much {moved} the initial ones than those of the network that was given, so "
        "it may not be how that one was trained",
        "the retrained network is another one than the same training without the rows would give; check epochs, lr, "
        "weight decay and initial weights",
    )
