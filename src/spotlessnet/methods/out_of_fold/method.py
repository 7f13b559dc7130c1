"""Unlabel: answer the forgotten rows as a network would that was never told their labels, and all others as before."""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from spotlessnet.core.data import Data, evenly
from spotlessnet.core.deprecated import OldName
from spotlessnet.core.errors import NeedError, SettingError, check_not_negative, check_positive
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import METHODS, Notes, Work, gradients
from spotlessnet.core.split import Split, joined
from spotlessnet.core.targets import WeightedDistillation, with_weights
from spotlessnet.core.trained import Trained
from spotlessnet.methods.out_of_fold.class_bias import ASKED, suppress_class_bias
from spotlessnet.methods.out_of_fold.facts import DistillationFacts
from spotlessnet.methods.out_of_fold.held_out_confidence import match_held_out_confidence
from spotlessnet.methods.out_of_fold.own_logits import blend_own_logits
from spotlessnet.methods.out_of_fold.price import THERE_AND_BACK, Price
from spotlessnet.methods.out_of_fold.step_scale import ASKED as TRIED
from spotlessnet.methods.out_of_fold.step_scale import LENGTHS, extend_step
from spotlessnet.precomputed.fold_models import READ, WATCHED, FoldModels, off_by
from spotlessnet.training.fit import fit
from spotlessnet.training.tuning import Tuning


class Touch(NamedTuple):
    """How a kind of request is served where the caller does not say."""

    forget_weight: float
    temperature: float
    label_boost: float


ORDINARY, MISLABELLED = Touch(0.5, 3.0, 0.0), Touch(0.25, 3.0, 0.0)
WHOLE_CLASS = Touch(0.1, 1.0, 1.0)
"""Retained rows teach the same, for no answer names the class; and what is left is an easier task, better learnt."""

HEAVIEST = 7.0
"""Times that a visit to a forgotten row may count where the share is not said; few rows would else throw all others."""

STRETCH = 1.5
"""What the step of a request that may not visit all rows is at most multiplied by in the end."""

UNIT = "L1 distance of probabilities, of at most 2"
"""What the departure of answers is counted in; that of a memory is a share of its linear picture."""

NEVER = -1e4
"""The logit of an answer that is struck out."""


