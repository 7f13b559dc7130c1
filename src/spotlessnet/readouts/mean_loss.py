"""Mean loss: what training minimised, without the decay, on one part of the split."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from spotlessnet.core.data import Data
from spotlessnet.core.errors import check_choice
from spotlessnet.core.readout import READOUTS, Ideal, Reading, Readout
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.parts import PARTS, Part, part


@torch.no_grad()
def mean_loss(network: Trained, data: Data) -> float:
    """The loss per row, averaged in float64."""
    return float(torch.cat([network.losses(b.x, b.y) for b in network.batches(data)]).double().mean())


@READOUTS.register(
    "mean-loss",
    paper="Golatkar, Achille and Soatto (2020), Eternal Sunshine of the Spotless Net: figure 1",
)
@dataclass(frozen=True)
class MeanLoss(Readout):
    """Loss per row on the retained, forgotten or test rows.

    **Arguments:**

    - `on`: which rows.
    """

    unit: ClassVar[str] = "loss a row"
    ideal: ClassVar[Ideal] = "as retrained"

    on: Part = "forget"

    def __post_init__(self) -> None:
        check_choice("MeanLoss.on", self.on, PARTS)

    @property
    def name(self) -> str:
        return f"loss on {self.on}"

    def __call__(self, network: Trained, split: Split) -> Reading:
        return Reading(mean_loss(network, part(split, self.on)))
