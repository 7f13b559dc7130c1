"""SalUn: random labels for the forgotten rows, but only the weights that they pull on most may move.

As defined by Fan, Liu, Zhang, Wong, Wei and Liu (2024), *SalUn: Empowering Machine Unlearning via Gradient-based Weight
Saliency*.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import SettingError
from spotlessnet.core.scrub import METHODS, Notes, Work, gradients
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.gradient import gradient
from spotlessnet.training.fit import fit
from spotlessnet.training.tuning import Tuning


@METHODS.register(
    "salun",
    paper="Fan, Liu, Zhang, Wong, Wei and Liu (2024), SalUn",
    needs=("retained data", "classes"),
    reads=("init", "recipe"),
    guarantee="none",
)
@dataclass(frozen=True)
class SalUn(Tuning):
    """Fine-tune on all rows with the forgotten ones relabelled at random, other weights held still.

    **Arguments** beside those of `Tuning`:

    - `share`: of the weights that may move, those with the largest gradient on the forgotten rows.
    """

    epochs: int = 5
    share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise SettingError(f"`SalUn.share` must lie in (0, 1], but got {self.share}.")

    def cost(self, trained: Trained, split: Split) -> Work:
        # The forgotten rows' gradient chooses the weights that may move.
        return gradients(trained, split, self.epochs * len(split.whole) + len(split.forget), looks=True)

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        size = gradient(trained, split.forget).abs()
        # The saliency map: the weights along which the loss of the forgotten rows is steepest.
        least = size.topk(max(1, int(self.share * len(size)))).values[-1]
        moves = (size >= least).to(size)
        labels = split.whole.labels().cpu()
        classes = int(trained.predict(split.forget.select([0])).shape[1])
        draw = torch.Generator().manual_seed(self.seed)
        # One to C − 1 further around the circle of classes is any class but the true one.
        other = (labels + torch.randint(1, classes, labels.shape, generator=draw)) % classes
        data = split.whole.relabel(torch.where(split.forgotten, other, labels))

        def hold(g: Tensor, w: Tensor, done: float) -> None:
            g.mul_(moves)

        recipe = self.recipe(trained, notes, split.retain)
        if recipe.optimizer == "adamw":
            recipe = recipe.but(weight_decay=0.0)  # its decay moves weights beside the gradient, held or not
        return fit(trained, data, recipe, seed=self.seed, adjust=hold).weights
