"""Activation distance: how differently two networks answer about the same rows.

Golatkar, Achille and Soatto (2020), *Forgetting Outside the Box*.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import MismatchError, check_choice
from spotlessnet.core.readout import READOUTS, Ideal, Reading, Readout
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.curve import Curve, along_line
from spotlessnet.readouts.parts import PARTS, Part, decisions, part


def distances(network: Trained, reference: Trained, data: Data) -> Float[Tensor, " N"]:
    r"""$\|p_w(x) - p_{w_0}(x)\|_1$ of each row, between 0 and 2; the mean over its positions or labels if several."""
    found = []
    for (p, share), (q, _) in zip(decisions(network, data), decisions(reference, data), strict=True):
        if p.shape != q.shape:
            raise MismatchError(
                f"The network answers with {p.shape[2]} classes, the reference with {q.shape[2]}. "
                "Train the reference with the same head."
            )
        apart = (p.exp() - q.exp().to(network.device)).abs()
        found.append((share * apart.sum(dim=2)).sum(dim=1))
    return torch.cat(found)


@READOUTS.register(
    "activation-distance",
    paper="Golatkar, Achille and Soatto (2020), Forgetting Outside the Box: section 5",
    needs=("retrained network",),
)
@dataclass(frozen=True)
class ActivationDistance(Readout):
    r"""Mean $L_1$ distance to a reference network's probabilities.

    $$\frac{1}{N} \sum_x \big\| p_w(x) - p_{w_0}(x) \big\|_1 \in [0, 2]$$

    Zero if and only if both answer alike. One reference trained with the same seed is a lenient judge: read the
    number beside the distance between two retrained networks.

    **Arguments:**

    - `reference`: usually the network retrained without $D_f$.
    - `on`: which rows.
    """

    unit: ClassVar[str] = "probability, L1"
    ideal: ClassVar[Ideal] = "low"

    reference: Trained
    on: Part = "forget"

    def __post_init__(self) -> None:
        check_choice("ActivationDistance.on", self.on, PARTS)

    @property
    def name(self) -> str:
        return f"activation distance on {self.on}"

    def __call__(self, network: Trained, split: Split) -> Reading:
        return Reading(float(distances(network, self.reference, part(split, self.on)).mean()))


def along_path(start: Trained, end: Trained, reference: Trained, data: Data, *, steps: int = 20) -> Curve:
    """Activation distance to `reference` on the straight path from the original `w` to the scrubbed `S(w)`.

    A scrub that moves toward the retrained network shows a curve that falls all the way.
    """
    return along_line(start, end, lambda network: float(distances(network, reference, data).mean()), steps=steps)
