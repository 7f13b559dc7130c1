"""From nats to an attacker: the best anyone could do, whatever the attack."""

import math

from scipy import stats

from spotlessnet.core.errors import SettingError


def best_accuracy(nats: float) -> float:
    r"""The highest chance to tell scrubbed from retrained when both are equally likely.

    $$\tfrac12 + \tfrac12\min\big(\sqrt{KL/2},\ \sqrt{1 - e^{-KL}}\big)$$

    Half of one plus the total variation, which Pinsker and Bretagnolle-Huber limit.

    >>> [round(best_accuracy(nats), 3) for nats in (0.0, 0.02, 0.5, 5.0, math.inf)]
    [0.5, 0.55, 0.75, 0.998, 1.0]
    """
    _check(nats)
    # Pinsker is the tighter below 1.6 nats, the other above; `expm1` keeps the digits of few nats.
    return 0.5 + 0.5 * min(math.sqrt(nats / 2), math.sqrt(-math.expm1(-nats)))


def true_positives(nats: float, false_positives: float = 0.01) -> float:
    r"""The true positive rate of the best test at a false positive rate, **if both covariances are equal**.

    $$\Phi\big(\Phi^{-1}(\alpha) + \mu\big), \qquad \mu = \sqrt{2\,KL}$$

    Two Gaussians that differ in the mean alone are $\mu$-GDP, and this is the trade-off curve itself, not a bound.

    >>> [round(true_positives(nats), 4) for nats in (0.0, 0.02, 0.5, 5.0)]
    [0.01, 0.0167, 0.0924, 0.7984]
    """
    _check(nats)
    if not 0 < false_positives < 1:
        raise SettingError(f"`false_positives` must lie between 0 and 1, but got {false_positives}. Usual is 0.01.")
    return float(stats.norm.cdf(stats.norm.ppf(false_positives) + math.sqrt(2 * nats)))


def _check(nats: float) -> None:
    if not nats >= 0:
        raise SettingError(f"`nats` must be zero or positive, but got {nats}. A divergence is never negative.")
