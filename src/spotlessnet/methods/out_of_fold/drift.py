"""How far retained rows have gone, and whether it is time to retrain."""

from spotlessnet.core.data import evenly
from spotlessnet.core.scrub import Notes
from spotlessnet.core.trained import Trained
from spotlessnet.methods.out_of_fold.facts import DistillationFacts
from spotlessnet.methods.out_of_fold.lesson import Lesson
from spotlessnet.precomputed.fold_models import WATCHED, FoldModels, off_by

UNIT = "L1 distance of probabilities, of at most 2"
"""What the departure of answers is counted in; that of a memory is a share of its linear picture."""


def watch(after: Trained, before: Trained, lesson: Lesson, boost: float, fold_models: FoldModels, notes: Notes) -> None:
    """How far retained rows have gone from what was said of them at first, beside how far off fold models are.

    Or from what they were held to, whichever is nearer: a boost is meant to move them.
    """
    at = evenly(len(lesson.retain.rows), WATCHED)
    some = lesson.retain.rows.select(at)
    now = after.predict(some).cpu()
    moved = min(off_by(now, each[at]) for each in (lesson.known, lesson.held(boost)))
    off = fold_models.lack if fold_models.lack is not None else fold_models.lacking(before, some)
    worn = moved > off
    notes.measure(DistillationFacts, drift=moved, drift_unit=UNIT, wear=moved / max(off, 1e-30), retrain_now=worn)
    if worn:
        notes.assume(
            f"retained rows have moved by {moved:.2g} from what was said of them first; fold models that never "
            f"saw them "
            f"are off by {off:.2g}",
            "retrain now and train new fold models: the network has lost more than a part of its rows is worth",
        )
