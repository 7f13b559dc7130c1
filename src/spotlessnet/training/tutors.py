"""Tutors: networks that each miss a part of the rows, so that for every row there is one that never saw it."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import MismatchError, NeedError, SettingError
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import fit


@dataclass(frozen=True, eq=False)
class Tutors:
    """Trained once, beside the network; asked at every request what a network says that never saw a row.

    **Arguments:**

    - `weights`: of each tutor.
    - `rows`: the numbers of all rows, in rising order.
    - `part`: for each of them, which tutor never saw it.
    - `origin`: the weights of the network itself when they were trained. What it said of retained rows then is what
      they are held to at every request, so that many requests do not wear it away. `None` for tutors of networks that
      have not been asked before, which are their own origin.
    """

    weights: Float[Tensor, "K P"]
    rows: Int64[Tensor, " N"]
    part: Int64[Tensor, " N"]
    origin: Float[Tensor, " P"] | None = None

    def check_belong_to(self, network: Trained, data: Data) -> None:
        """Raise unless they are networks of this kind, trained beside these rows."""
        if self.weights.shape[1] != network.size:
            raise MismatchError(
                f"The tutors have {self.weights.shape[1]} weights, the network {network.size}. Train tutors for it."
            )
        if not bool(torch.isin(data.rows, self.rows).all()):
            raise MismatchError("Tutors know only the rows they were trained beside, but others were asked about.")

    def answers(self, network: Trained, data: Data) -> Float[Tensor, "n C"]:
        """What is said of each row by the tutor that never saw it, on the CPU."""
        self.check_belong_to(network, data)
        part, said = self.part[torch.searchsorted(self.rows, data.rows)], []
        for k, weights in enumerate(self.weights):
            mine = (part == k).nonzero().squeeze(1)
            if len(mine):
                said.append((mine, network.at(weights.to(network.weights)).predict(data.pick(mine)).cpu()))
        back = torch.cat([mine for mine, _ in said]).argsort()
        return torch.cat([answers for _, answers in said])[back]


def begin_tutors(network: Trained, data: Data, parts: int) -> Trained:
    """Where every tutor's training begins; an error, before any work, where none can be trained."""
    if network.recipe is None or network.start is None:
        raise NeedError("Tutors are trained like the network, but its start or recipe is not known. Give both.")
    if not 2 <= parts <= len(data):
        raise SettingError(f"Tutors' `parts` must be at least 2 and at most one per row, but got {parts}.")
    # Only weights are kept, so statistics that moved would be lost.
    recipe = network.recipe.but(freeze_statistics=True, patience=None)
    return replace(network.at(network.start), recipe=recipe)


def train_tutors(network: Trained, data: Data, *, parts: int = 2, seed: int = 0) -> Tutors:
    r"""Train `parts` tutors by the network's own recipe from its start, each without one part of the rows.

    That takes as long as `parts - 1` trainings: with two parts, each tutor sees half of the rows.
    """
    begun = begin_tutors(network, data, parts)
    drawn = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)) % parts
    weights = []
    for k in range(parts):
        others = data.pick((drawn != k).nonzero().squeeze(1))
        weights.append(fit(begun, others, seed=seed + k, label=f"tutor {k + 1} of {parts}").weights)
    order = data.rows.argsort()
    return Tutors(torch.stack(weights), data.rows[order], drawn[order], network.weights.clone())
