"""Fine-tuning: train on without the forgotten data, and hope."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.scrub import METHODS, Notes, Work, gradients
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import fit
from spotlessnet.training.tuning import Tuning


@METHODS.register(
    "finetune",
    paper="Golatkar, Achille and Soatto (2020), Eternal Sunshine of the Spotless Net: baseline",
    needs=("retained data",),
    reads=("init", "recipe"),
    guarantee="none",
)
@dataclass(frozen=True)
class Finetune(Tuning):
    """Train on with the retained data alone; what was memorised fades slowly, if at all.

    The papers' baseline, and what may follow a step: `chain(NTK(), Finetune(epochs=3))`. With enough epochs on a
    convex problem it is retraining. Settings as for `Tuning`.
    """

    def cost(self, trained: Trained, split: Split) -> Work:
        return gradients(trained, split, self.epochs * len(split.retain))

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        recipe = self.recipe(trained, notes, split.retain)
        return fit(trained, split.retain, recipe, seed=self.seed, label="fine-tuning").weights
