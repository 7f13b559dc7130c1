"""NegGrad+: down on the retained rows and up on the forgotten ones, in one objective.

As defined by Kurmanji, Triantafillou, Hayes and Triantafillou (2023), *Towards Unbounded Machine Unlearning*.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import SettingError
from spotlessnet.core.scrub import METHODS, Notes, Work, gradients
from spotlessnet.core.split import Split
from spotlessnet.core.targets import Weighted, with_weights
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import fit
from spotlessnet.training.tuning import Tuning


@METHODS.register(
    "neg-grad-plus",
    summary="Fine-tune down the loss of the retained data and, with a small share, up that of the forgotten data.",
    paper="Kurmanji, Triantafillou, Hayes and Triantafillou (2023), Towards Unbounded Machine Unlearning",
    needs=("retained data", "classes"),
    reads=("init", "recipe"),
    guarantee="none",
)
@dataclass(frozen=True)
class NegGradPlus(Tuning):
    r"""Fine-tune on $\beta L_{D_r} - (1 - \beta) L_{D_f}$, both means.

    **Arguments** beside those of `Tuning`:

    - `beta`: the share of the retained rows; close to one, or the network breaks.
    """

    epochs: int = 5
    beta: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.beta <= 1:
            raise SettingError(f"`NegGradPlus.beta` must lie in (0, 1], but got {self.beta}.")

    def cost(self, trained: Trained, split: Split) -> Work:
        return gradients(trained, split, self.epochs * len(split.whole), looks=True)

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        N, k = len(split.whole), len(split.forget)
        # Weights that make the mean over D the objective above.
        up, down = -(1 - self.beta) * N / k, self.beta * N / (N - k)
        weights = torch.where(split.forgotten, up, down)
        data = split.whole.relabel(with_weights(split.whole.labels().cpu(), weights))
        recipe = self.recipe(trained, notes, split.retain)
        return fit(replace(trained, loss=Weighted()), data, recipe, seed=self.seed).weights
