"""Do the forgotten rows stand out? One test over networks, one over rows, and both must say so.

A network that remembers differs from retrained ones, and most on the forgotten rows. One that was trained differently
differs too, but on all rows alike. So a difference counts as memory only if networks cannot be exchanged **and** the
forgotten rows cannot be exchanged with matched controls: rows that nobody trained on and that retrained networks answer
alike. Each test is exact under its own null hypothesis, so a false accusation is as rare as the rarer of the two.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn.functional import one_hot

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
    - `moved`: how far margins lie beyond those of controls, further than retrained networks' do, in the mean over rows
      and labels by given weights; of the label that a row was trained on, in the mean over rows, unless weights are.
    - `error`, `error_of_rows`: the standard error of `moved` over networks, and over rows of networks that were trained
      differently.
    - `freedom`: of `error`.
    - `furthest`: how far the row that moved most did, up or down, by the same weights.
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
    weights: Float64[Tensor, "n T C"] | None = None,
) -> StandingOut:
    """Compare a group of networks, or a single one, with networks that were retrained without the rows.

    **Arguments:**

    - `candidate`, `references`: the same channels in the same order. The first one says which rows are alike.
    - `labels`: which column is the one that a row was trained on.
    - `weights`: of rows and labels in the mean move, 1 in all by their sizes, found without each reference in turn; the
      labels alone unless said.
    """
    return Comparison(candidate, references, labels, permutations=permutations, seed=seed, weights=weights).found()


def exchangeable(
    candidate: Float64[Tensor, "S T"], references: Float64[Tensor, "n T"], *, permutations: int = 1999, seed: int = 0
) -> float:
    """The p-value of the networks alone, by one score a row: all that can be told where there are no controls."""
    S, n, T = len(candidate), len(references), candidate.shape[1]
    chosen = chosen_networks(S, n, permutations, torch.Generator().manual_seed(seed))
    answers = torch.cat([candidate, references]).unsqueeze(2)
    return _least_p(_network_heights(answers, torch.zeros(T, dtype=torch.long), S, chosen)[:, :2])


class Comparison:
    """Networks beside retrained ones; what does not hang on the forgotten rows is computed once, for rows may be
    planted many times.

    **Arguments:** those of `standing_out`; and `match`, where it is known already.
    """

    def __init__(
        self,
        candidate: Sequence[Channel],
        references: Sequence[Channel],
        labels: Int64[Tensor, " T"],
        *,
        permutations: int = 1999,
        seed: int = 0,
        weights: Float64[Tensor, "n T C"] | None = None,
        match: "Match | None" = None,
    ) -> None:
        self.labels, self.S = labels, len(candidate[0].rows)
        n, T, C = references[0].rows.shape
        self.weights = (one_hot(labels, C).double() / T).expand(n, -1, -1) if weights is None else weights
        generator = torch.Generator().manual_seed(seed)
        self.match = match or Match.of(references[0])
        self.chosen = chosen_networks(self.S, len(references[0].rows), permutations, generator)
        pick = torch.randint(self.match.field.shape[1] + 1, (permutations, len(labels)), generator=generator)
        # Nobody is exchanged in the first line: the data as they are count as one of the shuffles.
        self.pick = torch.cat([torch.zeros_like(pick[:1]), pick])
        self.both = [ours.join(theirs) for ours, theirs in zip(candidate, references, strict=True)]
        self.beside = [self.match.beside(one.controls) for one in self.both]
        self.grounds = [_Ground.of(one, self.match, labels, self.S) for one in self.both]

    def found(self, rows: Sequence[Float64[Tensor, "S T C"]] | None = None) -> StandingOut:
        """What both tests say; of other answers of the candidates to the forgotten rows, where they are given."""
        both = [one.rows for one in self.both]
        if rows is not None:
            both = [torch.cat([ours, theirs[self.S :]]) for ours, theirs in zip(rows, both, strict=True)]
        beyond = [one - beside for one, beside in zip(both, self.beside, strict=True)]
        of_networks = [_network_heights(one, self.labels, self.S, self.chosen) for one in beyond]
        of_rows = [
            p
            for one, ground in zip(beyond, self.grounds, strict=True)
            for p in _row_p_values(one, ground, self.labels, self.S, self.pick)
        ]
        moved = _moved(beyond[0], self.grounds[0], self.labels, self.S, self.pick, self.weights)
        return StandingOut(_least_p(torch.cat(of_networks, 1)), together(of_rows), *moved)


@dataclass(frozen=True, eq=False)
class Match:
    """Which controls retrained networks answer like each forgotten row, and like each other control."""

    near: Float64[Tensor, "T V"]
    among: Float64[Tensor, "V V"]
    field: Int64[Tensor, "T K"]

    @staticmethod
    def of(references: Channel) -> "Match":
        rows, controls = (group.mean(dim=0) for group in vars(references).values())
        apart, between = torch.cdist(rows, controls), torch.cdist(controls, controls)
        between.fill_diagonal_(torch.inf)  # no control speaks for itself
        V = len(controls)
        order = apart.argsort(dim=1)
        few = min(NEAR, V - 1)
        closest = between.topk(few, dim=1, largest=False).indices
        return Match(_mean_over(order[:, :few], V), _mean_over(closest, V), order[:, :FIELD])

    def beside(self, controls: Float64[Tensor, "S V C"]) -> Float64[Tensor, "S T C"]:
        """The mean answer of each forgotten row's nearest controls."""
        return self.near @ controls


