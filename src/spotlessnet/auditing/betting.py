r"""Betting against exchangeability: evidence that may be looked at after every training, and stopped at any time.

If scrubbed networks are exchangeable with retrained ones, the score of a new retrained network falls into each gap
between those already there with equal probability, whatever came before. Someone who bets that it falls below the
scrubbed ones, at fair odds, cannot expect to gain: the wealth $e$ has mean one, and $P(\sup_t e_t \ge 1/\alpha) \le
\alpha$ (Ville 1939; Vovk and Wang 2021; Ramdas and others 2023, *Game-theoretic statistics and safe anytime-valid
inference*). So trainings go on until the evidence is enough, and no longer.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from spotlessnet.auditing.exchanging import Channel

STAKE = 0.9
"""The share of the wealth that is put on the guess; the rest is kept on its contrary, so that nothing loses all."""

SLACKS = (0.0, 0.25)
"""Guesses: the new score lies beyond all scrubbed networks, or beyond three quarters of them; to either side."""


def wealth(candidates: Float[Tensor, " S"], references: Float[Tensor, " n"]) -> list[float]:
    """Wealth after each retrained network, in the order in which they were trained; 1 before the first.

    The mean over four ways to bet, which is a way to bet itself.

    >>> apart = wealth(torch.arange(8.0), torch.tensor([-1.0, -2.0, -3.0]))
    >>> [round(e, 1) for e in apart]
    [2.8, 10.6, 33.1]
    """
    ways = [_bet(side * candidates, side * references, slack) for side in (1, -1) for slack in SLACKS]
    return [sum(each) / len(each) for each in zip(*ways, strict=True)]


def _bet(candidates: Float[Tensor, " S"], references: Float[Tensor, " n"], slack: float) -> list[float]:
    """Bet on each new score that it lies below the candidates, but for a share of them."""
    bound = float(candidates.sort().values[int(slack * len(candidates))])
    there = candidates.tolist()
    found, e = [], 1.0
    for score in references.tolist():
        # A new one is as likely in each of the gaps between those there, of which this many lie below the bound.
        chance = (1 + sum(one < bound for one in there)) / (1 + len(there))
        if chance < STAKE:
            # Ties count as not below: they can only make the bet worse.
            e *= STAKE / chance if score < bound else (1 - STAKE) / (1 - chance)
        there.append(score)
        found.append(e)
    return found


def wealth_over_ways(
    candidate: Sequence[Channel], references: Sequence[Channel], labels: Int64[Tensor, " T"]
) -> list[float]:
    """Wealth of somebody who bets an equal share on every way of asking: the mean of fair bets is a fair bet.

    So a network that was tuned until its plain answers are those of a retrained one loses only that share.
    """
    ways = [
        wealth(knowing_scores(ours, labels), knowing_scores(theirs, labels))
        for ours, theirs in zip(candidate, references, strict=True)
    ]
    return [sum(each) / len(each) for each in zip(*ways, strict=True)]


def knowing_scores(group: Channel, labels: Int64[Tensor, " T"]) -> Float64[Tensor, " S"]:
    """One score a network: how much it likes the labels of the forgotten rows, beyond how it likes them anywhere.

    A fixed function of the network, as exchangeability asks for: nothing in it is learnt from the groups compared.
    """
    own = group.rows[:, torch.arange(len(labels)), labels]
    return (own - group.controls.mean(dim=1)[:, labels]).mean(dim=1)
