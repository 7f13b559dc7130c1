"""Intervals and tests for small samples: how far a number measured over a few models can be trusted."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from jaxtyping import Float
from scipy import optimize, stats
from torch import Tensor

from spotlessnet.core.errors import DataError, SettingError

Array = npt.NDArray[Any]
Numbers = Sequence[float] | npt.NDArray[Any] | Tensor
"""Anything that holds numbers along its first axis."""

FALSE_POSITIVES = 3
"""How many false positives a sample must allow before a true positive rate at that level is worth printing."""


class Interval(NamedTuple):
    """An estimate between two limits."""

    value: float
    low: float
    high: float


def t_interval(values: Numbers, level: float = 0.95) -> Interval:
    r"""Mean over seeds with its two-sided limits, $m \pm t_{n-1} s / \sqrt n$.

    One value has no spread, so its limits are infinite; equal values have none either, so theirs are the value.

    >>> [round(x, 3) for x in t_interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    mean, error, n = _mean_and_error(values)
    reach = error * _t((1 + _checked(level)) / 2, n)
    return Interval(mean, mean - reach, mean + reach)


def upper_limit(values: Numbers, level: float = 0.95) -> float:
    r"""One-sided limit that the mean stays under, $m + t_{level, n-1} s / \sqrt n$; infinite for one value.

    >>> round(upper_limit([1.0, 2.0, 3.0]), 3)
    3.686
    """
    mean, error, n = _mean_and_error(values)
    return mean + error * _t(_checked(level), n)


def bootstrap(
    values: Numbers,
    statistic: Callable[[Array], float] | None = None,
    *,
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> Interval:
    r"""Interval of a statistic by drawing the entries of the first axis anew, with replacement.

    Percentiles, moved outward as far as Student's t asks for so many entries (Hesterberg 2015): plain percentiles
    are too narrow for few of them, $\alpha' = \Phi\big(-\sqrt{n / (n - 1)}\, t_{\alpha/2, n-1}\big)$.

    Scores of one model hang together, so hand in one entry **per model**: an array `[models, ...]`, or the
    numbers `range(models)` with a statistic that looks its models up.

    **Arguments:**

    - `statistic`: of an array like `values`; the mean unless said.
    """
    sample = _array(values)
    of = statistic if statistic is not None else lambda a: float(a.mean())
    generator = np.random.default_rng(seed)
    again = np.array([of(sample[generator.integers(len(sample), size=len(sample))]) for _ in range(draws)])
    n = len(sample)
    tail = float(stats.norm.cdf(-math.sqrt(n / (n - 1)) * _t((1 + _checked(level)) / 2, n))) if n > 1 else 0.0
    low, high = np.nanquantile(again, [tail, 1 - tail])
    return Interval(float(of(sample)), float(low), float(high))


def clopper_pearson(successes: int, trials: int, level: float = 0.95) -> Interval:
    """Share of successes with exact limits: they hold the true share at least `level` of the time.

    >>> [round(x, 2) for x in clopper_pearson(20, 25)]
    [0.8, 0.59, 0.93]
    """
    if not 0 <= successes <= trials or not trials:
        raise DataError(f"Successes must lie between 0 and the number of trials, but got {successes} of {trials}.")
    low, high = stats.binomtest(successes, trials).proportion_ci(_checked(level), "exact")
    return Interval(successes / trials, float(low), float(high))


def auc(positives: Numbers, negatives: Numbers) -> float:
    """Chance that a positive scores above a negative, ties counting half.

    >>> auc([2.0, 3.0], [0.0, 1.0]), auc([1.0], [1.0])
    (1.0, 0.5)
    """
    a, b = _array(positives), _array(negatives)
    # Mann and Whitney's U counts just these pairs. From the ranks: `mannwhitneyu` spends most of its time on a p-value,
    # which nobody asks for, and a bootstrap comes here hundreds of times.
    ranks = stats.rankdata(np.concatenate([a, b]))
    pairs = ranks[: len(a)].sum() - len(a) * (len(a) + 1) / 2
    return float(pairs / (len(a) * len(b)))


def auc_interval(positives: Numbers, negatives: Numbers, level: float = 0.95) -> Interval:
    r"""Area under the curve with limits, for **independent** scores (for scores that share models, `bootstrap`).

    The limits solve $|\hat A - A| = z\, \mathrm{sd}(A)$ with Hanley and McNeil's standard deviation taken at the
    limit itself (Newcombe 2006, method 5), so they stay inside [0, 1] and have width even at $\hat A = 1$.

    >>> [round(x, 3) for x in auc_interval([5.0] * 10, [0.0] * 10)]
    [1.0, 0.8, 1.0]
    """
    area = auc(positives, negatives)
    m = len(positives)
    n = len(negatives)
    z = float(stats.norm.ppf((1 + _checked(level)) / 2))
    many = (m + n) / 2 - 1

    def deviation(A: float) -> float:
        return math.sqrt(A * (1 - A) * (1 + many * ((1 - A) / (2 - A) + A / (1 + A))) / (m * n))

    inside = min(max(area, 1e-9), 1 - 1e-9)  # the deviation vanishes at 0 and 1, which would be a root of its own
    low = 0.0 if area <= 0 else optimize.brentq(lambda A: area - A - z * deviation(A), 0.0, inside)
    high = 1.0 if area >= 1 else optimize.brentq(lambda A: A - area - z * deviation(A), inside, 1.0)
    return Interval(area, float(low), float(high))


def finest_rate(negatives: int, wanted: Sequence[float] = (0.001, 0.01, 0.1)) -> float | None:
    """The smallest of the wanted false positive rates that so many non-members resolve, or none of them.

    >>> finest_rate(3000), finest_rate(2999), finest_rate(29)
    (0.001, 0.01, None)
    """
    return next((rate for rate in sorted(wanted) if _resolves(negatives, rate)), None)


def tpr_at_fpr(positives: Numbers, negatives: Numbers, rate: float) -> float:
    """Share of positives above a threshold that at most this share of negatives exceeds.

    Refuses a rate that the sample cannot resolve: it must allow for three false positives.

    >>> tpr_at_fpr([0.0, 9.0], list(range(10)), rate=0.3)
    0.5
    """
    n = len(negatives)
    if not _resolves(n, rate):
        raise SettingError(
            f"A false positive rate of {rate:g} needs at least {math.ceil(FALSE_POSITIVES / rate)} non-members, but "
            f"there are {n}. Ask for a higher rate, or score more rows or models."
        )
    allowed = math.floor(rate * n + 1e-9)
    threshold = np.sort(_array(negatives))[n - 1 - allowed]
    return float((_array(positives) > threshold).mean())


def permutation_pvalue(
    first: Numbers,
    second: Numbers,
    statistic: Callable[[Array, Array], float],
    *,
    draws: int = 999,
    seed: int = 0,
) -> float:
    """How often shuffled groups look at least as different: exact under the null, never zero.

    Entries of the first axis (models, as a rule) are shuffled between the two groups.

    **Arguments:**

    - `statistic`: of both groups; larger means more different.
    """
    a, b = _array(first), _array(second)
    both = np.concatenate([a, b])
    seen = statistic(a, b)
    generator = np.random.default_rng(seed)
    # A permutation that only reorders within groups must count as equal despite rounding.
    slack = 1e-12 * max(1.0, abs(seen))
    beyond = 0
    for _ in range(draws):
        mixed = both[generator.permutation(len(both))]
        beyond += statistic(mixed[: len(a)], mixed[len(a) :]) >= seen - slack
    return (1 + beyond) / (1 + draws)


def _resolves(negatives: int, rate: float) -> bool:
    return rate * negatives >= FALSE_POSITIVES - 1e-9


def _mean_and_error(values: Numbers) -> tuple[float, float, int]:
    sample = _array(values)
    n = len(sample)
    # One value has no spread; any error will do there, for its quantile is infinite.
    return float(sample.mean()), float(stats.sem(sample)) if n > 1 else 1.0, n


def _t(quantile: float, n: int) -> float:
    return float(stats.t.ppf(quantile, n - 1)) if n > 1 else math.inf


def _array(values: Numbers) -> Array:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if not array.size:
        raise DataError("A statistic needs at least one value, but got none.")
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _checked(level: float) -> float:
    if not 0 < level < 1:
        raise SettingError(f"`level` must lie between 0 and 1, but got {level}. Usual is 0.95.")
    return level


def ratio_interval(a: Float[Tensor, " S"], b: Float[Tensor, " S"], level: float) -> Interval:
    r"""Fieller's interval of $\bar a / \bar b$ from paired values, for positive $\bar b$.

    All $\rho$ with $(\bar a - \rho\bar b)^2 \le t^2 (s_{aa} - 2\rho s_{ab} + \rho^2 s_{bb}) / n$: exact for Gaussian
    values, and the t-interval of $\bar a$ where $b = 1$. Unbounded where $\bar b$ itself may be zero or below.
    """
    n = len(a)
    if n < 2:
        return Interval(float(a.mean() / b.mean()), -math.inf, math.inf)
    s = np.cov(np.stack([a.double().cpu().numpy(), b.double().cpu().numpy()])) / n
    mean_a, mean_b = float(a.double().mean()), float(b.double().mean())
    t2 = float(stats.t.ppf((1 + level) / 2, n - 1)) ** 2
    square, cross, free = mean_b**2 - t2 * s[1, 1], mean_a * mean_b - t2 * s[0, 1], mean_a**2 - t2 * s[0, 0]
    if square <= 0 or mean_b <= 0:
        return Interval(mean_a / mean_b if mean_b else math.nan, -math.inf, math.inf)
    reach = math.sqrt(max(cross**2 - square * free, 0.0))
    return Interval(mean_a / mean_b, (cross - reach) / square, (cross + reach) / square)


def quotient_interval(a: float, error_a: float, b: float, error_b: float, level: float, freedom: int) -> Interval:
    r"""Fieller's interval of a ratio of two independent estimates with standard errors, for positive $b$.

    >>> [round(x, 3) for x in quotient_interval(1.0, 0.1, 2.0, 0.0, 0.95, 10**9)]
    [0.5, 0.402, 0.598]
    """
    t2 = float(stats.t.ppf((1 + _checked(level)) / 2, freedom)) ** 2
    square, cross, free = b**2 - t2 * error_b**2, a * b, a**2 - t2 * error_a**2
    if square <= 0 or b <= 0:
        return Interval(a / b if b else math.nan, -math.inf, math.inf)
    reach = math.sqrt(max(cross**2 - square * free, 0.0))
    return Interval(a / b, (cross - reach) / square, (cross + reach) / square)
