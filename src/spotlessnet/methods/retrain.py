"""Retraining: the gold standard that every scrub is measured against."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import check_not_negative
from spotlessnet.core.scrub import METHODS, Notes, Scrub, Work, gradients
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.core.trainer import name_of
from spotlessnet.training.fit import UNCOUPLED, learnt_buffers, note_other_training, train


@METHODS.register(
    "retrain",
    paper="the reference of every paper",
    needs=("retained data", "init", "recipe"),
    guarantee="exact: the forgotten examples never touch the weights",
    never_sees_forgotten=True,
)
@dataclass(frozen=True)
class Retrain(Scrub):
    """Train again from the start, by the same recipe or trainer, on the retained data alone.

    **Arguments:**

    - `coupled`: visit the rows in the order of the training with this seed, the forgotten ones (and those of earlier
      requests) left out of their batches, so that the two trainings differ by those rows and nothing else; `False`
      shuffles anew.
    - `seed`: for `coupled`, that of the original training.
    """

    least_kept: ClassVar[float] = 0.0

    coupled: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_not_negative("Retrain.seed", self.seed)

    def cost(self, trained: Trained, split: Split) -> Work:
        if trained.trainer is not None and trained.epochs is None:
            return Work.unknown()
        # Without a recipe the method itself refuses and says what to give.
        return gradients(trained, split, (trained.epochs or 0) * len(split.retain))

    def check_needs(self, trained: Trained, split: Split) -> None:
        super().check_needs(trained, split)
        self._begin(trained)

    def _begin(self, trained: Trained) -> Trained:
        return trained.begin("Retraining", instead="Finetune")

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        begun = self._begin(trained)
        if trained.trainer is not None and self.coupled:
            notes.assume(
                UNCOUPLED.format(name=name_of(trained.trainer)),
                "the two trainings differ by chance as well as by the rows",
            )
        order = split.first_trained_on if self.coupled else None
        made = train(begun, split.retain, seed=self.seed, order_of=order, label="retraining")
        note_other_training(trained, made, split, notes)
        notes.buffers = learnt_buffers(trained, made.model)
        return made.weights
