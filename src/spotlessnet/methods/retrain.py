"""Retraining: the gold standard that every scrub is measured against."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import check_not_negative
from spotlessnet.core.scrub import METHODS, Notes, Scrub, Work, gradients
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import fit


@METHODS.register(
    "retrain",
    paper="the reference of every paper",
    needs=("retained data", "init", "recipe"),
    guarantee="exact: the forgotten examples never touch the weights",
)
@dataclass(frozen=True)
class Retrain(Scrub):
    """Train again from the start, by the same recipe, on the retained data alone.

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
        # Without a recipe the method itself refuses and says what to give.
        epochs = trained.recipe.epochs if trained.recipe else 0
        return gradients(trained, split, epochs * len(split.retain))

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        recipe, init = trained.history("Retraining", instead="Finetune")
        if not recipe.freeze_statistics:
            notes.assume(
                "BatchNorm statistics of the retrained network are left behind; only weights come back",
                "the answer is that of retrained weights under the original's statistics",
            )
        order = split.first_trained_on if self.coupled else None
        return fit(trained.at(init), split.retain, recipe, seed=self.seed, order_of=order, label="retraining").weights