@METHODS.register(
    "out-of-fold-distillation",
    paper="this package",
    needs=("retained data", "classes", "fold models or validation data"),
    reads=("fold models", "init", "recipe"),
    guarantee="none for the weights; answers are measured by the audit",
)
@dataclass(frozen=True)
class OutOfFoldDistillation(Tuning):
    r"""Distil from answers that know nothing of the forgotten rows' labels, in a fraction of an epoch.

    $$\min_w\; \beta\,\overline{KL}(t \,\|\, f_w)_{D_f} + (1 - \beta)\,\overline{KL}(f_{w_0} \,\|\, f_w)_{D_r}$$

    with answers at the temperature $T$, $T^2\, KL(\mathrm{softmax}(t/T) \,\|\, \mathrm{softmax}(f_w/T))$, and $w_0$ the
    network as it is, or as it was when its fold models were trained. There is no decay: in training labels balance it,
    and without them it would only draw the network back to its start. The answers $t$ are those of the fold models
    that never saw each row, with the network's `blend_own_logits` on rows whose labels were wrong. A label that no
    retained row has is struck out of them, and out of the answers that retained rows are held to, for a retrained
    network would never give it; where the network's head has a bias, distilling begins with that of the label lowered
    (`suppress_class_bias`). Without fold models the answers are the network's own with what the label told it taken
    out:

    - a label that was wrong is struck out: what is left is what the network makes of the picture itself;
    - other margins become those of held-out rows with the same label, the surest row taking the largest.

    With fold models it says *retrain now* once retained rows are further from what was said of them at first than fold
    models are that never saw them. It changes answers. It does not follow the path that retraining takes, so it says
    nothing about traces in the weights, and fold models, which are kept, still know the rows that they were trained on.

    **Arguments** beside those of `Tuning`. The kind of request chooses `forget_weight`, `temperature` and
    `label_boost` unless said.

    - `fold_models`: what `train_fold_models` gave.
    - `forget_weight`: $\beta$, the weight of the forgotten rows. Unless said, a visit to one counts seven times at
      most.
    - `temperature`: $T$. Above 1, answers that are sure already are taught and held by how sure they are, too.
    - `label_boost`: added to the logit of a retained row's own label in the answer that the row is held to.
    - `self_weight`: $c$, how much the network's second opinion counts beside fold models where labels were wrong.
    - `lr_scale`: the first rate, in units of the training's; it falls to zero. Steps are few, so there is less
      `momentum` than is usual in training.
    - `epochs`: rounds; in each every forgotten row is visited.
    - `examples_per_epoch`: at most so many retained, and as many forgotten, rows are visited in a round, others in the
      next one; `None` for all of them, or for what `compute_budget` pays for.
    - `compute_budget`: what the request may take, in trainings; counted in rows that go through the network, and back.
    - `max_step_scale`: what the step as a whole may at most be multiplied by in the end, for forgotten rows to be
      answered as fold models say (`extend_step`). Unless said, 1.5 where `examples_per_epoch` or `compute_budget`
      limit the visits, which then stop short of it, and 1 elsewhere: a long step made longer costs retained rows. For
      rows of classes that stay.
    """

    epochs: int = 5
    forget_weight: float | None = None
    temperature: float | None = None
    label_boost: float | None = None
    self_weight: float = 0.25
    lr_scale: float = 0.3
    momentum: float | None = 0.8
    examples_per_epoch: int | None = None
    compute_budget: float | None = None
    max_step_scale: float | None = None
    fold_models: FoldModels | None = field(default=None, repr=False)

    # Not an `OldName`: every method has a function of that name now, so only the keyword keeps its old meaning.
    old_keywords: ClassVar[dict[str, str]] = {"cost": "compute_budget"}

    share = OldName("forget_weight")
    own = OldName("self_weight")
    lift = OldName("label_boost")
    stretch = OldName("max_step_scale")
    rows = OldName("examples_per_epoch")
    speed = OldName("lr_scale")
    tutors = OldName("fold_models")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("OutOfFoldDistillation.lr_scale", self.lr_scale)
        if self.temperature is not None:
            check_positive("OutOfFoldDistillation.temperature", self.temperature)
        if self.label_boost is not None:
            check_not_negative("OutOfFoldDistillation.label_boost", self.label_boost)
        if self.forget_weight is not None and not 0 < self.forget_weight < 1:
            raise SettingError(
                f"`OutOfFoldDistillation.forget_weight` must lie between 0 and 1, but got {self.forget_weight}."
            )
        if not 0 <= self.self_weight < 1:
            raise SettingError(f"`OutOfFoldDistillation.self_weight` must be in [0, 1), but got {self.self_weight}.")
        if self.max_step_scale is not None and not 1 <= self.max_step_scale < math.inf:
            raise SettingError(
                f"`OutOfFoldDistillation.max_step_scale` must be a number from 1 on, but got {self.max_step_scale}."
            )
        if self.examples_per_epoch is not None:
            check_positive("OutOfFoldDistillation.examples_per_epoch", self.examples_per_epoch)
        if self.compute_budget is not None:
            check_positive("OutOfFoldDistillation.compute_budget", self.compute_budget)
            if self.examples_per_epoch is not None:
                raise SettingError(
                    "`OutOfFoldDistillation.compute_budget` says how many rows are visited, but "
                    "`examples_per_epoch` does too. "
                    "Give one of them."
                )

    def recipe(self, trained: Trained, notes: Notes) -> Recipe:
        known = super().recipe(replace(trained, weight_decay=0.0), notes)
        return known.but(lr=self.lr_scale * known.lr if self.lr is None else self.lr, schedule="cosine")

    def cost(self, trained: Trained, split: Split) -> Work:
        count = self.price(split).of(self.rows_in_a_round(trained, split)) / THERE_AND_BACK
        return gradients(trained, split, count)

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        if not trained.loss.is_classification:
            raise SettingError(
                f"`OutOfFoldDistillation` takes out what labels told, but the loss {trained.loss.name!r} has no "
                f"classes. Use `NTK()`."
            )
        if not self.epochs:
            return trained.weights
        rows = self.rows_in_a_round(trained, split)
        if trained.recipe is not None:
            cost = self.price(split).in_trainings(rows, trained.recipe.epochs)
            notes.measure(DistillationFacts, rows_in_a_round=rows, cost_in_trainings=cost)
        (D_f, f), (D_r, r) = (self._visited(data, rows) for data in (split.forget, split.retain))
        origin = None if self.fold_models is None else self.fold_models.origin
        before = trained if origin is None else trained.at(origin.to(trained.weights))
        known = before.predict(D_r, READ).cpu()
        gone = ~torch.isin(torch.arange(known.shape[1]), split.retain.labels().cpu().unique())
        known[:, gone] = NEVER
        taught = self._untold(trained, D_f, gone, split, notes)
        leaving = gone & torch.isin(torch.arange(len(gone)), D_f.labels().cpu())
        if bool(leaving.any()):
            usual = WHOLE_CLASS
        else:
            usual = MISLABELLED if split.request.mislabelled else ORDINARY
        beta, T, lift = self._touch(usual, heaviest=HEAVIEST * len(f) / (len(f) + len(r)))
        held = known.scatter_add(1, D_r.labels().cpu().long().unsqueeze(1), torch.full_like(known[:, :1], lift))
        begun = trained.weights
        if bool(leaving.any()):
            _ask_the_start(trained, leaving, D_f, notes)
            begun = suppress_class_bias(trained, leaving, D_f)
            notes.measure(DistillationFacts, bias_lowered_by=float((begun - trained.weights).abs().max()))
        # Weights that make the mean over all visits the objective above.
        share = beta * (len(f) + len(r)) / len(f), (1 - beta) * (len(f) + len(r)) / len(r)
        counts = torch.cat([torch.full((len(data),), each) for data, each in zip((D_f, D_r), share, strict=True)])
        told = joined(D_f, D_r).relabel(with_weights(torch.cat([taught, held]), counts.to(known)))
        notes.measure(DistillationFacts, forget_weight=beta, temperature=T, label_boost=lift)
        notes.measure(DistillationFacts, forgotten_read=len(D_f), retained_read=len(D_r), visits=len(f) + len(r))
        pupil = replace(trained, loss=WeightedDistillation(T), weights=begun)
        visits = told.select(torch.cat([f, len(D_f) + r]))
        recipe = self.recipe(trained, notes).but(epochs=1)
        weights = fit(pupil, visits, recipe, seed=self.seed, label="unlabelling").weights
        most = self._stretch(bool(leaving.any()))
        if most > 1:
            step = weights - begun
            length = extend_step(trained, step, D_f, taught, most)
            weights = begun + length * step
            notes.measure(DistillationFacts, step_scale=length)
        if self.fold_models is not None:
            self._watch(trained.at(weights), before, D_r, (known, held), notes)
        return weights

    def _stretch(self, leaving: bool) -> float:
        """How much longer the step may become: only fold models' answers are ones to be met, others may be passed."""
        if self.fold_models is None or leaving:
            return 1.0
        few = self.examples_per_epoch is not None or self.compute_budget is not None
        if self.max_step_scale is not None:
            return self.max_step_scale
        return STRETCH if few else 1.0

    def _touch(self, usual: Touch, heaviest: float) -> Touch:
        """Share, temperature and lift: as the caller says, or as this kind of request is best served."""
        given = (self.forget_weight, self.temperature, self.label_boost)
        usual = usual._replace(forget_weight=min(usual.forget_weight, heaviest))
        return Touch(*(best if said is None else said for said, best in zip(given, usual, strict=True)))

    def _watch(self, after: Trained, before: Trained, D_r: Data, told: tuple[Tensor, Tensor], notes: Notes) -> None:
        """How far retained rows have gone from what was said of them at first, beside how far off fold models are.

        Or from what they were held to, whichever is nearer: a lift is meant to move them.
        """
        assert self.fold_models is not None  # looked at by the caller
        at = evenly(len(D_r), WATCHED)
        some = D_r.select(at)
        now = after.predict(some).cpu()
        moved = min(off_by(now, each[at]) for each in told)
        off = self.fold_models.lack if self.fold_models.lack is not None else self.fold_models.lacking(before, some)
        worn = moved > off
        notes.measure(DistillationFacts, drift=moved, drift_unit=UNIT, wear=moved / max(off, 1e-30), retrain_now=worn)
        if worn:
            notes.assume(
                f"retained rows have moved by {moved:.2g} from what was said of them first; fold models that never "
                f"saw them "
                f"are off by {off:.2g}",
                "retrain now and train new fold models: the network has lost more than a part of its rows is worth",
            )

    def price(self, split: Split) -> Price:
        """What such a request takes, by count."""
        D_f, D_r, asked, wrong = split.forget, split.retain, self.fold_models, split.request.mislabelled
        leaving = not bool(torch.isin(D_f.labels().cpu(), D_r.labels().cpu()).all())
        readings = 1 if asked is None else len(asked.part) + int(wrong and self.self_weight > 0)
        if asked is not None:
            others = min(WATCHED, len(D_r))
        else:
            others = 0 if wrong else len(split.validation or ())
        others += 2 * min(ASKED, len(D_f)) * leaving + LENGTHS * min(TRIED, len(D_f)) * (self._stretch(leaving) > 1)
        return Price(self.epochs, len(D_f), len(D_r), readings, others)

    def rows_in_a_round(self, trained: Trained, split: Split) -> int:
        """The most rows of either kind that are visited in a round."""
        if self.compute_budget is None:
            return (
                max(len(split.forget), len(split.retain))
                if self.examples_per_epoch is None
                else self.examples_per_epoch
            )
        if trained.recipe is None:
            raise NeedError(
                "`OutOfFoldDistillation.compute_budget` is in trainings, but the recipe is not known. Give "
                "`examples_per_epoch`, or a recipe."
            )
        return self.price(split).rows_for(self.compute_budget, trained.recipe.epochs)

    def _visited(self, data: Data, rows: int) -> tuple[Data, Int[Tensor, " V"]]:
        """The rows of all rounds, each once, and for every visit which of them it is to."""
        drawn = torch.randperm(len(data), generator=torch.Generator().manual_seed(self.seed))
        visits = self.epochs * min(len(data), rows)
        seen, which = drawn.repeat(-(-visits // len(data)))[:visits].unique(return_inverse=True)
        return data.select(seen), which

    def _untold(
        self, trained: Trained, D_f: Data, gone: Bool[Tensor, " C"], split: Split, notes: Notes
    ) -> Float[Tensor, "k C"]:
        """Logits for the forgotten rows that do not rest on their labels."""
        labels = D_f.labels().cpu().long()
        if self.fold_models is None:
            answers = trained.predict(D_f, READ).cpu()
        else:
            answers = self.fold_models.answers(trained, D_f)
            if split.request.mislabelled and self.self_weight:
                answers = blend_own_logits(answers, trained.predict(D_f, READ).cpu(), labels, self.self_weight)
        answers[:, gone], struck = NEVER, gone[labels]
        if split.request.mislabelled and self.fold_models is None:
            answers, struck = answers.scatter(1, labels.unsqueeze(1), NEVER), torch.ones_like(struck)
        held_out = ~struck if self.fold_models is None else torch.zeros_like(struck)
        notes.measure(DistillationFacts, struck_out=int(struck.sum()), match_held_out_confidence=int(held_out.sum()))
        if not bool(held_out.any()):
            return answers
        if split.validation is None:
            raise NeedError(
                "`OutOfFoldDistillation` learns from fold models or from held-out rows how sure it may be of "
                "ordinary rows, but there are "
                "neither. Give the split `validation`, or the method `fold_models=train_fold_models(...)`."
            )
        return match_held_out_confidence(trained, answers, labels, held_out, split.validation)


def _ask_the_start(trained: Trained, leaving: Bool[Tensor, " C"], D_f: Data, notes: Notes) -> None:
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
