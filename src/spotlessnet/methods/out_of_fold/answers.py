"""Answers for the forgotten rows that do not rest on their labels."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from spotlessnet.core.data import Data, evenly
from spotlessnet.core.errors import NeedError
from spotlessnet.core.scrub import Notes
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods.out_of_fold.calibrated import calibrated
from spotlessnet.methods.out_of_fold.class_bias import ASKED
from spotlessnet.methods.out_of_fold.facts import DistillationFacts
from spotlessnet.methods.out_of_fold.held_out_confidence import match_held_out_confidence
from spotlessnet.methods.out_of_fold.in_minus_out import Corrected, in_minus_out
from spotlessnet.methods.out_of_fold.lesson import NEVER
from spotlessnet.methods.out_of_fold.own_logits import blend_own_logits
from spotlessnet.methods.out_of_fold.presets import Targets
from spotlessnet.precomputed.fold_models import READ, FoldModels


def untold(
    trained: Trained,
    D_f: Data,
    gone: Bool[Tensor, " C"],
    split: Split,
    notes: Notes,
    *,
    fold_models: FoldModels | None,
    self_weight: float,
    targets: Targets = "out of fold",
) -> Float[Tensor, "k C"]:
    """Those of fold models that never saw each row, or without them the network's own with its label taken out.

    `targets`: with `"in minus out"` the network's own, less what fold models learnt from the row.
    """
    labels = D_f.labels().cpu().long()
    wrong = split.request.mislabelled
    if fold_models is not None and targets == "calibrated":
        held = split.validation
        answers = calibrated(fold_models, trained, D_f, split.forget, held, ordinary=not wrong)
    elif fold_models is not None and targets != "out of fold":
        shrunk = targets == "in minus out, shrunk"
        ordinary = not wrong and not shrunk
        found = in_minus_out(fold_models, trained, D_f, split.forget, shrunk=shrunk, ordinary=ordinary)
        answers = _corrected(found, notes, shrunk=shrunk)
    elif fold_models is not None:
        answers = _from_fold_models(fold_models, trained, D_f, split.forget, labels, self_weight if wrong else 0.0)
    else:
        answers = trained.predict(D_f, READ).cpu()
    # No retained row has these classes, so a retrained network would not give them.
    answers[:, gone] = NEVER
    struck = gone[labels]
    if wrong and fold_models is None:
        answers, struck = answers.scatter(1, labels.unsqueeze(1), NEVER), torch.ones_like(struck)
    # Fold models were never told the label; only the network's own answers must be made as sure as held-out ones.
    held_out = ~struck if fold_models is None else torch.zeros_like(struck)
    notes.measure(DistillationFacts, struck_out=int(struck.sum()), match_held_out_confidence=int(held_out.sum()))
    if not bool(held_out.any()):
        return answers
    return match_held_out_confidence(trained, answers, labels, held_out, _held_out_rows(split))


def _corrected(found: Corrected, notes: Notes, *, shrunk: bool) -> Float[Tensor, "k C"]:
    """The network's own answers less what the rows taught: what fewer rows cost a fold model cancels."""
    notes.measure(DistillationFacts, own_kept=found.kept, own_noise=found.noise)
    if shrunk and found.noise is None:
        notes.assume(
            "no two fold models saw the same rows, so nothing says how far trainings differ by chance",
            "targets hold that chance too; train more folds or repeats",
        )
    return found.answers


def _from_fold_models(
    fold_models: FoldModels,
    trained: Trained,
    D_f: Data,
    request: Data,
    labels: Int64[Tensor, " k"],
    self_weight: float,
) -> Float[Tensor, "k C"]:
    answers = fold_models.answers(trained, D_f, request)
    if not self_weight:
        return answers
    return blend_own_logits(answers, trained.predict(D_f, READ).cpu(), labels, self_weight)


def check_has_held_out_rows(split: Split) -> None:
    """Raise before any work where `untold` will ask for held-out rows and there are none."""
    if split.validation is not None or split.request.mislabelled:
        return
    # Rows of a class that leaves altogether are struck out: nobody need be asked about them.
    if bool(torch.isin(split.forget.labels().cpu(), split.retain.labels().cpu()).any()):
        _held_out_rows(split)


def _held_out_rows(split: Split) -> Data:
    """Held-out rows that say how sure the network may be of rows that it has not seen, or an error."""
    if split.validation is None:
        raise NeedError(
            "`OutOfFoldDistillation` learns from fold models or held-out rows how sure it may be of ordinary rows, but "
            "there are neither. Give fold models (`--fold-models`, `fold_models=train_fold_models(...)`), or the "
            "split `validation` (`--validation`)."
        )
    return split.validation


def ask_the_start(trained: Trained, leaving: Bool[Tensor, " C"], D_f: Data, notes: Notes) -> None:
    """Say so if the network knew the class before it was trained: retraining would not take it away."""
    if trained.init is None:
        return
    before = trained.at(trained.init).predict(D_f.select(evenly(len(D_f), ASKED))).cpu().softmax(dim=1)
    known, chance = float(before[:, leaving].sum(dim=1).mean()), float(leaving.double().mean())
    notes.measure(DistillationFacts, known_at_the_start=known)
    if known > 2 * chance:
        notes.assume(
            f"the class that leaves is struck out of all answers, but the start of training gives it {known:.0%}",
            "it goes further than retraining, which would begin at a start that knows the class",
        )