def _mean_over(nearest: Int64[Tensor, "T k"], width: int) -> Float64[Tensor, "T V"]:
    return torch.zeros(len(nearest), width, dtype=torch.float64).scatter_(1, nearest, 1 / nearest.shape[1])


def chosen_networks(S: int, n: int, permutations: int, generator: torch.Generator) -> Int64[Tensor, "P S"]:
    """Which networks take the candidates' places in each shuffle, as they are first."""
    as_they_are = torch.arange(S).unsqueeze(0)
    if S == 1:
        return torch.arange(n + 1).unsqueeze(1)  # each in turn: there are no more
    if math.comb(S + n, S) <= permutations:
        return torch.tensor(list(combinations(range(S + n), S)))  # all that there are, as they are first
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


@dataclass(frozen=True, eq=False)
class _Ground:
    """What controls do in one way of asking: how far they stray, and how far rows may be expected to."""

    variance: Float64[Tensor, "T C"]
    own: "Field"
    every: "Field"
    beyond: Float64[Tensor, "V C"]
    field: Int64[Tensor, "T K"]

    @staticmethod
    def of(both: Channel, match: Match, labels: Int64[Tensor, " T"], S: int) -> "_Ground":
        """Of candidates, the first `S` networks, beside the others."""
        moved = both.controls[:S].mean(dim=0) - both.controls[S:].mean(dim=0)
        # What chance alone moves each by: rows of which retrained networks are unsure move further.
        share = 1 / S + 1 / (len(both.controls) - S)
        chance = [share * group[S:].var(dim=0) for group in vars(both).values()]
        near, among = (side @ moved.square() - (side @ moved).square() for side in (match.near, match.among))
        typical = among.mean().clamp(min=1e-12)
        of_rows, of_controls = ((one + typical) / 2 + own for one, own in zip((near, among), chance, strict=True))
        beyond = moved - match.among @ moved
        standardised = beyond.square() / of_controls
        column = labels.unsqueeze(1)
        return _Ground(
            of_rows, Field.of(standardised[match.field, column].sqrt()),
            Field.of(standardised.mean(dim=1)[match.field].sqrt()), beyond, match.field,
        )  # fmt: skip


def _row_p_values(
    beyond: Float64[Tensor, "N T C"], ground: _Ground, labels: Int64[Tensor, " T"], S: int, pick: Int64[Tensor, "P T"]
) -> list[float]:
    """Do rows go further astray than controls: of the label and of all labels, in the mean over rows and at most."""
    rows = ((beyond[:S].mean(dim=0) - beyond[S:].mean(dim=0)).square() / ground.variance).sqrt()
    T = len(labels)
    place = torch.arange(T)
    # Means of rows that move together vary more than those of controls from everywhere, and those were drawn once, too.
    spread = _clumping(beyond, labels, S) * math.sqrt(1 + T / len(ground.beyond))
    found = []
    for mine, field in ((rows[place, labels], ground.own), (rows.square().mean(dim=1).sqrt(), ground.every)):
        means = torch.cat([mine.unsqueeze(1), field.values], dim=1)[place, pick].mean(dim=1)
        drawn = means[1:].mean() + (means[1:] - means[1:].mean()) * spread
        found.append(float((1 + (drawn >= means[0] * (1 - 1e-9)).sum()) / (1 + len(drawn))))
        found.append(-math.expm1(T * math.log1p(-float(field.beyond(mine).min().clamp(max=1 - 1e-9)))))
    return found


