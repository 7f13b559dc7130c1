"""Gaussian differential privacy: what noise on released weights proves over a sequence of requests.

Dong, Roth and Su (2022), *Gaussian Differential Privacy*.
"""

import math
from collections.abc import Sequence

from scipy.optimize import brentq
from scipy.stats import norm

from spotlessnet.core.errors import SettingError, check_positive


def delta_of(mu: float, epsilon: float) -> float:
    r"""$\delta(\varepsilon) = \Phi(-\varepsilon/\mu + \mu/2) - e^\varepsilon\,\Phi(-\varepsilon/\mu - \mu/2)$.

    >>> round(delta_of(1.0, 1.0), 4)
    0.1269
    """
    if mu <= 0:
        return 0.0
    return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon + norm.logcdf(-epsilon / mu - mu / 2)))


def epsilon_of(bounds: Sequence[float], sigma: float, delta: float) -> float:
    r"""The $\varepsilon$ of a whole sequence of releases, each with fresh Gaussian noise.

    A release after a request is $W + \sigma n$ with $\|W - W^*\| \le b_t$, so it is $b_t/\sigma$-GDP against solving
    anew, and the sequence is $\mu = \sqrt{\sum_t b_t^2}/\sigma$-GDP.

    **Arguments:**

    - `bounds`: $b_t$, the certified distance of each request.
    - `sigma`: the noise's standard deviation in each weight. It must be far above the spacing of the numbers that are
      handed out (6e-8 of a weight in float32), or what is handed out is no Gaussian.
    - `delta`: the probability with which the statement may fail.
    """
    check_positive("sigma", sigma)
    if not all(0 <= b < math.inf for b in bounds):
        raise SettingError("The bounds must be finite and not negative: take them from certificates.")
    if not 0 < delta < 1:
        raise SettingError(f"`delta` must be between 0 and 1, but got {delta}.")
    mu = math.sqrt(sum(b * b for b in bounds)) / sigma
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of(mu, high) > delta:
        high *= 2
    return float(brentq(lambda e: delta_of(mu, e) - delta, 0.0, high))


def sigma_for(bound: float, epsilon: float, delta: float) -> float:
    """The least noise under which a distance of `bound` gives (ε, δ)."""
    check_positive("bound", bound)
    check_positive("epsilon", epsilon)
    if not 0 < delta < 1:
        raise SettingError(f"`delta` must be between 0 and 1, but got {delta}.")
    low = high = 1.0
    while delta_of(low, epsilon) > delta:
        low /= 2
    while delta_of(high, epsilon) < delta:
        high *= 2
    mu = brentq(lambda m: delta_of(m, epsilon) - delta, low, high)
    # Rounding must not make it less than is needed.
    return bound / float(mu) * (1 + 1e-6)
