"""Gaussian differential privacy: what noise on released weights proves over a sequence of requests.

Dong, Roth and Su (2022), *Gaussian Differential Privacy*.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import erfcx
from scipy.stats import norm

from spotlessnet.core.errors import SettingError, check_positive

MARGIN = 1 + 1e-9
"""By how much $\\delta$ is taken larger than computed: more than its rounding."""


def delta_of(mu: float, epsilon: float) -> float:
    r"""$\delta(\varepsilon) = \Phi(-\varepsilon/\mu + \mu/2) - e^\varepsilon\,\Phi(-\varepsilon/\mu - \mu/2)$.

    >>> round(delta_of(1.0, 1.0), 4)
    0.1269
    """
    if mu <= 0:
        return 0.0
    if mu < 1:
        return _near(mu, epsilon)
    return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon + norm.logcdf(-epsilon / mu - mu / 2)))


def _near(mu: float, epsilon: float) -> float:
    r"""The same for small $\mu$, where the two terms agree in nearly all their digits.

    With Mills' ratio $R(t) = (1 - \Phi(t))/\varphi(t)$, whose derivative is $tR - 1$, and
    $x = \varepsilon/\mu - \mu/2$,

    $$\delta = \varphi(x)\,(R(x) - R(x + \mu)) = \varphi(x) \int_x^{x+\mu} (1 - t R(t))\,dt.$$
    """
    x = epsilon / mu - mu / 2
    nodes, by = np.polynomial.legendre.leggauss(16)
    t = x + mu * (nodes + 1) / 2
    inside = 1 - t * math.sqrt(math.pi / 2) * erfcx(t / math.sqrt(2))
    return float(norm.pdf(x) * mu / 2 * (by @ inside))


def _least(enough: Callable[[float], bool]) -> float:
    """The least number that is enough, from above: halving ends where float64 has nothing between."""
    high = 1.0
    while not enough(high):
        high *= 2
        if high == math.inf:
            return high
    while enough(high / 2) and high > 1e-300:
        high /= 2
    low = high / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


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
    if delta_of(mu, 0.0) * MARGIN <= delta:
        return 0.0
    return _least(lambda epsilon: delta_of(mu, epsilon) * MARGIN <= delta)


def sigma_for(bound: float, epsilon: float, delta: float) -> float:
    """The least noise under which a distance of `bound` gives (ε, δ)."""
    check_positive("bound", bound)
    check_positive("epsilon", epsilon)
    if not 0 < delta < 1:
        raise SettingError(f"`delta` must be between 0 and 1, but got {delta}.")
    # In units of the distance, so that what is sought is 1/mu.
    return bound * _least(lambda sigma: delta_of(1 / sigma, epsilon) * MARGIN <= delta)
