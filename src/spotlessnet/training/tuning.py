"""`Tuning`: what scrubs that go on training have in common."""

from dataclasses import dataclass

from spotlessnet.core.deprecated import OldName
from spotlessnet.core.errors import SettingError, check_not_negative, check_positive
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Notes, Scrub
from spotlessnet.core.trained import Trained


@dataclass(frozen=True)
class Tuning(Scrub):
    """A scrub that trains on from where the network stands.

    **Arguments:**

    - `epochs`: passes over the data; never stops early.
    - `lr`, `momentum`, `batch_size`: as in training unless given; 0.01, 0.9 and 128 where the recipe is not known.
      Where Adam or AdamW trained with a rate that fell, `lr` is a tenth of the highest: their steps are as long as the
      rate, however small the gradient, and undo what the end of training had settled.
    - `seed`: of the order of the rows.
    """

    epochs: int = 10
    lr: float | None = None
    momentum: float | None = None
    batch_size: int | None = None
    seed: int = 0

    rate = OldName("lr")
    batch = OldName("batch_size")

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_not_negative(f"{name}.epochs", self.epochs)
        check_not_negative(f"{name}.seed", self.seed)
        if self.lr is not None:
            check_positive(f"{name}.rate", self.lr)
        if self.batch_size is not None:
            check_positive(f"{name}.batch", self.batch_size)
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise SettingError(f"`{name}.momentum` must be in [0, 1), but got {self.momentum}.")

    def recipe(self, trained: Trained, notes: Notes) -> Recipe:
        """The training's own recipe at a constant rate, with what this scrub says changed."""
        if trained.recipe is None:
            notes.assume(
                "the recipe is not known; rate, momentum and batch have their defaults where none were given",
                "the tuning is not that of the training",
            )
        if trained.weight_decay is None and trained.recipe is None:
            notes.assume(
                "the decay is not known and was taken as zero", "the weights are free to wander from the start"
            )
        elif trained.weight_decay and trained.init is None:
            notes.assume(
                "the start of training is not known; the decay pulls to where the tuning begins",
                "the tuning aims at the optimum of another penalty",
            )
        known = trained.recipe or Recipe()
        return known.but(
            epochs=self.epochs,
            lr=self._rate(known) if self.lr is None else self.lr,
            momentum=known.momentum if self.momentum is None else self.momentum,
            batch_size=known.batch_size if self.batch_size is None else self.batch_size,
            # A decay that is no penalty (AdamW's) is known to the recipe alone.
            weight_decay=known.weight_decay if trained.weight_decay is None else trained.weight_decay,
            schedule="constant",
            warmup_ratio=0.0,
            label_smoothing=0.0,  # the network's own loss has it already, and methods put other losses in its place
            patience=None,
            # Only weights come back from a scrub, so statistics that moved would be lost.
            freeze_statistics=True,
        )

    @staticmethod
    def _rate(known: Recipe) -> float:
        settled = known.optimizer in ("adam", "adamw") and known.schedule != "constant"
        return known.lr / 10 if settled else known.lr
