"""Do the forgotten rows stand out? One test over networks, one over rows, and both must say so.

A network that remembers differs from retrained ones, and most on the forgotten rows. One that was trained differently
differs too, but on all rows alike. So a difference counts as memory only if networks cannot be exchanged **and** the
forgotten rows cannot be exchanged with matched controls: rows that nobody trained on and that retrained networks answer
alike. Each test is exact under its own null hypothesis, so a false accusation is as rare as the rarer of the two.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

NEAR = 16
"""Controls whose mean is taken from each row's answer."""

FIELD = 256
"""Controls that a row may be exchanged with."""

EVEN = 2.0
"""Margins up to about this are compared as they are, larger ones by their logarithm."""

ENTRIES = 2**22
"""Numbers that a permutation test holds at once."""


@dataclass(frozen=True, eq=False)
class Channel:
    """What one group of networks answers, in one way of asking.

    **Arguments:**

    - `rows`: to the forgotten rows, a margin for every label; a single column where a row has but one score.
    - `controls`: to rows that nobody trained on.
    """

    rows: Float64[Tensor, "S T C"]
    controls: Float64[Tensor, "S V C"]

    def join(self, others: "Channel") -> "Channel":
        """Both groups, one after the other."""
        return Channel(torch.cat([self.rows, others.rows]), torch.cat([self.controls, others.controls]))

    def select(self, networks: Int64[Tensor, " R"]) -> "Channel":
        """Some of the networks."""
        return Channel(self.rows[networks], self.controls[networks])


@dataclass(frozen=True)
class StandingOut:
    """What both tests found.

    **Arguments:**

    - `p_networks`: how often shuffled networks differ as much; with one candidate no less than one in all networks.
    - `p_rows`: how often matched controls stand out as much.
    - `moved`: how far the margins of the labels lie above their controls', in the mean, beyond retrained networks'.
    - `error`, `error_of_rows`: the standard error of `moved` over networks, and over rows of networks that were trained
      differently.
    - `freedom`: of `error`.
    - `furthest`: how far the margin of the row that moved most did, up or down.
    """

    p_networks: float
    p_rows: float
    moved: float
    error: float
    error_of_rows: float
    freedom: int
    furthest: float


