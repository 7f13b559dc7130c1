"""The margin: by how much the right class wins, the statistic that membership attacks read."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float64
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import check_choice
from spotlessnet.core.progress import track
from spotlessnet.core.readout import READOUTS, Ideal, Reading, Readout
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.parts import PARTS, Part, no_classes, part
from spotlessnet.readouts.scores import kind_of, scores


def margins(network: Trained, data: Data) -> Float64[Tensor, " N"]:
    """The margin of each row of `data`; the mean over its positions or its yes-or-no labels where there are several."""
    if kind_of(network, data) == "losses":
        raise no_classes(network, network.predict(data))
    return scores(network, data)


def margins_of(networks: Iterable[Trained], data: Data) -> Float64[Tensor, "S N"]:
    """Margins under several networks, one row each, on the CPU."""
    return torch.stack([margins(network, data).cpu() for network in track(networks, "margins")])


@READOUTS.register(
    "margin",
    paper="Carlini, Chien, Nasr, Song, Terzis and Tramèr (2022), Membership Inference Attacks From First Principles",
)
@dataclass(frozen=True)
class Margin(Readout):
    """Mean margin on one part of the split.

    **Arguments:**

    - `on`: which rows.
    """

    unit: ClassVar[str] = "log odds"
    ideal: ClassVar[Ideal] = "as retrained"

    on: Part = "forget"

    def __post_init__(self) -> None:
        check_choice("Margin.on", self.on, PARTS)

    @property
    def name(self) -> str:
        return f"margin on {self.on}"

    def __call__(self, network: Trained, split: Split) -> Reading:
        return Reading(float(margins(network, part(split, self.on)).mean()))
