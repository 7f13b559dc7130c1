"""Does a candidate resemble networks that were tuned to look so, and would the audit have noticed if it were one?

Held against the pool of candidates and retrained networks, tuned ones tell in which direction of their traits to look;
there the candidates are compared with the retrained ones. Whoever is exchanged with whom, the pool and so the direction
are the same, so shuffles give a p-value that holds. To look in one direction finds more than to look in all, and blames
nobody for another training that leads elsewhere.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from spotlessnet.auditing.exchanging import chosen_networks

RIDGE = 1.0
"""Of the direction, in mean variances: a few networks tell little of how their traits hang together."""

FLOOR = 0.1
"""Of a trait's variance, in mean variances."""


@dataclass(frozen=True)
class Likeness:
    """What was found.

    **Arguments:**

    - `p`: how often shuffled networks resemble tuned ones as much.
    - `noticed`: for each way, the t statistic that networks tuned like the audit's own would have had: from one half
      of those with a direction from the other half.
    """

    p: float
    noticed: tuple[float, ...]


def resemblance(
    planted: Sequence[Float64[Tensor, "m K"]],
    candidates: Float64[Tensor, "S K"],
    references: Float64[Tensor, "n K"],
    *,
    permutations: int = 1999,
    seed: int = 0,
) -> Likeness:
    """Hold candidates beside networks that were tuned in several ways, by the traits of each network.

    **Arguments:**

    - `planted`: by the way of tuning.
    """
    S, n = len(candidates), len(references)
    chosen = chosen_networks(S, n, permutations, torch.Generator().manual_seed(seed))
    pool = torch.cat([candidates, references])
    heights = torch.stack([shuffled(pool @ direction(one, pool), S, chosen) for one in planted]).amax(dim=0)
    p = float((heights >= heights[0] - 1e-9 * (1 + heights[0].abs())).double().mean())
    return Likeness(p, tuple(_expected(one, references, S) for one in planted))


def direction(planted: Float64[Tensor, "m K"], others: Float64[Tensor, "N K"]) -> Float64[Tensor, " K"]:
    """Along which planted networks lie furthest from the others, by what varies within both: ridge discriminant."""
    apart = torch.cat([group - group.mean(dim=0) for group in (planted, others)])
    N = len(apart)
    variance = apart.square().sum(dim=0) / (N - 2)
    spread = (variance + FLOOR * variance.mean()).clamp(min=1e-24).sqrt()
    x, gap = apart / spread, (planted.mean(dim=0) - others.mean(dim=0)) / spread
    ridge = RIDGE * float(x.square().mean().clamp(min=1e-12))
    # Networks are fewer than traits: the same by fewer unknowns.
    among = x @ x.T / N + ridge * torch.eye(N, dtype=x.dtype)
    return (gap - x.T @ torch.linalg.solve(among, x @ gap) / N) / ridge / spread


def shuffled(scores: Float64[Tensor, " N"], S: int, chosen: Int64[Tensor, "P S"]) -> Float64[Tensor, " P"]:
    """Student's t of every shuffle: how much higher those in the candidates' places score than the others."""
    n = len(scores) - S
    centred = scores - scores.mean()
    first = centred[chosen].mean(dim=1)
    gap = first * (1 + S / n)  # all are zero in the mean
    within = (centred.square().sum() - gap.square() * (S * n / (S + n))).clamp(min=1e-300)
    return gap / (within / (S + n - 2) * (1 / S + 1 / n)).sqrt()


def _expected(planted: Float64[Tensor, "m K"], references: Float64[Tensor, "n K"], S: int) -> float:
    """The t statistic of `S` candidates that were tuned, from halves of the tuned ones that were not looked at."""
    effects = []
    for half in (0, 1):
        known, unknown = planted[half::2], planted[1 - half :: 2]
        weights = direction(known, torch.cat([unknown, references]))
        ours, theirs = unknown @ weights, references @ weights
        within = sum(float((one - one.mean()).square().sum()) for one in (ours, theirs))
        spread = math.sqrt(max(within / (len(ours) + len(theirs) - 2), 1e-300))
        effects.append(float(ours.mean() - theirs.mean()) / spread)
    return sum(effects) / 2 / math.sqrt(1 / S + 1 / len(references))