def evened(margins: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    r"""$2\,\mathrm{asinh}(m / 2)$: how sure a sure answer is tells of long training, not of memory."""
    return EVEN * (margins / EVEN).asinh()


def standing_out(
    candidate: Sequence[Channel],
    references: Sequence[Channel],
    labels: Int64[Tensor, " T"],
    *,
    permutations: int = 1999,
    seed: int = 0,
) -> StandingOut:
    """Compare a group of networks, or a single one, with networks that were retrained without the rows.

    **Arguments:**

    - `candidate`, `references`: the same channels in the same order. The first one says which rows are alike.
    - `labels`: which column is the one that a row was trained on.
    """
    S, n = len(candidate[0].rows), len(references[0].rows)
    generator = torch.Generator().manual_seed(seed)
    match = _Match.of(references[0])
    chosen = _chosen(S, n, permutations, generator)
    pick = torch.randint(match.field.shape[1] + 1, (permutations, len(labels)), generator=generator)
    # Nobody is exchanged in the first line: the data as they are count as one of the shuffles.
    pick = torch.cat([torch.zeros_like(pick[:1]), pick])
    of_networks, of_rows = [], []
    for ours, theirs in zip(candidate, references, strict=True):
        both = ours.join(theirs)
        of_networks.append(_network_heights(both.rows - match.beside(both.controls), labels, S, chosen))
        of_rows.append(_row_heights(both, match, labels, S, pick))
    moved = _moved(candidate[0].join(references[0]), match, labels, S, pick)
    return StandingOut(_least_p(torch.cat(of_networks, 1)), _least_p(torch.cat(of_rows, 1)), *moved)


def exchangeable(
    candidate: Float64[Tensor, "S T"], references: Float64[Tensor, "n T"], *, permutations: int = 1999, seed: int = 0
) -> float:
    """The p-value of the networks alone, by one score a row: all that can be told where there are no controls."""
    S, n, T = len(candidate), len(references), candidate.shape[1]
    chosen = _chosen(S, n, permutations, torch.Generator().manual_seed(seed))
    answers = torch.cat([candidate, references]).unsqueeze(2)
    return _least_p(_network_heights(answers, torch.zeros(T, dtype=torch.long), S, chosen)[:, :2])


@dataclass(frozen=True, eq=False)
class _Match:
    """Which controls retrained networks answer like each forgotten row, and like each other control."""

    near: Float64[Tensor, "T V"]
    among: Float64[Tensor, "V V"]
    field: Int64[Tensor, "T K"]

    @staticmethod
    def of(references: Channel) -> "_Match":
        rows, controls = (group.mean(dim=0) for group in vars(references).values())
        apart, between = torch.cdist(rows, controls), torch.cdist(controls, controls)
        between.fill_diagonal_(torch.inf)  # no control speaks for itself
        V = len(controls)
        order = apart.argsort(dim=1)
        few = min(NEAR, V - 1)
        closest = between.topk(few, dim=1, largest=False).indices
        return _Match(_mean_over(order[:, :few], V), _mean_over(closest, V), order[:, :FIELD])

    def beside(self, controls: Float64[Tensor, "S V C"]) -> Float64[Tensor, "S T C"]:
        """The mean answer of each forgotten row's nearest controls."""
        return self.near @ controls


def _mean_over(nearest: Int64[Tensor, "T k"], width: int) -> Float64[Tensor, "T V"]:
    return torch.zeros(len(nearest), width, dtype=torch.float64).scatter_(1, nearest, 1 / nearest.shape[1])


def _chosen(S: int, n: int, permutations: int, generator: torch.Generator) -> Int64[Tensor, "P S"]:
    """Which networks take the candidates' places in each shuffle, as they are first."""
    as_they_are = torch.arange(S).unsqueeze(0)
    if S == 1:
        return torch.arange(n + 1).unsqueeze(1)  # each in turn: there are no more
    orders = torch.rand(permutations, S + n, generator=generator).argsort(dim=1)[:, :S]
    return torch.cat([as_they_are, orders])


def _network_heights(
    answers: Float64[Tensor, "N T C"], labels: Int64[Tensor, " T"], S: int, chosen: Int64[Tensor, "P S"]
) -> Float64[Tensor, "P 4"]:
    r"""Squared t statistics of every shuffle: of the label and of all labels, in the mean over rows and at most.

    $$t^2_{ic} = \frac{(\bar a_{ic} - \bar b_{ic})^2}{\tfrac12 (s^2_{ic} + \bar s^2)\,(1/S + 1/n)}$$

    Variances are those within the groups, drawn half-way to their mean: with few networks a row that happens to vary
    little would else decide alone.
    """
    N, T, C = answers.shape
    n = N - S
    total = answers.var(dim=0) * (N - 1)
    found = []
    for some in chosen.split(max(1, ENTRIES // (T * C))):
        weight = torch.full((len(some), N), -1 / n, dtype=torch.float64).scatter_(1, some, 1 / S)
        gap = (weight @ answers.flatten(1)).unflatten(1, (T, C)).square()
        within = (total - gap * (S * n / N)).clamp(min=0) / (N - 2)
        typical = within.mean(dim=(1, 2), keepdim=True).clamp(min=1e-12)
        t2 = gap / ((within + typical) / 2 * (1 / S + 1 / n))
        found.append(_heights(t2[:, torch.arange(T), labels], t2.mean(dim=2)))
    return torch.cat(found)


def _row_heights(
    both: Channel, match: _Match, labels: Int64[Tensor, " T"], S: int, pick: Int64[Tensor, "P T"]
) -> Float64[Tensor, "P 4"]:
    """The same of every exchange of rows with controls, each measured by how far controls like it go astray."""
    rows, controls = _standardised(both, match, S)
    spread = _clumping(both.rows - match.beside(both.controls), labels, S)
    place = torch.arange(len(labels))
    own = (rows[place, labels], controls[match.field, labels.unsqueeze(1)])
    every = (rows.mean(dim=1), controls.mean(dim=1)[match.field])
    of_label, of_all = (torch.cat([mine.unsqueeze(1), theirs], dim=1)[place, pick] for mine, theirs in (own, every))
    found = _heights(of_label.sqrt(), of_all.sqrt())
    # Means of rows that move together vary more than those of controls from everywhere.
    middle = found[1:, ::2].mean(dim=0)
    found[1:, ::2] = middle + (found[1:, ::2] - middle) * spread
    return found


def _standardised(both: Channel, match: _Match, S: int) -> tuple[Float64[Tensor, "T C"], Float64[Tensor, "V C"]]:
    """Squared distances beyond the nearest controls' mean, in variances of those controls, of rows and of controls."""
    shift, of_controls = (group[:S].mean(dim=0) - group[S:].mean(dim=0) for group in vars(both).values())
    found = []
    variances = [(near @ of_controls.square() - (near @ of_controls).square()) for near in (match.near, match.among)]
    typical = variances[1].mean().clamp(min=1e-12)
    for moved, near, variance in zip((shift, of_controls), (match.near, match.among), variances, strict=True):
        found.append((moved - near @ of_controls).square() / ((variance + typical) / 2))
    return found[0], found[1]


def alike(references: Channel, labels: Int64[Tensor, " T"]) -> float:
    """The mean correlation of two forgotten rows over retrained networks, beyond their controls: 0 alone, 1 as one."""
    T = len(labels)
    beyond = references.rows - _Match.of(references).beside(references.controls)
    return (_clumping(beyond, labels, 0) ** 2 - 1) / max(1, T - 1)


def _clumping(answers: Float64[Tensor, "N T C"], labels: Int64[Tensor, " T"], S: int) -> float:
    r"""How much further a mean over these rows strays than over as many that know nothing of each other.

    $\sqrt{1 + (T - 1) r}$ with $r$ the mean correlation of two rows over the retrained networks: one person's pictures
    are answered alike, right or wrong.
    """
    T = len(labels)
    own = answers[S:, torch.arange(T), labels]
    alone = own - own.mean(dim=0)
    alone = alone / alone.std(dim=0).clamp(min=1e-12)
    return math.sqrt(max(1.0, float(alone.sum(dim=1).square().mean()) / T))


def _moved(
    both: Channel, match: _Match, labels: Int64[Tensor, " T"], S: int, pick: Int64[Tensor, "P T"]
) -> tuple[float, float, float, int, float]:
    """How far the labels' margins moved beyond controls, its standard errors, degrees of freedom; the furthest row."""
    place = torch.arange(len(labels))
    beyond = both.rows - match.beside(both.controls)
    of_label = beyond[:, place, labels]
    each = of_label.mean(dim=1)
    furthest = float((of_label[:S].mean(dim=0) - of_label[S:].mean(dim=0)).abs().max())
    ours, theirs = each[:S], each[S:]
    of_networks = float(theirs.var() / len(theirs) + (ours.var() / S if S > 1 else theirs.var()))
    shift = both.controls[:S].mean(dim=0) - both.controls[S:].mean(dim=0)
    alone = (shift - match.among @ shift)[match.field, labels.unsqueeze(1)]
    drawn = alone[place, (pick[1:] - 1).clamp(min=0)].mean(dim=1)
    of_rows = float(drawn.std()) * _clumping(beyond, labels, S)
    return float(ours.mean() - theirs.mean()), math.sqrt(of_networks), of_rows, len(each) - 2, furthest


def _heights(of_label: Float64[Tensor, "P T"], of_all: Float64[Tensor, "P T"]) -> Float64[Tensor, "P 4"]:
    # The mean finds a little in every row, the largest much in a single one.
    return torch.stack([of_label.mean(1), of_label.max(1).values, of_all.mean(1), of_all.max(1).values], dim=1)


def _least_p(heights: Float64[Tensor, "P J"]) -> float:
    """The p-value of the smallest p-value over all statistics, by the same shuffles (Westfall and Young, 1993).

    So more ways of asking do not mean more false alarms. With many statistics many shuffles are the highest in one of
    them; among equals the one that is high in the others too comes first, or no p-value could be small.
    """
    P = len(heights)
    sorted_, _ = heights.sort(dim=0)
    # How many shuffles reach as high; one that changes nothing must count as equal despite rounding.
    below = torch.searchsorted(sorted_.T.contiguous(), (heights * (1 - 1e-9)).T.contiguous())
    each = (P - below).double() / P
    # Single p-values are 1 / P apart, so this decides among equals alone.
    p = each.min(dim=0).values + each.log().mean(dim=0).exp() / (2 * P)
    return float((p <= p[0] * (1 + 1e-9)).double().mean())
