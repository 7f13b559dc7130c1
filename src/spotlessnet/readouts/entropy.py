"""Confidence and entropy: how sure a network is of its answers, row by row and on average."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import check_choice, check_positive
from spotlessnet.core.readout import READOUTS, Ideal, Reading, Readout
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.parts import PARTS, Part, decisions, part


class Histogram(NamedTuple):
    """Shares of rows between edges; the last edge belongs to the last bin."""

    edges: Float[np.ndarray, " B1"]
    shares: Float[np.ndarray, " B"]


def confidences(network: Trained, data: Data) -> Float[Tensor, " N"]:
    """The largest probability of each row, in the mean over its positions or labels where there are several."""
    return torch.cat([(share * log_p.max(dim=2).values.exp()).sum(dim=1) for log_p, share in decisions(network, data)])


def entropies(network: Trained, data: Data) -> Float[Tensor, " N"]:
    r"""$-\sum_c p_c \log p_c$ of each row, in nats; the mean over its positions or labels where there are several."""
    return torch.cat([(share * _entropy(log_p)).sum(dim=1) for log_p, share in decisions(network, data)])


def _entropy(log_p: Float[Tensor, "n T C"]) -> Float[Tensor, "n T"]:
    return -(log_p.exp() * log_p).nan_to_num(nan=0.0).sum(dim=2)


def histogram(values: Float[Tensor, " N"], *, bins: int = 20, low: float = 0.0, high: float | None = None) -> Histogram:
    """The distribution of values, to be drawn beside that of a retrained network.

    **Arguments:**

    - `low`, `high`: the outer edges; the largest value unless said. Values outside count in the outermost bins.

    >>> import torch
    >>> histogram(torch.tensor([0.1, 0.9, 1.0]), bins=2, high=1.0).shares.round(3).tolist()
    [0.333, 0.667]
    """
    check_positive("bins", bins)
    numbers = values.detach().double().cpu().numpy()
    top = float(numbers.max()) if high is None else high
    edges = np.linspace(low, top if top > low else low + 1.0, bins + 1)
    counts, _ = np.histogram(numbers.clip(edges[0], edges[-1]), bins=edges)
    return Histogram(edges, counts / counts.sum())


@READOUTS.register(
    "confidence",
    paper="Golatkar, Achille and Soatto (2020), Forgetting Outside the Box: figure 4",
)
@dataclass(frozen=True)
class Confidence(Readout):
    """Mean of the largest probability; `confidences` and `histogram` give its distribution.

    **Arguments:**

    - `on`: which rows.
    """

    unit: ClassVar[str] = "probability"
    ideal: ClassVar[Ideal] = "as retrained"

    on: Part = "forget"

    def __post_init__(self) -> None:
        check_choice("Confidence.on", self.on, PARTS)

    @property
    def name(self) -> str:
        return f"confidence on {self.on}"

    def __call__(self, network: Trained, split: Split) -> Reading:
        return Reading(float(confidences(network, part(split, self.on)).mean()))


@READOUTS.register(
    "entropy",
    paper="Golatkar, Achille and Soatto (2020), Forgetting Outside the Box: figure 4",
)
@dataclass(frozen=True)
class Entropy(Readout):
    """Mean entropy of the answers; `entropies` and `histogram` give its distribution.

    **Arguments:**

    - `on`: which rows.
    """

    unit: ClassVar[str] = "nats"
    ideal: ClassVar[Ideal] = "as retrained"

    on: Part = "forget"

    def __post_init__(self) -> None:
        check_choice("Entropy.on", self.on, PARTS)

    @property
    def name(self) -> str:
        return f"entropy on {self.on}"

    def __call__(self, network: Trained, split: Split) -> Reading:
        return Reading(float(entropies(network, part(split, self.on)).mean()))
