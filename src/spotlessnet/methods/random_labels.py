"""Random labels: train on with the forgotten data called something else."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError
from spotlessnet.core.scrub import METHODS, Notes, Work, gradients
from spotlessnet.core.split import Split, joined
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import fit
from spotlessnet.training.tuning import Tuning


@METHODS.register(
    "random-labels",
    paper="Golatkar, Achille and Soatto (2020), Eternal Sunshine of the Spotless Net: baseline",
    needs=("retained data", "classes"),
    reads=("init", "recipe"),
    guarantee="none",
)
@dataclass(frozen=True)
class RandomLabels(Tuning):
    """Train on with all data, the forgotten rows under labels drawn evenly from the other classes.

    A baseline of the papers: it overwrites more than it forgets. Classes only. Settings as for `Tuning`.
    """

    def cost(self, trained: Trained, split: Split) -> Work:
        return gradients(trained, split, self.epochs * len(split.whole), looks=True)

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        forget = _in_order(split.forget)
        drawn = self._labels(trained, forget)
        relabelled = forget.relabel(drawn)
        same = split.retain.source is forget.source
        data = Data(relabelled.source, split.whole.rows) if same else joined(split.retain, relabelled)
        recipe = self.recipe(trained, notes, split.retain)
        return fit(trained, data, recipe, seed=self.seed, label="random labels").weights

    def _labels(self, trained: Trained, forget: Data) -> Int64[Tensor, " k"]:
        y = forget.labels()
        classes = trained.predict(forget.select([0])).shape[-1]
        if not trained.loss.is_classification or y.ndim != 1 or classes < 2:
            raise SettingError(
                f"RandomLabels needs a classification loss and one class per row, but the loss is "
                f"{trained.loss.name!r} with labels of shape {tuple(y.shape)}. Use `GradientAscent` or `Finetune`."
            )
        # Any of the other classes is the true one plus one to C - 1, around the circle.
        ahead = torch.randint(1, classes, (len(y),), generator=torch.Generator().manual_seed(self.seed))
        return (y.long().cpu() + ahead) % classes


def _in_order(data: Data) -> Data:
    """The same rows by number, so that which label a row gets does not hang on how the request lists them."""
    return data.select(data.rows.argsort())
