"""Loss attack: rows that a network was trained on have lower losses than others; are the forgotten ones among them?

Yeom, Giacomelli, Fredrikson and Jha (2018), *Privacy Risk in Machine Learning*.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float64
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.intervals import auc_interval
from spotlessnet.core.readout import READOUTS, Ideal, Reading, Readout
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained


@torch.no_grad()
def row_losses(network: Trained, data: Data) -> Float64[Tensor, " N"]:
    """The loss of each row, on the CPU."""
    return torch.cat([network.losses(b.x, b.y).double().cpu() for b in network.batches(data)])


@READOUTS.register(
    "loss-attack",
    paper="Yeom, Giacomelli, Fredrikson and Jha (2018), Privacy Risk in Machine Learning",
    needs=("test data",),
)
@dataclass(frozen=True)
class LossAttack(Readout):
    """Area under the curve of forgotten against test rows, judged by the loss alone: for any network and any loss.

    It is the area that any one threshold is drawn from. What a retrained network gives is the target, not one half:
    forgotten rows may be easier or harder than test rows.
    """

    unit: ClassVar[str] = "AUC"
    ideal: ClassVar[Ideal] = "as retrained"

    @property
    def name(self) -> str:
        return "loss attack"

    def __call__(self, network: Trained, split: Split) -> Reading:
        members, others = (-row_losses(network, rows) for rows in (split.forget, split.tests))
        return Reading(*auc_interval(members, others))