@dataclass(frozen=True, eq=False)
class Field:
    """How far the controls of each row lie out.

    Where the last tenth begins, an exponential tail goes on: by ranks alone nothing among `T` rows could be rarer than
    `T` in all controls, however far it lies. The tail is as wide as the mean excess, and no control lies beyond it.
    """

    values: Float64[Tensor, "T K"]
    begin: Float64[Tensor, " T"]
    width: Float64[Tensor, " T"]

    @staticmethod
    def of(values: Float64[Tensor, "T K"]) -> "Field":
        """Find the tails."""
        few = _last(values)
        top = values.topk(few + 1, dim=1).values
        excess = top[:, :-1] - top[:, -1:]
        width = torch.maximum(excess.mean(dim=1), excess[:, 0] / math.log(few + 1))
        return Field(values, top[:, -1], width.clamp(min=1e-12))

    def beyond(self, values: Float64[Tensor, " T"]) -> Float64[Tensor, " T"]:
        """How likely a control lies as far out as each value does."""
        K = self.values.shape[1]
        ranked = (1 + (self.values >= values.unsqueeze(1)).sum(dim=1)).double() / (K + 1)
        tail = (_last(self.values) + 1) / (K + 1) * (-(values - self.begin) / self.width).exp()
        return torch.where(values > self.begin, tail, ranked)


def _last(values: Float64[Tensor, "T K"]) -> int:
    return max(1, values.shape[1] // 10)


def together(p_values: Sequence[float]) -> float:
    """One p-value of several that hang together, by the mean of Cauchy quantiles (Liu and Xie, 2020)."""
    # At 1 the quantile is infinite: what speaks for chance must not outweigh everything else.
    angles = [math.tan((0.5 - min(max(p, 1e-12), 0.99)) * math.pi) for p in p_values]
    return 0.5 - math.atan(sum(angles) / len(angles)) / math.pi


def match_of(references: Sequence[Channel]) -> Match | None:
    """Which controls are like which rows, where there are any."""
    return Match.of(references[0]) if references[0].controls.shape[1] else None


def beyond_controls(channels: Sequence[Channel], match: Match | None) -> list[Float64[Tensor, "S T C"]]:
    """Answers to the forgotten rows less those to controls that retrained networks answer alike, if there are any."""
    return [one.rows if match is None else one.rows - match.beside(one.controls) for one in channels]


def alike(references: Channel, labels: Int64[Tensor, " T"], match: Match | None = None) -> float:
    """The mean correlation of two forgotten rows over retrained networks, beyond their controls: 0 alone, 1 as one."""
    T = len(labels)
    beyond = references.rows - (match or Match.of(references)).beside(references.controls)
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
    beyond: Float64[Tensor, "N T C"],
    ground: _Ground,
    labels: Int64[Tensor, " T"],
    S: int,
    pick: Int64[Tensor, "P T"],
    each: Float64[Tensor, "n T C"],
) -> tuple[float, float, float, int, float]:
    """How far rows moved beyond controls, its standard errors, degrees of freedom; and the furthest of them.

    Each reference is weighed by what the others tell, candidates by the mean of that; where zero lies cancels out.
    """
    weights = each.mean(dim=0)
    apart = beyond - beyond[S:].mean(dim=0)
    ours, theirs = (apart[:S] * weights).sum(dim=(1, 2)), (apart[S:] * each).sum(dim=(1, 2))
    of_networks = float(theirs.var() / len(theirs) + (ours.var() / S if S > 1 else theirs.var()))
    alone = (weights @ ground.beyond.T).gather(1, ground.field)
    drawn = alone[torch.arange(len(labels)), (pick[1:] - 1).clamp(min=0)].sum(dim=1)
    of_rows = float(drawn.std()) * _clumping(beyond, labels, S)
    # Of rows without any weight the label tells.
    size = weights.abs().sum(dim=1, keepdim=True)
    by_row = torch.where(size > 0, weights / size.clamp(min=1e-300), one_hot(labels, weights.shape[1]).double())
    furthest = float((apart[:S].mean(dim=0) * by_row).sum(dim=1).abs().max())
    return float(ours.mean() - theirs.mean()), math.sqrt(of_networks), of_rows, len(beyond) - 2, furthest


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
