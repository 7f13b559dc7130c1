"""What could have hidden: rows that are planted as the original knows them; does the audit notice?"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from spotlessnet.auditing.evidence import Evidence, channels_of, joined
from spotlessnet.auditing.exchanging import (
    Channel,
    Comparison,
    Match,
    StandingOut,
    alike,
    beyond_controls,
    exchangeable,
    match_of,
)
from spotlessnet.auditing.verdict import CouldHide

SINGLE = 24
"""Rows that are planted one at a time, each by itself: 0 of 24 unnoticed says that fewer than 12 % could be."""

TRIES = {0.1: 3, 0.25: 3, 0.5: 6}
"""Shares of the rows that are planted together, and how often each."""


PLANTED = 199
"""Shuffles where a row is planted to see whether it would be noticed: many are tried."""

SURELY_NETWORKS, SURELY_ROWS = 0.01, 0.05
"""p-values that planted rows must reach, for chance would have moved them as well, perhaps the other way."""

SURELY = 2.0
"""Standard errors that are taken from what the original seems to know of a row: it may be chance."""


@dataclass(frozen=True, eq=False)
class Move:
    """How far the original's answers to each row lie beyond those of networks that never saw it, with standard errors.

    Beyond controls, for what training with the rows did to all others a single one would not have done.
    """

    gap: Float64[Tensor, "*n T C"]
    error: Float64[Tensor, "*n T C"]

    @staticmethod
    def of(known: Sequence[Channel], unknown: Sequence[Channel], match: Match | None) -> "list[Move]":
        """In every way of asking."""
        found = []
        for with_rows, without in zip(*(beyond_controls(group, match) for group in (known, unknown)), strict=True):
            error = with_rows.var(dim=0) / len(with_rows) + without.var(dim=0) / len(without)
            found.append(Move(with_rows.mean(dim=0) - without.mean(dim=0), error.sqrt()))
        return found

    def surely(self, count: int = 1) -> Float64[Tensor, "*n T C"]:
        """Less what chance does, to the mean of `count` rows.

        Planted as it was measured, a row that left no trace would carry the chance of two groups instead of one, and
        be noticed for that.
        """
        return self.gap.sign() * (self.gap.abs() - SURELY / math.sqrt(count) * self.error).clamp(min=0)


def telling(known: Sequence[Channel], unknown: Sequence[Channel]) -> Float64[Tensor, "n T C"] | None:
    """Weights of rows and labels by which memory shows best: what the original surely knows of each, in variances.

    So rows that everyone answers alike do not blur the others, and what a row took from other labels counts as well as
    what it gave to its own. For each of the networks that never saw the rows they are found without it: else its own
    chance would make it look further from the original than it is. Sizes are 1 in all; nothing where no row surely left
    a trace.
    """
    match = match_of(unknown)
    with_rows, without = (beyond_controls(group[:1], match)[0] for group in (known, unknown))
    n = len(without)
    if n < 3:  # without one of them no spread is known
        means, variances = without.mean(dim=0).expand(n, -1, -1), without.var(dim=0).expand(n, -1, -1)
        others = n
    else:
        means, variances = _leaving_out_each(without)
        others = n - 1
    error = (with_rows.var(dim=0) / len(with_rows) + variances / others).sqrt()
    weights = Move(with_rows.mean(dim=0) - means, error).surely()
    weights = weights / (variances + variances.mean(dim=(1, 2), keepdim=True)).clamp(min=1e-12)
    size = weights.abs().sum(dim=(1, 2), keepdim=True)
    return weights / size if bool((size > 0).all()) else None


def _leaving_out_each(group: Float64[Tensor, "n T C"]) -> tuple[Float64[Tensor, "n T C"], Float64[Tensor, "n T C"]]:
    """Means and variances of all networks but each in turn."""
    n, apart = len(group), group - group.mean(dim=0)
    means = -apart / (n - 1)
    squares = apart.square().sum(dim=0) - apart.square()
    return means + group.mean(dim=0), (squares - (n - 1) * means.square()) / (n - 2)


def as_if_retrained(
    ours: Sequence[Channel], references: Sequence[Channel], match: Match | None
) -> list[Float64[Tensor, "S T C"]]:
    """The candidates' answers, moved in the mean to where retrained networks' lie beyond controls.

    What candidates know already, or chance did to them, must not help a planted row to be noticed.
    """
    beyond = [beyond_controls(group, match) for group in (ours, references)]
    return [one.rows + (b.mean(dim=0) - a.mean(dim=0)) for one, a, b in zip(ours, *beyond, strict=True)]


def plant(
    answers: Float64[Tensor, "S T C"], move: Move, rows: Bool[Tensor, " T"], share: float = 1.0
) -> Float64[Tensor, "S T C"]:
    """What networks would answer if they knew some rows, by a share of what the original does; spread as they are."""
    return answers + share * move.surely(int(rows.sum())) * rows.unsqueeze(1)


def surely_noticed(found: StandingOut, planted: Sequence[Channel], references: Sequence[Channel]) -> bool:
    """Whether networks with planted rows stand out beside references, with something to spare for chance."""
    return found.p_networks <= SURELY_NETWORKS and found.p_rows <= SURELY_ROWS


def unnoticed(
    original: Evidence,
    candidate: Evidence,
    references: Sequence[Evidence],
    *,
    seed: int = 0,
    noticed: Callable[[StandingOut, Sequence[Channel], Sequence[Channel]], bool] = surely_noticed,
) -> CouldHide:
    """Plant rows in candidates, as the original knows them, and see what would not have been noticed.

    **Arguments:**

    - `noticed`: whether networks with such rows would have been; a bank has rules of its own.
    """
    known, ours, *others = (channels_of(group) for group in (original, candidate, *references))
    theirs = joined(others)
    labels = candidate.labels
    match = match_of(theirs)
    plain = as_if_retrained(ours, theirs, match)
    moves = Move.of(known, theirs, match)
    beside = Comparison(ours, theirs, labels, permutations=PLANTED, seed=seed, match=match) if match else None
    together = 0.0 if match is None else alike(theirs[0], labels, match)

    def notices(rows: Bool[Tensor, " T"]) -> bool:
        # What the original knows of a row it has from rows like it, too: a few that stayed would know less.
        here, all_rows = (1 + (count - 1) * together for count in (int(rows.sum()), len(rows)))
        planted = [plant(one, move, rows, here / all_rows) for one, move in zip(plain, moves, strict=True)]
        if beside is None:
            margins = (group[..., 0] for group in (planted[0], theirs[0].rows))
            return exchangeable(*margins, permutations=PLANTED, seed=seed) <= SURELY_NETWORKS
        known_rows = [Channel(answers, one.controls) for answers, one in zip(planted, ours, strict=True)]
        return noticed(beside.found(planted), known_rows, theirs)

    return could_hide(notices, candidate.margins.shape[1])


def could_hide(notices: Callable[[Bool[Tensor, " T"]], bool], count: int) -> CouldHide:
    """Plant some of `count` forgotten rows, one at a time and many together, and see whether that is noticed.

    **Arguments:**

    - `notices`: whether the audit would have, had the candidates known these rows as the original does.
    """
    generator = torch.Generator().manual_seed(0)

    def hides(rows: Tensor) -> bool:
        return not notices(torch.zeros(count, dtype=torch.bool).index_fill(0, rows, True))

    some = torch.randperm(count, generator=generator)[:SINGLE]
    single = sum(hides(row.unsqueeze(0)) for row in some)
    hidden = {
        part: sum(
            hides(torch.randperm(count, generator=generator)[: max(1, round(part * count))]) for _ in range(tries)
        )
        for part, tries in TRIES.items()
    }
    share = max((part for part, times in hidden.items() if times), default=0.0)
    return CouldHide(single, len(some), share, count, hidden[0.5] / TRIES[0.5])
