"""Retraining: the gold standard that every scrub is measured against."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import NeedError, check_not_negative
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Notes, Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import fit


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

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        recipe, start = history_of(trained, "Retraining", "Finetune")
        if not recipe.freeze_statistics:
            notes.assume(
                "BatchNorm statistics of the retrained network are left behind; only weights come back",
                "the answer is that of retrained weights under the original's statistics",
            )
        order = split.first_trained_on if self.coupled else None
        return fit(trained.at(start), split.retain, recipe, seed=self.seed, order_of=order, label="retraining").weights


def history_of(trained: Trained, who: str, instead: str) -> tuple[Recipe, Float[Tensor, " P"]]:
    """How the network was trained and from where, or an error in the name of `who` needs to know."""
    recipe, start = trained.recipe, trained.init
    if recipe is None or start is None:
        missing = " and ".join(name for name, value in (("recipe", recipe), ("init", start)) if value is None)
        raise NeedError(
            f"{who} needs the recipe and the start of the training, but there is no {missing}. Give both: "
            f"`Trained.of(model, recipe=..., init=...)`, or use `{instead}`."
        )
    return recipe, start
