"""What an attack came to: area under the curve and true positives at few false ones, each with limits."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from jaxtyping import Bool, Float
from scipy import optimize
from torch import Tensor

from spotlessnet.core.errors import MismatchError
from spotlessnet.core.intervals import Array, Interval, auc, bootstrap, finest_rate, tpr_at_fpr
from spotlessnet.core.readout import Reading

SHARED = math.sqrt(2)
"""How much wider limits must be where both halves of the models may say the same."""


@dataclass(frozen=True)
class Attack:
    r"""How well scores tell members from non-members.

    **Arguments:**

    - `auc`: area under the curve; one half is blind guessing.
    - `tpr`: true positive rate at a false positive rate of `rate`; `None` where the sample resolves none.
    - `rate`: the finest of 0.1 %, 1 % and 10 % that the number of non-members resolves.
    - `note`: what could not be printed, and why.
    - `tprs`: true positive rates at each rate that was asked for and that the sample resolves.
    - `epsilon`: a lower limit at 95 % confidence of what the scrub leaves: no mechanism under which a network that saw
      a row and one that did not are $(\varepsilon, 0)$-indistinguishable lets so many pairs be told apart. `None` where
      models were not in pairs.
    """

    auc: Interval
    tpr: Interval | None
    rate: float | None
    members: int
    non_members: int
    note: str = ""
    tprs: Mapping[float, Interval] = field(default_factory=dict)
    epsilon: float | None = None

    def reading(self) -> Reading:
        """The area under the curve, as a readout would give it."""
        return Reading(*self.auc, note=self.note)

    def __str__(self) -> str:
        area = f"AUC {self.auc.value:.3f} [{self.auc.low:.3f}, {self.auc.high:.3f}]"
        rates = dict(self.tprs)
        if self.tpr is not None and self.rate is not None:
            rates.setdefault(self.rate, self.tpr)
        found = [f"TPR@{rate:.1%} {r.value:.1%} [{r.low:.1%}, {r.high:.1%}]" for rate, r in sorted(rates.items())]
        least = [] if self.epsilon is None else [f"epsilon at least {self.epsilon:.2f}"]
        return ", ".join([area, *found, *least])


def attack_over_models(
    scores: Float[Tensor, "S T"],
    member: Bool[Tensor, "S T"],
    *,
    wanted: Sequence[float] = (0.001, 0.01, 0.1),
    together: int = 1,
    crossed: bool = False,
    draws: int = 300,
    seed: int = 0,
) -> Attack:
    r"""Pool the scores of all rows under all models; limits by drawing **models** anew.

    Scores of one model hang together, so intervals that treat them as independent would be far too narrow. Scores that
    were fitted crosswise (`held_out_scores`) hang together across both halves too: what one half says of the other is
    what the other says of it. The mean of the two varies at most as each alone, so limits are $\sqrt2$ times as wide.

    **Arguments:**

    - `member`: whether the row was among the model's training rows.
    - `wanted`: false positive rates; the finest one that the sample resolves is reported.
    - `together`: models that belong together (complementary halves) and are drawn together.
    - `crossed`: whether each half of the models was judged by densities that the other half gave.
    """
    if scores.shape != member.shape or len(scores) % together:
        raise MismatchError(
            f"Scores {tuple(scores.shape)} and membership {tuple(member.shape)} must have one shape, with a number of "
            f"models that {together} divides."
        )
    s, m = scores.detach().cpu().double().numpy(), member.cpu().numpy()
    count = int((~member).sum())
    rate = finest_rate(count, wanted)
    groups = np.arange(len(s)).reshape(-1, together)

    def area(chosen: Array) -> float:
        values, inside = s[chosen.ravel()], m[chosen.ravel()]
        return auc(values[inside], values[~inside])

    def hits(chosen: Array, at: float) -> float:
        values, inside = s[chosen.ravel()], m[chosen.ravel()]
        # A draw of models may hold fewer non-members than the sample; where they resolve less, it says nothing.
        fits = finest_rate(int((~inside).sum()), [at]) is not None
        return tpr_at_fpr(values[inside], values[~inside], at) if fits else math.nan

    def limits(of: Callable[[Array], float]) -> Interval:
        found = bootstrap(groups, of, draws=draws, seed=seed)
        return _widened(found) if crossed else found

    tprs = {at: limits(partial(hits, at=at)) for at in wanted if finest_rate(count, [at]) is not None}
    return Attack(
        auc=limits(area),
        tpr=None if rate is None else tprs[rate],
        rate=rate,
        members=int(member.sum()),
        non_members=count,
        note=resolution_note(count, rate, wanted),
        tprs=tprs,
        epsilon=_pair_epsilon(s, m, crossed) if together == 2 else None,
    )


def _widened(found: Interval) -> Interval:
    """Limits of the mean of two halves that may say the very same."""
    value, low, high = found
    return Interval(value, max(0.0, value - SHARED * (value - low)), min(1.0, value + SHARED * (high - value)))


def _pair_epsilon(s: Array, m: Array, crossed: bool, confidence: float = 0.95) -> float:
    r"""From pairs of models of which one saw a row: how often its score is the higher one.

    A pair is told apart with a probability of $e^{2\varepsilon} / (1 + e^{2\varepsilon})$ at most, for both of its
    models change places. Rows of a pair hang together, so a pair counts once, with the share of its rows; for a mean of
    $n$ such shares $P(\bar X \ge x) \le e^{-n\,\mathrm{KL}(x \| q)}$ (Hoeffding 1963). Of scores fitted crosswise,
    the second half alone is counted: given the first, its pairs are independent.
    """
    first = len(s) // 4 * 2 if crossed else 0
    seen, inside = s[first:].reshape(-1, 2, s.shape[1]), m[first:].reshape(-1, 2, s.shape[1])
    gap = np.where(inside[:, 0], seen[:, 0] - seen[:, 1], seen[:, 1] - seen[:, 0])
    share = float(((gap > 0) + 0.5 * (gap == 0)).mean())
    n = len(seen)

    def too_likely(q: float) -> float:
        divergence = sum(x * math.log(x / y) for x, y in ((share, q), (1 - share, 1 - q)) if x > 0)
        return math.exp(-n * divergence) - (1 - confidence)

    if share <= 0.5 or too_likely(0.5) >= 0:
        return 0.0
    q = optimize.brentq(too_likely, 0.5, min(share, 1 - 1e-12))
    return float(math.log(q / (1 - q)) / 2)


def resolution_note(non_members: int, rate: float | None, wanted: Sequence[float]) -> str:
    """Why a finer rate is not printed, or nothing."""
    finer = [w for w in sorted(wanted) if rate is None or w < rate]
    if not finer:
        return ""
    needed = ", ".join(f"{3 / w:.0f} for {w:g}" for w in finer)
    return f"{non_members} non-members do not resolve a false positive rate of {finer[-1]:g} or less (needed: {needed})"
