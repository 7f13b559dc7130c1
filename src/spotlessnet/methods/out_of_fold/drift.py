"""How far retained rows have gone, and whether it is time to retrain."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data, evenly
from spotlessnet.core.scrub import Notes
from spotlessnet.core.trained import Trained
from spotlessnet.methods.out_of_fold.facts import DistillationFacts
from spotlessnet.methods.out_of_fold.lesson import NEVER, Lesson
from spotlessnet.precomputed import others
from spotlessnet.precomputed.effect import Effect
from spotlessnet.precomputed.fold_models import READ, WATCHED, FoldModels, off_by
from spotlessnet.precomputed.others import Others

ASIDE = 64
"""Retained rows that a later request leaves alone, to see how rows move that it does not hold."""

SURE = 0.95
"""Of groups of stand-ins, so many must keep what an earlier request did: one in twenty is chance."""

UNIT = "L1 distance of probabilities, of at most 2"
"""What the departure of answers is counted in; that of statistics is a share of their linear picture."""


def watch(
    trained: Trained,
    weights: Float[Tensor, " P"],
    lesson: Lesson,
    boost: float,
    fold_models: FoldModels,
    notes: Notes,
) -> None:
    """How far retained rows have gone from what was said of them at first, beside how far off fold models are.

    Or from that with the boost of this request, whichever is nearer: it is meant to move them.
    """
    at = evenly(len(lesson.retain.rows), WATCHED)
    some = lesson.retain.rows.select(at)
    origin = fold_models.origin
    before = trained if origin is None else trained.at(origin.to(trained.weights))
    first = lesson.known[at]
    lift = lesson.held(boost)[at] - first
    if not torch.equal(before.weights, trained.weights):
        # What is struck out now is struck out of what was said at first.
        first = torch.where(first == NEVER, first, before.predict(some, READ).cpu())
    now = trained.at(weights).predict(some).cpu()
    moved = min(off_by(now, each) for each in (first, first + lift))
    off = fold_models.lack if fold_models.lack is not None else fold_models.lacking(before, some)
    too_far = moved > off
    notes.measure(
        DistillationFacts, drift=moved, drift_unit=UNIT, drift_share=moved / max(off, 1e-30), retrain_now=too_far
    )
    if too_far:
        notes.assume(
            f"retained rows have moved by {moved:.2g} from what was said of them first; fold models that never "
            f"saw them "
            f"are off by {off:.2g}",
            "retrain now and train new fold models: the network has lost more than a part of its rows is worth",
        )


def set_aside(retain: Data, fold_models: FoldModels | None) -> Data | None:
    """Retained rows that this request does not visit, so that they move as rows do that earlier ones removed."""
    if fold_models is None or not fold_models.after_requests:
        return None
    return retain.select(evenly(len(retain), max(1, min(ASIDE, len(retain) // 8))))


def look_back(
    trained: Trained, weights: Float[Tensor, " P"], retain: Data, fold_models: FoldModels, notes: Notes
) -> None:
    """Whether the step may take back what earlier requests did: retained rows stand in for theirs (`Others`)."""
    aside = set_aside(retain, fold_models)
    if aside is None:
        return
    step, known = weights - trained.weights, fold_models.effects
    # What still moves of rows that are held is what the visits could not hold.
    held = Others.with_own_labels(trained, retain.without(aside), others.FURTHEST_HELD).moved(step)
    alone = Others.with_own_labels(trained, aside)
    moved = alone.moved(step) if known is None else _taken_back(alone, step, known)
    # The other number would tell of the rows of earlier requests, as long as it is known what they did.
    notes.measure(DistillationFacts, others_moved=held if known is not None else max(held, moved))
    if not max(held, moved) <= 1:
        notes.measure(DistillationFacts, retrain_now=True)
        notes.assume(
            "the step moves other rows further than earlier requests are safe from",
            "retrain now; how much this request forgot is not known",
        )


def _taken_back(alone: Others, step: Float[Tensor, " P"], effects: Sequence[Effect]) -> float:
    """As `Others.taken_back`, with stand-ins for wrong labels too, and what may be lost shared by all later requests.

    Rows left with less than a guess at their label are likelier wrong labels than right. The k-th request after one may
    take back the k-th part of what a single one may: what each takes adds up.
    """
    classes = alone.trained.predict(alone.rows.select([0])).shape[-1]
    others = Others.of(alone.trained, alone.rows)
    worst = 0.0
    for k, effect in enumerate(reversed(effects), start=1):
        stand_ins = (alone, others) if effect.loss > math.log(classes) else (alone,)
        worst = max(worst, *(k * each.taken_back(step, [effect], quantile=SURE) for each in stand_ins))
    return worst
