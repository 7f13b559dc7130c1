"""Out-of-fold distillation: forgotten rows get answers of networks that never saw their labels, others keep theirs."""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.deprecated import OldName
from spotlessnet.core.errors import DataError, NeedError, SettingError, check_choice, check_not_negative, check_positive
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import METHODS, Notes, Sizes, Work, gradients, with_statistics
from spotlessnet.core.split import Split
from spotlessnet.core.targets import WeightedDistillation
from spotlessnet.core.trained import Trained
from spotlessnet.methods.out_of_fold.answers import ask_the_start, check_has_held_out_rows, untold
from spotlessnet.methods.out_of_fold.class_bias import suppress_class_bias
from spotlessnet.methods.out_of_fold.drift import look_back, set_aside, watch
from spotlessnet.methods.out_of_fold.facts import DistillationFacts
from spotlessnet.methods.out_of_fold.lesson import NEVER, Lesson, Visits
from spotlessnet.methods.out_of_fold.presets import (
    BY_VISITS,
    HEAVIEST,
    HOT,
    SMALL,
    STRETCH,
    Preset,
    Targets,
    preset_for,
)
from spotlessnet.methods.out_of_fold.price import THERE_AND_BACK, Price, is_of_a_class, price_of
from spotlessnet.methods.out_of_fold.steady import steady
from spotlessnet.methods.out_of_fold.step_scale import ASKED_BETWEEN, SHORTEST, objective, step_length
from spotlessnet.methods.out_of_fold.sweep import sweep
from spotlessnet.precomputed.fold_models import READ, FoldModels
from spotlessnet.training.fit import fit
from spotlessnet.training.tuning import Tuning


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
    network as it is. (Held to what was said of them when the fold models were trained, retained rows drew the network
    back to where earlier requests had not been served.) There is no decay: in training labels balance it, and without
    them it would only draw the network back to its start. The answers $t$ are those of the fold models
    that never saw each row, with the network's `blend_own_logits` on rows whose labels were wrong. A label that no
    retained row has is struck out of them, and out of the answers that retained rows are held to, for a retrained
    network would never give it; where the network's head has a bias, distilling begins with that of the label lowered
    (`suppress_class_bias`). Without fold models the answers are the network's own with what the label told it taken
    out:

    - a label that was wrong is struck out: what is left is what the network makes of the picture itself;
    - other margins become those of held-out rows with the same label, the surest row taking the largest.

    BatchNorm's statistics that training moved are estimated anew from retained rows before the first step, and stay so.

    With fold models it says *retrain now* once retained rows are further from what was said of them at first than fold
    models are that never saw them, and where it may take back what an earlier request did. It changes answers. It does
    not follow the path that retraining takes, so it says nothing about traces in the weights, and fold models, which
    are kept, still know the rows that they were trained on.

    **Arguments** beside those of `Tuning`. The kind of request chooses `forget_weight`, `temperature`,
    `retain_temperature`, `targets`, `label_boost`, `lr_scale` and `momentum` unless said.

    - `fold_models`: what `train_fold_models` gave.
    - `forget_weight`: $\beta$, the weight of the forgotten rows. Unless said, a visit to one counts seven times at
      most.
    - `targets`: what forgotten rows are held to where there are fold models. `"in minus out"`: the network's own logits
      less what fold models learnt from the row (`in_minus_out`), so that what fewer rows cost a fold model cancels;
      `"in minus out, shrunk"`: nearer to the next, the more of the network's difference from fold models is chance.
      `"out of fold"`: what fold models say that never saw the row. `"calibrated"`: the same, as sure as the network is
      of held-out rows; the usual where visits are limited, and on mislabelled rows `"in minus out"`.
    - `temperature`: $T$. Above 1, answers that are sure already are taught and held by how sure they are, too. Infinite
      for squared error on centred logits, which sees every margin alike. With fold models rate and steps are held below
      where distilling would diverge (`steady`). Above 3, or where `forget_weight` makes a visit to a forgotten row
      count more than seven times, parts of the visits that diverge nevertheless are taken back (`sweep`), and the step
      is made shorter where retained rows' errors rise by half a point (`step_length`).
    - `retain_temperature`: that of the answers that retained rows are held to, `temperature` unless said. Lower, their
      labels are held and how sure the network is of them may change, as it does in retraining.
    - `label_boost`: added to the logit of a retained row's own label in the answer that the row is held to.
    - `self_weight`: $c$, how much the network's second opinion counts beside fold models where labels were wrong.
    - `lr_scale`: the first rate, in units of the training's; it falls to zero. Steps are few, so there is less
      `momentum` than is usual in training.
    - `epochs`: rounds; in each every forgotten row is visited. With fold models, `targets="in minus out"` and a
      `compute_budget`, where no class leaves, the budget says how many, so that `forget_weight` of the visits are to
      forgotten rows.
    - `examples_per_epoch`: at most so many retained, and as many forgotten, rows are visited in a round, others in the
      next one; `None` for all of them, or for what `compute_budget` pays for.
    - `compute_budget`: what the request may take, in trainings; counted in rows that go through the network, and back.
    - `max_step_scale`: what the step as a whole may at most be multiplied by in the end, for forgotten rows to be
      answered as fold models say (`step_length`). Unless said, 1.5 where `examples_per_epoch` or `compute_budget`
      limit the visits, which then stop short of it, and 1 elsewhere: a long step made longer costs retained rows. For
      rows of classes that stay.
    """

    epochs: int = 5
    forget_weight: float | None = None
    temperature: float | None = None
    label_boost: float | None = None
    retain_temperature: float | None = None
    targets: Targets | None = None
    self_weight: float = 0.25
    lr_scale: float | None = None
    examples_per_epoch: int | None = None
    compute_budget: float | None = None
    max_step_scale: float | None = None
    fold_models: FoldModels | None = field(default=None, repr=False)

    lowers_rate: ClassVar[bool] = False  # its steps are held by other means, see `steady`
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
        name = type(self).__name__
        if self.targets is not None:
            check_choice(f"{name}.targets", self.targets, get_args(Targets))
        for setting in ("lr_scale", "temperature", "retain_temperature", "examples_per_epoch", "compute_budget"):
            value = getattr(self, setting)
            if value is not None and not ("temperature" in setting and value == math.inf):
                check_positive(f"{name}.{setting}", value)
        if self.label_boost is not None:
            check_not_negative(f"{name}.label_boost", self.label_boost)
        self._check_shares(name)
        if self.compute_budget is not None and self.examples_per_epoch is not None:
            raise SettingError(
                f"`{name}.compute_budget` says how many rows are visited, but `examples_per_epoch` does too. "
                "Give one of them."
            )

    def _check_shares(self, name: str) -> None:
        if self.forget_weight is not None and not 0 < self.forget_weight < 1:
            raise SettingError(f"`{name}.forget_weight` must lie between 0 and 1, but got {self.forget_weight}.")
        if not 0 <= self.self_weight < 1:
            raise SettingError(f"`{name}.self_weight` must be in [0, 1), but got {self.self_weight}.")
        if self.max_step_scale is not None and not 1 <= self.max_step_scale < math.inf:
            raise SettingError(f"`{name}.max_step_scale` must be a number from 1 on, but got {self.max_step_scale}.")

    def recipe(self, trained: Trained, notes: Notes, data: Data | None = None, scale: float = 1.0) -> Recipe:
        known = super().recipe(replace(trained, weight_decay=0.0), notes, data, scale)
        lr = (self.lr_scale or 1.0) * known.lr if self.lr is None else self.lr
        # Answers are read for rows as they are; an augmented row would be taught another row's answer.
        return known.but(lr=lr, schedule="cosine", augment=None)

    def cost(self, trained: Trained, split: Split) -> Work:
        price = self.price(split, self.rounds(trained, split))
        rows = self.rows_in_a_round(trained, split)
        reads = price.of(rows) - THERE_AND_BACK * price.visits(rows)
        return gradients(trained, split, price.visits(rows), looks=True) + Work.sure(
            reads * Sizes.of(trained, split).answer
        )

    def check_needs(self, trained: Trained, split: Split) -> None:
        super().check_needs(trained, split)
        if self.fold_models is None and self.epochs:
            check_has_held_out_rows(split)
        if self.fold_models is None or not self.fold_models.after_requests:
            return
        if len(split.retain) < 2:
            raise DataError(
                "The network has served a request before, so this one must leave two retained rows at least, one to "
                f"hold and one to see what it takes back, but it leaves {len(split.retain)}. Retrain."
            )
        # Few visits hold few rows: in trials one score in eight came back by half, more often than by retraining.
        if self.rows_in_a_round(trained, split) < len(split.retain):
            raise SettingError(
                "The network has served a request before, so this one must visit every retained row in each round, but "
                "`compute_budget` or `examples_per_epoch` limits the visits: it could take back what the other did. "
                "Leave them out, or retrain."
            )

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        if not trained.loss.is_classification:
            raise SettingError(
                f"`OutOfFoldDistillation` takes out what labels told, but the loss {trained.loss.name!r} has no "
                f"classes. Use `NTK()`."
            )
        if not self.epochs:
            return trained.weights
        aside = set_aside(split.retain, self.fold_models)
        lesson = self._lesson(trained, split, aside, notes)
        preset = self._preset(lesson, split)
        usual = self._usual(split)
        # Estimated anew after the step, statistics would take back a part of it.
        ready = with_statistics(trained, split, notes)
        begun = self._begun(ready, lesson, notes)
        goal = lesson.finite(taught=math.isinf(preset.temperature), known=math.isinf(preset.retain_temperature))
        careful = self._is_careful(split)
        size = SMALL.get(usual) if self.batch_size is None else self.batch_size
        weights = self._distilled(ready, begun, goal, preset, notes, size=size, careful=careful)
        weights = self._extended(ready, begun, weights, goal, preset, notes, careful=careful)
        if self.fold_models is not None:
            watch(ready, weights, lesson, preset.label_boost, self.fold_models, notes)
            look_back(ready, weights, split.retain, self.fold_models, notes)
        return weights

    def _lesson(self, trained: Trained, split: Split, aside: Data | None, notes: Notes) -> Lesson:
        """Who is visited, and which answers they are held to."""
        visited = split.retain if aside is None else split.retain.without(aside)
        rows = self.rows_in_a_round(trained, split)
        rounds = self.rounds(trained, split)
        if trained.recipe is not None:
            cost = self.price(split, rounds).in_trainings(rows, trained.recipe.epochs)
            notes.measure(DistillationFacts, rounds=rounds, rows_in_a_round=rows, cost_in_trainings=cost)
        forget, retain = (Visits.of(data, rounds, rows, self.seed) for data in (split.forget, visited))
        # What the network says now and not at first: answers from before earlier requests bring back their rows.
        known = trained.predict(retain.rows, READ).cpu()
        gone = ~torch.isin(torch.arange(known.shape[1]), split.retain.labels().cpu().unique())
        known[:, gone] = NEVER
        asked, own, targets = self.fold_models, self.self_weight, self.targets or self._usual(split).targets
        if asked is not None:
            notes.measure(DistillationFacts, fold_models_unseen=int(asked.unseen_divisions(split.forget).sum()))
        taught = untold(trained, forget.rows, gone, split, notes, fold_models=asked, self_weight=own, targets=targets)
        leaving = gone & torch.isin(torch.arange(len(gone)), forget.rows.labels().cpu())
        return Lesson(forget, retain, taught, known, leaving)

    def _preset(self, lesson: Lesson, split: Split) -> Preset:
        """Weight, temperature and boost: as the caller says, or as this kind of request is best served."""
        usual = self._usual(split)
        # Prevents a small forget set from dominating the loss.
        heaviest = HEAVIEST * len(lesson.forget) / lesson.visits
        usual = usual._replace(forget_weight=min(usual.forget_weight, heaviest))
        # Who says one temperature means it for all rows.
        held = self.temperature if self.retain_temperature is None else self.retain_temperature
        names = ("forget_weight", "temperature", "label_boost", "targets", "lr_scale", "momentum")
        given = {name: getattr(self, name) for name in names} | {"retain_temperature": held}
        return usual._replace(**{name: value for name, value in given.items() if value is not None})

    def _usual(self, split: Split) -> Preset:
        """How this kind of request is best served."""
        return preset_for(
            leaving=is_of_a_class(split),
            mislabelled=split.request.mislabelled,
            fold_models=self.fold_models is not None,
            targets=self.targets,
            few=self._is_limited,
            held_out=split.validation is not None,
        )

    @property
    def _is_limited(self) -> bool:
        """Whether not every row is visited in each round."""
        return self.examples_per_epoch is not None or self.compute_budget is not None

    def _is_careful(self, split: Split) -> bool:
        """Whether a step may diverge or cost retained rows, so that its size and length are looked after."""
        usual = self._usual(split)
        share = self.forget_weight or 0.0  # unless said, no visit counts more than HEAVIEST
        heavy = share > HEAVIEST * len(split.forget) / len(split.whole)
        return (self.temperature or usual.temperature) > HOT or heavy

    def _is_held(self, careful: bool) -> bool:
        """Whether the rate is held below where it diverges: fold models' answers lead further than own ones."""
        return careful or self.fold_models is not None

    def _is_swept(self, careful: bool) -> bool:
        """Whether visits come in parts: own answers, without a label or less sure, are too near to diverge from."""
        return careful and self.fold_models is not None

    def _begun(self, trained: Trained, lesson: Lesson, notes: Notes) -> Float[Tensor, " P"]:
        """Where distilling begins: at the weights, with the bias of classes that leave lowered."""
        if not lesson.is_of_a_class:
            return trained.weights
        ask_the_start(trained, lesson.leaving, lesson.forget.rows, notes)
        begun = suppress_class_bias(trained, lesson.leaving, lesson.forget.rows)
        notes.measure(DistillationFacts, bias_lowered_by=float((begun - trained.weights).abs().max()))
        return begun

    def _distilled(
        self,
        trained: Trained,
        begun: Float[Tensor, " P"],
        lesson: Lesson,
        preset: Preset,
        notes: Notes,
        *,
        size: int | None,
        careful: bool,
    ) -> Float[Tensor, " P"]:
        """One sweep over all visits."""
        notes.measure(DistillationFacts, **preset._asdict())
        read = len(lesson.forget.rows), len(lesson.retain.rows)
        notes.measure(DistillationFacts, forgotten_read=read[0], retained_read=read[1], visits=lesson.visits)
        pupil = replace(trained, loss=WeightedDistillation(), weights=begun)
        temperatures = preset.temperature, preset.retain_temperature
        told = lesson.told(preset.forget_weight, preset.label_boost, temperatures)
        # The rounds are in the visits, so the rate falls to zero over all of them and not in each.
        told_steps = replace(self, lr_scale=preset.lr_scale, momentum=preset.momentum, batch_size=size)
        recipe = told_steps.recipe(trained, notes).but(epochs=1)
        if not self._is_held(careful) or recipe.optimizer != "sgd":  # Adam divides by the size of its gradients
            return fit(pupil, told, recipe, seed=self.seed, label="distilling").weights
        lr, m, b = recipe.lr, recipe.momentum, recipe.batch_size
        found = steady(pupil, told, len(lesson.forget), lr=lr, momentum=m, batch_size=b)
        recipe = recipe.but(lr=found.lr)
        notes.measure(DistillationFacts, lr=recipe.lr)
        if not self._is_swept(careful):
            return fit(pupil, told, recipe, seed=self.seed, label="distilling", adjust=found.clip).weights
        sides = [side.some(ASKED_BETWEEN) for side in lesson.sides(preset)]
        swept = sweep(pupil, told, recipe, found.clip, lambda w: objective(trained, w, *sides)[0], seed=self.seed)
        notes.measure(DistillationFacts, parts_taken_back=swept.taken_back)
        return swept.weights

    def _extended(
        self,
        trained: Trained,
        begun: Float[Tensor, " P"],
        ended: Float[Tensor, " P"],
        lesson: Lesson,
        preset: Preset,
        notes: Notes,
        *,
        careful: bool,
    ) -> Float[Tensor, " P"]:
        """The end of the step, moved on where few visits have stopped it short, and back where it went too far."""
        most = self._stretch(lesson.is_of_a_class)
        if most <= 1 and not careful:
            return ended
        length = step_length(trained, begun, ended - begun, *lesson.sides(preset), most=most)
        notes.measure(DistillationFacts, step_scale=length)
        if length < SHORTEST:
            notes.assume(
                f"retained rows err by half a point more after the step, so {length:g} of it was taken",
                "much of what was to be forgotten is still there; retrain",
            )
        return begun + length * (ended - begun)

    def _stretch(self, leaving: bool) -> float:
        """How much longer the step may become: only fold models' answers are ones to be met, others may be passed."""
        if self.fold_models is None or leaving:
            return 1.0
        if self.max_step_scale is not None:
            return self.max_step_scale
        return STRETCH if self._is_limited else 1.0

    def price(self, split: Split, rounds: int) -> Price:
        """What such a request takes, by count."""
        careful = self._is_careful(split)
        return price_of(
            split,
            rounds,
            self.fold_models,
            self.targets or self._usual(split).targets,
            second_opinion=self.self_weight > 0,
            searched=careful or self._stretch(is_of_a_class(split)) > 1,
            held=self._is_held(careful),
            swept=self._is_swept(careful),
        )

    def rounds(self, trained: Trained, split: Split) -> int:
        """As many as are said or, of the usual rows, as the budget pays for."""
        rows = self._usual_rows(split)
        if rows is None or trained.recipe is None or self.compute_budget is None:
            return self.epochs
        return max(1, self.price(split, 1).rounds_for(self.compute_budget, trained.recipe.epochs, rows))

    def _usual_rows(self, split: Split) -> int | None:
        """Retained rows of a round of which the forgotten rows are the share that they weigh, if a budget pays."""
        usual = self._usual(split)
        if usual not in BY_VISITS or self.compute_budget is None:
            return None
        share = self.forget_weight or usual.forget_weight
        return math.ceil(len(split.forget) * max(1.0, (1 - share) / share))

    def rows_in_a_round(self, trained: Trained, split: Split) -> int:
        """The most rows of either kind that are visited in a round."""
        if self.examples_per_epoch is not None:
            return self.examples_per_epoch
        if self.compute_budget is None:
            return max(len(split.forget), len(split.retain))
        if trained.recipe is None:
            raise NeedError(
                "`OutOfFoldDistillation.compute_budget` is in trainings, but the recipe is not known. Give "
                "`examples_per_epoch`, or a recipe."
            )
        usual = self._usual_rows(split)
        most = self.price(split, self.rounds(trained, split)).rows_for(self.compute_budget, trained.recipe.epochs)
        return most if usual is None else min(most, usual)
