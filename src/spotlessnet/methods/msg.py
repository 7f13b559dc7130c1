"""MSG: begin anew the weights that tell retained from forgotten rows least, then fine-tune, the others slowly.

Masked Small Gradients, second of the 2023 unlearning challenge, as defined by its code in the benchmark of Cadet,
Borovykh, Malekzadeh, Ahmadi-Abhari and Haddadi (2024), *Deep Unlearn*.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from spotlessnet.core.errors import SettingError
from spotlessnet.core.scrub import METHODS, Notes, Work, gradients
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.gradient import gradient
from spotlessnet.training.fit import fit
from spotlessnet.training.tuning import Tuning

SLOWLY = 0.1
"""What the gradient of a kernel's other weights is multiplied by."""


@METHODS.register(
    "msg",
    summary="Reset kernel weights whose gradients on retained and forgotten data differ least, then fine-tune.",
    paper="Cadet, Borovykh, Malekzadeh, Ahmadi-Abhari and Haddadi (2024), Deep Unlearn: MSG",
    needs=("retained data", "classes"),
    reads=("init", "recipe"),
    guarantee="none",
)
@dataclass(frozen=True)
class MSG(Tuning):
    r"""Reset, in each kernel, the share of weights whose gradients on $D_r'$ and $D_f$ differ least; fine-tune.

    Reset weights are drawn from $N(0, 2/\mathrm{fan}_{out})$. $D_r'$ are as many retained rows as there are forgotten
    ones. While fine-tuning on $D_r$, gradients of the other kernel weights count a tenth; the rate climbs for half of
    the steps and then falls to zero. Kernels are those of convolutions; a network without any has the matrices of its
    linear layers treated so, which the definition does not say.

    **Arguments** beside those of `Tuning`:

    - `share`: of each kernel that is reset; the published default is 0.3.
    """

    epochs: int = 5
    share: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise SettingError(f"`MSG.share` must lie in (0, 1], but got {self.share}.")

    def cost(self, trained: Trained, split: Split) -> Work:
        return gradients(trained, split, self.epochs * len(split.retain) + 2 * len(split.forget), looks=True)

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        draw = torch.Generator().manual_seed(self.seed)
        k, n = len(split.forget), len(split.retain)
        some = split.retain.select(split.retain.rows.argsort()).select(torch.randperm(n, generator=draw)[:k])
        # Means, as the published code's losses are; signs as there.
        size = (gradient(trained, some) / len(some) - gradient(trained, split.forget) / k).abs()
        kernels = 4 if any(len(shape) == 4 for shape in trained.shapes) else 2
        if kernels == 2:
            notes.assume("the network has no convolutions; matrices of linear layers stand in", "not as published")
        weights, reset = self._begun_anew(trained, size, kernels, draw)
        inside = torch.cat([torch.full((s.numel(),), float(len(s) == kernels)) for s in trained.shapes]).bool()
        scale = torch.where(inside.to(reset.device) & ~reset, SLOWLY, 1.0).to(weights)

        def mask(g: Tensor, w: Tensor, done: float) -> None:
            g.mul_(scale)

        recipe = self.recipe(trained, notes, split.retain).but(schedule="linear", warmup_ratio=0.5)
        begun = trained.at(weights)
        return fit(begun, split.retain, recipe, seed=self.seed, label="MSG", adjust=mask).weights

    def _begun_anew(
        self, trained: Trained, size: Float[Tensor, " P"], kernels: int, draw: torch.Generator
    ) -> tuple[Float[Tensor, " P"], Bool[Tensor, " P"]]:
        """The weights with small ones of every kernel drawn anew, and which these are."""
        weights = trained.weights.clone()
        reset = torch.zeros_like(size, dtype=torch.bool)
        begin = 0
        for shape in trained.shapes:
            place = slice(begin, begin + shape.numel())
            begin += shape.numel()
            if len(shape) != kernels:
                continue
            count = round(self.share * shape.numel())
            chosen = size[place].argsort(stable=True)[:count]
            fan_out = shape[0] * math.prod(shape[2:])
            fresh = math.sqrt(2 / fan_out) * torch.randn(shape.numel(), generator=draw).to(weights)
            weights[place][chosen] = fresh[chosen]
            reset[place][chosen] = True
        return weights, reset
