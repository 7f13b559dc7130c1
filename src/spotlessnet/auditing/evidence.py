"""Evidence: what groups of networks make of the forgotten rows, and how two groups compare."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.intervals import Interval, ratio_interval
from spotlessnet.core.loss import Loss
from spotlessnet.core.progress import track
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.error import Error
from spotlessnet.readouts.margin_kl import margin_kl
from spotlessnet.readouts.matched_controls import Unseen, beyond
from spotlessnet.readouts.scores import scores_of

ENTRIES = 2**22
"""Margins shuffled at once."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is read from one group of networks, one per seed.

    **Arguments:**

    - `margins`: of the forgotten rows, `[seeds, rows]`; their scores where a row has no one margin (`readouts.scores`).
    - `forget_error`, `test_error`: shares of wrong answers; the latter empty where there is no test data.
    - `unseen`: what they make of rows that nobody trained on.
    - `errors_are_losses`: errors are mean losses, for the loss knows no wrong answers.
    """

    margins: Float[Tensor, "S T"]
    forget_error: Float[Tensor, " S"]
    test_error: Float[Tensor, " R"]
    unseen: Unseen | None = None
    errors_are_losses: bool = False

    @staticmethod
    def of(networks: Iterable[Trained], split: Split) -> "Evidence":
        """Look at each network once."""
        group = list(networks)
        forget = [float(Error("forget")(network, split)) for network in group]
        test = [] if split.test is None else [float(Error("test")(network, split)) for network in group]
        errors, tests = (torch.tensor(column, dtype=torch.float64) for column in (forget, test))
        in_losses = bool(group) and type(group[0].loss).mistakes is Loss.mistakes
        return Evidence(scores_of(group, split.forget), errors, tests, Unseen.of(group, split), in_losses)

    def __len__(self) -> int:
        return len(self.margins)


@dataclass(frozen=True)
class Net:
    """What is remembered beyond matched controls, in shares of what the original remembers beyond them.

    **Arguments:**

    - `share`, `surely`: in the mean over rows, with Fieller's interval at two levels.
    - `single`, `chance`: of the row that kept most, and the standard deviation of controls among themselves.
    """

    share: Interval
    surely: Interval
    single: float
    chance: float

    def __str__(self) -> str:
        share = f"{self.share.value:.2g} [{self.share.low:.2g}, {self.share.high:.2g}]"
        return f"beyond matched controls {share}, of one row {self.single:.2g} ({self.chance:.2g} by chance)"


def beyond_controls(
    original: Evidence, candidate: Evidence, retrained: Evidence, level: float, surely: float
) -> Net | None:
    """How much the original remembers beyond its matched controls; nothing where there are none.

    A row's own share is taken of what the original remembers of it or of a typical one, whichever is more.
    """
    if original.unseen is None or candidate.unseen is None or retrained.unseen is None:
        return None
    ours, whole = (
        beyond(group.margins, unseen, retrained.margins, retrained.unseen)
        for group, unseen in ((candidate, candidate.unseen), (original, original.unseen))
    )
    typical = whole.rows.median()
    # The original remembers no more of these rows than of their controls: there is no unit to count shares in.
    if typical <= 0:
        return None
    # Of a row that the original hardly knew, a share of nearly nothing would be any number.
    scale = whole.rows.clamp(min=typical)
    share, wide = (ratio_interval(ours.rows, whole.rows, which) for which in (level, surely))
    return Net(share, wide, float((ours.rows / scale).max()), float((ours.matched_controls / scale).std()))


@dataclass(frozen=True)
class RowTest:
    """Margins row by row against shuffled networks.

    **Arguments:**

    - `nats`, `floor`: margin-KL, mean over rows, and what it is by chance.
    - `p_mean`, `p_high`: how often shuffled networks have as large a mean, and as large a 95th percentile over rows.
    """

    nats: float
    floor: float
    p_mean: float
    p_high: float

    @property
    def p(self) -> float:
        """Both together: the smaller counts twice."""
        return min(1.0, 2 * min(self.p_mean, self.p_high))


def row_test(
    candidate: Float[Tensor, "S T"], retrained: Float[Tensor, "R T"], permutations: int = 1999, seed: int = 0
) -> RowTest:
    """Do the margins of single rows differ more than those of shuffled networks?

    The mean over rows finds a little everywhere, the 95th percentile much in a few. Networks are shuffled whole, so
    that rows stay tied.
    """
    both = torch.cat([candidate, retrained]).double()
    S = len(candidate)
    T = candidate.shape[1]
    seen = _heights(margin_kl(candidate, retrained).unsqueeze(0))[0]
    generator = torch.Generator().manual_seed(seed)
    orders = torch.rand(permutations, len(both), generator=generator).argsort(dim=1)
    null = []
    for some in track(orders.split(max(1, ENTRIES // both.numel())), "shuffling networks"):
        # Every shuffle's rows side by side: networks stay the first axis.
        mixed = both[some].transpose(0, 1).reshape(len(both), -1)
        null.append(_heights(margin_kl(mixed[:S], mixed[S:]).reshape(-1, T)))
    heights = torch.cat(null)
    # A shuffle that changes nothing must count as equal despite rounding.
    beyond = (heights >= seen * (1 - 1e-9)).sum(dim=0)
    # The networks as they are count as one of the shuffles, so that p is never zero (Phipson and Smyth, 2010).
    p = (1 + beyond.double()) / (1 + permutations)
    return RowTest(float(seen[0]), float(heights[:, 0].mean()), float(p[0]), float(p[1]))


def _heights(nats: Float[Tensor, "D T"]) -> Float[Tensor, "D 2"]:
    return torch.stack([nats.mean(dim=1), nats.quantile(0.95, dim=1)], dim=1)
