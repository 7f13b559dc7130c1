"""Selective synaptic dampening: shrink the weights that matter much more to the forgotten rows than to all.

As defined by Foster, Schoepf and Brintrup (2024), *Fast Machine Unlearning Without Retraining Through Selective
Synaptic Dampening*.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import check_positive
from spotlessnet.core.gaussian import Measured
from spotlessnet.core.scrub import METHODS, Notes, Scrub, Work
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.cost import with_slow
from spotlessnet.operators.fisher import fisher_diagonal


@dataclass(frozen=True)
class SSDFacts(Measured):
    """The share of weights that shrank."""

    dampened: float | None = None


@METHODS.register(
    "ssd",
    summary="Shrink weights that matter far more to the forgotten data than to all data; no training.",
    paper="Foster, Schoepf and Brintrup (2024), Fast Machine Unlearning Without Retraining",
    needs=("retained data",),
    guarantee="none",
)
@dataclass(frozen=True)
class SSD(Scrub):
    r"""$w_i \leftarrow \min(\lambda F_{D,i} / F_{f,i},\, 1)\, w_i$ where $F_{f,i} > \alpha F_{D,i}$; no training.

    **Arguments:**

    - `alpha`: how much more a weight must matter to the forgotten rows; the published default is 10.
    - `dampening`: $\lambda$, how strongly such weights shrink; the published default is 1.
    """

    alpha: float = 10.0
    dampening: float = 1.0

    def __post_init__(self) -> None:
        check_positive("SSD.alpha", self.alpha)
        check_positive("SSD.dampening", self.dampening)

    def cost(self, trained: Trained, split: Split) -> Work:
        sizes = with_slow(trained, split)
        return sizes.diagonals(len(split.whole), "empirical") + sizes.diagonals(len(split.forget), "empirical")

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        # Squared gradients at the true labels, which the published code takes for the Fisher information.
        F_D = fisher_diagonal(trained, split.whole, kind="empirical") / len(split.whole)
        F_f = fisher_diagonal(trained, split.forget, kind="empirical") / len(split.forget)
        chosen = F_f > self.alpha * F_D
        # Where no forgotten row reaches a weight it is not chosen; the clamp only avoids 0 / 0.
        factor = (self.dampening * F_D / F_f.clamp(min=1e-30)).clamp(max=1)
        notes.measure(SSDFacts, dampened=float(chosen.double().mean()))
        return torch.where(chosen, factor, 1.0) * trained.weights
