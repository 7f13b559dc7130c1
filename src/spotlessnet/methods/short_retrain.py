"""Short retraining: from the start again, in a fraction of the epochs. The default where start and recipe are known."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.answers import error_rate
from spotlessnet.core.deprecated import OldName
from spotlessnet.core.errors import check_not_negative, check_positive
from spotlessnet.core.gaussian import Measured
from spotlessnet.core.scrub import METHODS, Notes, Scrub, Sizes, Work
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.core.trainer import name_of
from spotlessnet.training.fit import learnt_buffers, note_other_training, train

USUAL = 3
"""Stages that are seldom exceeded: one did on scikit-learn's digits, two on small networks with little data."""


@dataclass(frozen=True)
class ShortRetrainFacts(Measured):
    """How long it took, and how well retained rows are answered.

    **Arguments:**

    - `share_of_training`: epochs done, as a share of the recipe's.
    - `share_of_retraining`: operations done, looks at the error included, as a share of one retraining's: what the plan
      shows as usual and at most.
    """

    epochs: int | None = None
    share_of_training: float | None = None
    share_of_retraining: float | None = None
    retained_error: float | None = None


@METHODS.register(
    "short-retrain",
    paper="this package",
    needs=("retained data", "init", "recipe"),
    guarantee="the forgotten examples never touch the weights; when to stop is read off the original network",
    never_sees_forgotten=True,
)
@dataclass(frozen=True)
class ShortRetrain(Scrub):
    """Train on the retained rows from the start, fast, until they are answered as well as before.

    The forgotten rows never touch the weights, so nothing of them can be left, as after `Retrain`; what is given up is
    being the very network that the recipe gives. Training goes in stages, each a share of the recipe's epochs in
    smaller batches at a higher rate that falls to zero, and ends after the first stage that errs on the retained rows
    hardly more than the original does. At worst it takes as long as retraining, and says so.

    A training so short that a stage would be a single epoch is repeated as it is, once: stages with a schedule of their
    own took twice as long there and ended worse (EfficientNet-Lite0 and MiniLM, fine-tuned for 6 and 5 epochs).

    **Arguments:**

    - `epoch_fraction`: the epochs of a stage, as a share of the recipe's.
    - `batch_scale`: the size of a batch, as a share of the recipe's: more and noisier steps for the same work.
    - `lr_scale`: a stage's first rate, in units of the recipe's.
    - `error_tolerance`: how much larger the error on the retained rows may be than the original's.
    - `seed`: of the order of the rows.
    """

    least_kept: ClassVar[float] = 0.0

    epoch_fraction: float = 0.2
    batch_scale: float = 0.5
    lr_scale: float = 1.5
    error_tolerance: float = 0.005
    seed: int = 0

    speed = OldName("lr_scale")
    thin = OldName("batch_scale")
    effort = OldName("epoch_fraction")
    slack = OldName("error_tolerance")

    def __post_init__(self) -> None:
        for name in ("epoch_fraction", "batch_scale", "lr_scale"):
            check_positive(f"ShortRetrain.{name}", getattr(self, name))
        check_not_negative("ShortRetrain.error_tolerance", self.error_tolerance)
        check_not_negative("ShortRetrain.seed", self.seed)

    def cost(self, trained: Trained, split: Split) -> Work:
        if trained.trainer is not None and trained.epochs is None:
            return Work.unknown()
        sizes = Sizes.of(trained, split)
        n = len(split.retain)
        epochs = trained.epochs or 0
        stage = self._stage(epochs)
        if stage == 1:
            return Work.sure(epochs * sizes.gradient * n)
        stages = -(-epochs // stage)
        # One stage where it is as good at once; the error is looked at before the first and after each.
        return Work(
            (stage * sizes.gradient + 2 * sizes.answer) * n,
            (stages * stage * sizes.gradient + (stages + 1) * sizes.answer) * n,
        )

    def check_needs(self, trained: Trained, split: Split) -> None:
        super().check_needs(trained, split)
        self._begin(trained)

    def _begin(self, trained: Trained) -> Trained:
        return trained.begin("A short retraining", instead="chain(NTK(), Finetune(epochs=3))")

    def foreseen(self, trained: Trained, split: Split) -> Work:
        """One to three stages are usual, and nobody knows beforehand which: the middle, as a factor."""
        work = self.cost(trained, split)
        return replace(work, usual=math.sqrt(work.usual * min(USUAL * work.usual, work.most)))

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        begun = self._begin(trained)
        full = trained.epochs
        if full is None:
            return self._in_full(trained, split, notes)
        if self._stage(full) == 1:
            return self._as_it_was(trained, split, notes)
        goal = error_rate(trained, split.retain) + self.error_tolerance
        stage = self._stage(full)
        network = self._hurried(begun, stage)
        epochs = 0
        error = float("inf")
        while error > goal and epochs < full:
            # Each stage is counted from nought: without its epochs, the count would seem to go backwards.
            label = f"retraining in short, epochs {epochs + 1} to {epochs + stage}"
            network = train(network, split.retain, seed=self.seed + epochs, epochs=stage, label=label)
            epochs += stage
            error = error_rate(network, split.retain)
        share = epochs / full if full else 0.0
        sizes = Sizes.of(trained, split)
        counted = share + (epochs // stage + 1) * sizes.answer / (full * sizes.gradient) if full else 0.0
        notes.measure(
            ShortRetrainFacts,
            epochs=epochs,
            share_of_training=share,
            share_of_retraining=counted,
            retained_error=error,
        )
        if error > goal:
            notes.assume(
                f"after as many epochs as the recipe has, the retained rows' error is {error:.3g}, not {goal:.3g}",
                "the network answers the retained rows worse than the original; retrain by the recipe itself",
            )
        notes.buffers = learnt_buffers(trained, network.model)
        return network.weights

    def _stage(self, epochs: int) -> int:
        return max(1, round(self.epoch_fraction * epochs))

    def _hurried(self, begun: Trained, epochs: int) -> Trained:
        """The network with a stage's recipe; a trainer of the user's own is only asked for fewer epochs."""
        if begun.recipe is None:
            return begun
        recipe = begun.recipe.but(
            epochs=epochs,
            lr=self.lr_scale * begun.recipe.lr,
            batch_size=max(1, round(self.batch_scale * begun.recipe.batch_size)),
            schedule="cosine",
            patience=None,
        )
        return replace(begun, recipe=recipe)

    def _in_full(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        """One whole training, where the trainer knows no epochs: it takes longer, and forgets as well."""
        assert trained.trainer is not None  # a recipe knows its epochs
        notes.assume(
            f"{name_of(trained.trainer)} has no argument `epochs` with a default, so it was not asked for fewer and "
            "the training was repeated in full",
            "nothing is saved against retraining; give the trainer an argument such as `epochs=20`",
        )
        return self._as_it_was(trained, split, notes)

    def _as_it_was(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        made = train(self._begin(trained), split.retain, seed=self.seed, label="retraining")
        note_other_training(trained, made, split, notes)
        known = None if trained.epochs is None else 1.0
        notes.measure(ShortRetrainFacts, epochs=trained.epochs, share_of_training=1.0, share_of_retraining=known)
        notes.buffers = learnt_buffers(trained, made.model)
        return made.weights
