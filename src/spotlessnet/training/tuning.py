"""`Tuning`: what scrubs that go on training have in common."""

import math
from dataclasses import dataclass
from typing import ClassVar

from spotlessnet.core.data import Data, evenly
from spotlessnet.core.deprecated import OldName
from spotlessnet.core.errors import NeedError, ResourceError, SettingError, check_not_negative, check_positive
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Notes, Scrub, Sizes, Work
from spotlessnet.core.trained import Trained
from spotlessnet.operators.largest_curvature import PRODUCTS, largest_curvature

PROBED = 256
"""Retained rows that the curvature is taken from where nobody knows at what rate the network can be trained."""


@dataclass(frozen=True)
class Tuning(Scrub):
    """A scrub that trains on from where the network stands.

    **Arguments:**

    - `epochs`: passes over the data; never stops early.
    - `lr`, `momentum`, `batch_size`: as in training unless given; 0.01, 0.9 and 128 where the recipe is not known, and
      a lower rate where steps at that one would diverge: an eighth of the highest stable one at its curvature.
      Where Adam or AdamW trained with a rate that fell, `lr` is a tenth of the highest: their steps are as long as the
      rate, however small the gradient, and undo what the end of training had settled.
    - `seed`: of the order of the rows.
    """

    epochs: int = 10
    lr: float | None = None
    momentum: float | None = None
    batch_size: int | None = None
    seed: int = 0

    lowers_rate: ClassVar[bool] = True
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

    def recipe(self, trained: Trained, notes: Notes, data: Data | None = None, scale: float = 1.0) -> Recipe:
        """The training's own recipe at a constant rate times `scale`, with what this scrub says changed."""
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
        lr = scale * (self._rate(known) if self.lr is None else self.lr)
        momentum = known.momentum if self.momentum is None else self.momentum
        if self.looks_for_rate(trained) and data is not None:
            lr = min(lr, stable_rate(trained, data, momentum, notes))
        return known.but(
            epochs=self.epochs,
            lr=lr,
            momentum=momentum,
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

    def looks_for_rate(self, trained: Trained) -> bool:
        """Whether the network's curvature must tell at what rate it can be trained."""
        return self.lowers_rate and trained.recipe is None and self.lr is None

    @staticmethod
    def _rate(known: Recipe) -> float:
        settled = known.optimizer in ("adam", "adamw") and known.schedule != "constant"
        return known.lr / 10 if settled else known.lr


def stable_rate(trained: Trained, data: Data, momentum: float, notes: Notes) -> float:
    r"""The rate $(1 + m) / 4 \lambda$: an eighth of where gradient descent with momentum $m$ begins to diverge.

    Heavy-ball steps on a curvature $\lambda$ are stable below $2 (1 + m) / \lambda$; single batches are steeper than
    their mean, and the way is as well. Statistics of BatchNorm stand still while a scrub trains on, and a network that
    was trained with moving ones may then be a hundred times as steep.
    """
    some = data.select(evenly(len(data), min(PROBED, len(data))))
    try:
        top = largest_curvature(trained, some, keep=False)
    except (NeedError, ResourceError, RuntimeError):  # no forward derivatives, or no room: training needs neither
        notes.assume(
            "the recipe is not known, and the curvature that would tell a stable rate could not be computed",
            "training on may diverge at the default rate; give `lr`",
        )
        return math.inf
    return (1 + momentum) / (4 * top) if 0 < top < math.inf else math.inf


def work_of_rate(rows: int, sizes: Sizes) -> Work:
    """What `stable_rate` costs: each product takes a pass with its derivative, and a gradient."""
    return Work.sure(PRODUCTS * min(PROBED, rows) * (2 * sizes.answer + sizes.gradient))
