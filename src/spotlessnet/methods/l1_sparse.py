"""ℓ1-sparse fine-tuning: fine-tune on the retained rows while small weights fade.

As defined by Jia, Liu, Ram, Yao, Liu, Liu, Sharma and Liu (2023), *Model Sparsity Can Simplify Machine Unlearning*.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import check_not_negative
from spotlessnet.core.scrub import METHODS, Notes, Work, gradients
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import fit
from spotlessnet.training.tuning import Tuning


@METHODS.register(
    "l1-sparse",
    summary="Train on with the retained data and an l1 norm of the weights, whose strength falls to zero.",
    paper="Jia, Liu, Ram, Yao, Liu, Liu, Sharma and Liu (2023), Model Sparsity Can Simplify Machine Unlearning",
    needs=("retained data",),
    reads=("init", "recipe"),
    guarantee="none",
)
@dataclass(frozen=True)
class L1Sparse(Tuning):
    r"""Minimise $L_{D_r} + \gamma_t \|w\|_1$ with $\gamma_t$ falling to zero along the way.

    **Arguments** beside those of `Tuning`:

    - `gamma`: the weight of the ℓ1 norm at the beginning.
    """

    epochs: int = 5
    gamma: float = 5e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("L1Sparse.gamma", self.gamma)

    def cost(self, trained: Trained, split: Split) -> Work:
        return gradients(trained, split, self.epochs * len(split.retain))

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        def fade(g: Tensor, w: Tensor, done: float) -> None:
            # A subgradient of ‖w‖₁. γ falls to zero in a straight line: held to the end it would cost accuracy.
            g.add_(w.sign(), alpha=self.gamma * (1 - done))

        recipe = self.recipe(trained, notes, split.retain)
        return fit(trained, split.retain, recipe, seed=self.seed, adjust=fade).weights
