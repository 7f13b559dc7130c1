"""RMIA: does this row gain more from the network than rows of the population do?

Zarifzadeh, Liu and Shokri (2024), *Low-Cost High-Power Membership Inference Attacks*.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, NeedError, SettingError, check_positive
from spotlessnet.core.intervals import auc_interval
from spotlessnet.core.readout import READOUTS, Ideal, Reading, Readout
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.parts import class_labels, log_probabilities


def rmia_scores(
    rows: Float[Tensor, " N"], population: Float[Tensor, " Z"], *, gamma: float = 1.0
) -> Float[Tensor, " N"]:
    r"""Share of the population whose gain is beaten $\gamma$ times: $P_z[\, g(x) / g(z) > \gamma \,]$.

    **Arguments:**

    - `rows`, `population`: logarithms of the gains $g(x) = p(x \mid \theta) / p(x)$.
    """
    check_positive("gamma", gamma)
    ordered = population.sort().values
    # On the logarithms, where beating γ times is a difference; `right=False` counts strictly smaller gains.
    below = torch.searchsorted(ordered, (rows - math.log(gamma)).contiguous(), right=False)
    return below.double() / len(population)


def log_mean_probability(outside: Float[Tensor, "R N"], offline: float = 0.3) -> Float[Tensor, " N"]:
    r"""$\log p(x)$ from networks that never saw the row, $p(x) = \tfrac12\big((1 + a)\, p_{out}(x) + 1 - a\big)$.

    **Arguments:**

    - `outside`: logarithms of the probability of the row's label, one line per reference network.
    - `offline`: $a$, which stands for the networks that did see the row: these are closer to certain.
    """
    p_out = outside.double().exp().mean(dim=0)
    return (0.5 * ((1 + offline) * p_out + 1 - offline)).log()


@READOUTS.register(
    "rmia",
    paper="Zarifzadeh, Liu and Shokri (2024), Low-Cost High-Power Membership Inference Attacks",
    needs=("retrained networks", "test data"),
)
@dataclass(frozen=True)
class RMIA(Readout):
    """Area under the curve of forgotten against test rows, each compared with a population it belongs to neither of.

    Test rows in even places are the population, those in odd places the non-members. A network retrained without
    $D_f$ is the target: rows that are harder than the population move it away from one half.

    **Arguments:**

    - `references`: networks trained without $D_f$; one is enough.
    - `offline`: $a$ in [0, 1]; must not be tuned on the network under test.
    - `gamma`: how many times the population's gain must be beaten.
    """

    unit: ClassVar[str] = "AUC"
    ideal: ClassVar[Ideal] = "as retrained"

    references: tuple[Trained, ...]
    offline: float = 0.3
    gamma: float = 1.0

    def __post_init__(self) -> None:
        check_positive("RMIA.gamma", self.gamma)
        if not 0 <= self.offline <= 1:
            raise SettingError(f"`RMIA.offline` must lie in [0, 1], but got {self.offline}. Usual is 0.3.")
        if not self.references:
            raise NeedError("RMIA needs a network trained without the forgotten rows, but got none. Retrain one.")

    def __call__(self, network: Trained, split: Split) -> Reading:
        if len(split.tests) < 2:
            raise DataError(f"RMIA splits the test rows in two, but there are {len(split.tests)}. Give more.")
        test, forget = self._gains(network, split.tests), self._gains(network, split.forget)
        # Every other row, so that sorted labels are met on both sides.
        population, others = test[0::2], test[1::2]
        inside, outside = (rmia_scores(g, population, gamma=self.gamma) for g in (forget, others))
        return Reading(*auc_interval(inside, outside), note=f"population of {len(population)} test rows")

    def _gains(self, network: Trained, data: Data) -> Float[Tensor, " N"]:
        outside = torch.stack([_log_probability(reference, data) for reference in self.references])
        return _log_probability(network, data) - log_mean_probability(outside, self.offline)


def _log_probability(network: Trained, data: Data) -> Float[Tensor, " N"]:
    y = class_labels(network, data)
    return log_probabilities(network, data).gather(1, y.unsqueeze(1)).squeeze(1).cpu()
