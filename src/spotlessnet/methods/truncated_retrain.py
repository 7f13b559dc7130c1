"""Truncated retraining: retraining that is stopped early, the baseline that every cheap method must beat."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import SettingError, check_not_negative
from spotlessnet.core.scrub import METHODS, Notes, Scrub, Work, gradients
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import learnt_buffers, train


@METHODS.register(
    "truncated-retrain",
    summary="Retrain on the retained data for a share of the epochs, the schedule squeezed into them.",
    paper="EasyDUB (2026), arXiv 2602.16400: baseline",
    needs=("retained data", "init", "recipe"),
    guarantee="the forgotten examples never touch the weights",
    never_sees_forgotten=True,
)
@dataclass(frozen=True)
class TruncatedRetrain(Scrub):
    """Train from the start on the retained rows for a share of the recipe's epochs; the whole schedule fits in.

    Unlike `ShortRetrain` it changes neither rate nor batches and never looks at how well the network does.

    **Arguments:**

    - `epoch_fraction`: of the recipe's epochs, at least one.
    - `seed`: of the order of the rows.
    """

    least_kept: ClassVar[float] = 0.0

    epoch_fraction: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.epoch_fraction <= 1:
            raise SettingError(f"`TruncatedRetrain.epoch_fraction` must lie in (0, 1], but got {self.epoch_fraction}.")
        check_not_negative("TruncatedRetrain.seed", self.seed)

    def _epochs(self, trained: Trained) -> int:
        return max(1, round(self.epoch_fraction * (trained.epochs or 1)))

    def cost(self, trained: Trained, split: Split) -> Work:
        if trained.trainer is not None and trained.epochs is None:
            return Work.unknown()
        return gradients(trained, split, self._epochs(trained) * len(split.retain))

    def check_needs(self, trained: Trained, split: Split) -> None:
        super().check_needs(trained, split)
        trained.begin("Truncated retraining", instead="Finetune")

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        begun = trained.begin("Truncated retraining", instead="Finetune")
        epochs = None if trained.epochs is None else self._epochs(trained)
        order = None if trained.trainer is not None else split.first_trained_on
        made = train(begun, split.retain, seed=self.seed, order_of=order, epochs=epochs, label="retraining in part")
        notes.buffers = learnt_buffers(trained, made.model)
        return made.weights
