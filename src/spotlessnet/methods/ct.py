"""CT: transpose every convolution kernel, then fine-tune on the retained rows.

Convolution Transpose, fifth of the 2023 unlearning challenge, as defined by its code in the benchmark of Cadet,
Borovykh, Malekzadeh, Ahmadi-Abhari and Haddadi (2024), *Deep Unlearn*.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.scrub import METHODS, Notes, Work, gradients
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import fit
from spotlessnet.training.tuning import Tuning


@METHODS.register(
    "ct",
    summary="Swap height and width of every convolution kernel, then fine-tune on the retained data.",
    paper="Cadet, Borovykh, Malekzadeh, Ahmadi-Abhari and Haddadi (2024), Deep Unlearn: CT",
    needs=("retained data",),
    reads=("init", "recipe"),
    guarantee="none",
)
@dataclass(frozen=True)
class CT(Tuning):
    """Fine-tune from kernels with height and width swapped, at a rate that falls to zero as a cosine.

    Kernels that are not square stay: the definition does not speak of them. A network without convolutions is only
    fine-tuned, and the result says so. Settings as for `Tuning`.
    """

    epochs: int = 3

    def cost(self, trained: Trained, split: Split) -> Work:
        return gradients(trained, split, self.epochs * len(split.retain))

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        pieces = trained.weights.split([shape.numel() for shape in trained.shapes])
        square = [len(shape) == 4 and shape[2] == shape[3] > 1 for shape in trained.shapes]
        if not any(square):
            notes.assume("no convolution has a square kernel, so none was transposed", "this is fine-tuning alone")
        turned = torch.cat(
            [
                piece.reshape(shape).transpose(2, 3).flatten() if turns else piece
                for piece, shape, turns in zip(pieces, trained.shapes, square, strict=True)
            ]
        )
        recipe = self.recipe(trained, notes, split.retain).but(schedule="cosine")
        return fit(trained.at(turned), split.retain, recipe, seed=self.seed, label="CT").weights
