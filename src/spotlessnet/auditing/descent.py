"""Do networks descend from the originals that the audit gave to the method? One that was tuned stays near its own.

Another training ends far from every original: in its weights, and in what it answers to rows that nobody saw. What has
been tuned has moved a little. This tells them apart where the forgotten rows left so little in the network as a whole
that tuned and retrained ones have the same `traits`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.linalg import vector_norm

from spotlessnet.auditing.exchanging import chosen_networks
from spotlessnet.auditing.likeness import Likeness, shuffled

LEAST = 1e-12
"""Added before a logarithm: a method may give the original back."""


@dataclass(frozen=True, eq=False)
class Place:
    """Where networks lie.

    **Arguments:**

    - `weights`: of each network.
    - `answers`: to test rows; nothing where there are none.
    """

    weights: Sequence[Float[Tensor, " P"]]
    answers: Float64[Tensor, "S U C"] | None

    def select(self, networks: Int64[Tensor, " R"]) -> "Place":
        """Some of the networks."""
        answers = None if self.answers is None else self.answers[networks]
        return Place([self.weights[i] for i in networks.tolist()], answers)

    def join(self, others: "Place") -> "Place":
        """Both groups, one after the other."""
        both = (self.answers, others.answers)
        answers = None if both[0] is None or both[1] is None else torch.cat([both[0], both[1]])
        return Place([*self.weights, *others.weights], answers)


def closeness(group: Place, originals: Place) -> Float64[Tensor, "S D"]:
    r"""How close each network lies to that original which is closest: $-\log\min_j \|w - o_j\|$.

    And the highest correlation of its answers with an original's, less what originals answer in the mean. Units can be
    permuted until weights lie anywhere; answers stay.
    """
    return torch.stack([one.amax(dim=1) for one in _nearness(group, originals)], dim=1)


def kinship(group: Place, originals: Place) -> Float64[Tensor, "S D"]:
    """How much closer each network lies to its own original, the one of its number, than to all others in the mean.

    Networks that were moved far lie close to none, but may still be most like their own. Other recipes, which end
    nearer to all or further from all, change nothing.
    """
    found = []
    for one in _nearness(group, originals):
        S, R = one.shape
        own = one[torch.arange(S), torch.arange(S) % R]
        found.append(own - (one.sum(dim=1) - own) / max(1, R - 1))
    return torch.stack(found, dim=1)


def _nearness(group: Place, originals: Place) -> list[Float64[Tensor, "S R"]]:
    """Of each network to each original: by weights, and by answers where there are any."""
    apart = [[vector_norm(w.to(o) - o, dtype=torch.float64).cpu() for o in originals.weights] for w in group.weights]
    found = [-(torch.stack([torch.stack(one) for one in apart]) + LEAST).log()]
    if group.answers is not None and originals.answers is not None:
        answers = [one.answers.double().flatten(1) for one in (group, originals) if one.answers is not None]
        finite = answers[1].isfinite().all(dim=0)  # a class that a network rules out has no margin
        mine, theirs = (one[:, finite] for one in answers)
        middle = theirs.mean(dim=0)
        ours, known = (_unit(one - middle) for one in (mine.where(mine.isfinite(), middle), theirs))
        found.append(ours @ known.T)
    return found


def near_originals(
    planted: Sequence[Float64[Tensor, "m D"]],
    candidates: Float64[Tensor, "S D"],
    others: Float64[Tensor, "n D"],
    *,
    permutations: int = 1999,
    seed: int = 0,
) -> Likeness:
    """Are candidates closer to originals than networks of other seeds are, in one way or the other?

    **Arguments:**

    - `planted`: originals that were tuned, by the way of tuning.
    """
    S, n = len(candidates), len(others)
    chosen = chosen_networks(S, n, permutations, torch.Generator().manual_seed(seed))
    pool = torch.cat([candidates, others])
    heights = torch.stack([shuffled(column, S, chosen) for column in pool.T]).amax(dim=0)
    p = float((heights >= heights[0] - 1e-9 * (1 + heights[0].abs())).double().mean())
    return Likeness(p, tuple(_expected(one, others, S) for one in planted))


def _expected(planted: Float64[Tensor, "m D"], others: Float64[Tensor, "n D"], S: int) -> float:
    """The larger t statistic that `S` candidates like these would have."""
    gap = planted.mean(dim=0) - others.mean(dim=0)
    within = torch.cat([one - one.mean(dim=0) for one in (planted, others)]).square().sum(dim=0)
    spread = (within / (len(planted) + len(others) - 2)).clamp(min=1e-300).sqrt()
    return float((gap / spread).max()) / math.sqrt(1 / S + 1 / len(others))


def _unit(vectors: Float64[Tensor, "S N"]) -> Float64[Tensor, "S N"]:
    return vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-300)
