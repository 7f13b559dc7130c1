"""Margin-KL: how far apart the margins of scrubbed and of retrained models lie, row by row, for few models."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy import special
from torch import Tensor

from spotlessnet.core.errors import DataError, MismatchError
from spotlessnet.core.readout import Reading

Divergence = Callable[[Tensor, Tensor], Tensor]
"""Margins of scrubbed models `[S, T]` and of retrained ones `[R, T]` to a number per row `[T]`."""


def margin_kl(scrubbed: Float[Tensor, "S T"], retrained: Float[Tensor, "R T"]) -> Float[Tensor, " T"]:
    r"""$KL(N(m, s^2) \,\|\, N(m_0, s_0^2))$ between Gaussians fitted to each row's margins, in nats.

    $$\log\frac{s_0}{s} + \frac{s^2 + (m - m_0)^2}{2 s_0^2} - \frac12$$

    An estimate from samples, biased upward: equal distributions read 0.375 with 8 models a side and 0.0205 with 100.
    Compare it with its floor (`against_null`, or `margin_kl_floor`); it bounds nothing.
    """
    check_margins(scrubbed, retrained, least=2)
    m, m0 = scrubbed.double().mean(dim=0), retrained.double().mean(dim=0)
    v, v0 = scrubbed.double().var(dim=0), retrained.double().var(dim=0)
    # Margins that never vary would divide by zero; this is far below any variance of real ones.
    tiny = 1e-12 * (1 + m0.square())
    v, v0 = v.maximum(tiny), v0.maximum(tiny)
    return 0.5 * ((v0 / v).log() + (v + (m - m0).square()) / v0 - 1)


def margin_kl_floor(scrubbed: int, retrained: int) -> float:
    r"""What `margin_kl` reads on average when both sides are samples of one Gaussian; infinite below four models.

    $$\tfrac12\Big[\big(1 + \tfrac1n + \tfrac1{n_0}\big)\tfrac{n_0 - 1}{n_0 - 3} - 1 + h(n_0) - h(n)\Big], \qquad
      h(n) = \psi\big(\tfrac{n-1}2\big) - \log\tfrac{n-1}2$$

    >>> round(margin_kl_floor(8, 8), 4), round(margin_kl_floor(100, 100), 4)
    (0.375, 0.0205)
    """
    n, n0 = scrubbed, retrained
    if n0 < 4 or n < 2:
        return math.inf

    def h(count: int) -> float:
        return float(special.digamma((count - 1) / 2)) - math.log((count - 1) / 2)

    return 0.5 * ((1 + 1 / n + 1 / n0) * (n0 - 1) / (n0 - 3) - 1 + h(n0) - h(n))


@dataclass(frozen=True)
class AgainstNull:
    """A divergence, and what models that differ by chance alone would give.

    **Arguments:**

    - `mean`, `high`: over rows, the mean and the 95th percentile of the divergence.
    - `floor`, `floor_high`: the same for models shuffled between the two sides, averaged over shuffles.
    - `p_value`: how often shuffled models have a mean at least as large; never zero.
    """

    mean: float
    high: float
    floor: float
    floor_high: float
    p_value: float

    def reading(self) -> Reading:
        """The mean, with the floor in its note."""
        return Reading(self.mean, note=f"floor {self.floor:.3g}, p = {self.p_value:.3g}")


def against_null(
    divergence: Divergence,
    scrubbed: Float[Tensor, "S T"],
    retrained: Float[Tensor, "R T"],
    *,
    draws: int = 199,
    seed: int = 0,
) -> AgainstNull:
    """A divergence beside its null: models are shuffled between the two sides, whole, so that rows stay tied.

    **Arguments:**

    - `divergence`: `margin_kl` or `klom`.
    - `draws`: number of shuffles; the smallest p-value is `1 / (draws + 1)`.
    """
    both = torch.cat([scrubbed, retrained])
    size = len(scrubbed)
    seen = divergence(scrubbed, retrained)
    generator = torch.Generator().manual_seed(seed)
    null = []
    for _ in range(draws):
        mixed = both[torch.randperm(len(both), generator=generator)]
        shuffled = divergence(mixed[:size], mixed[size:])
        null.append((float(shuffled.mean()), float(shuffled.quantile(0.95))))
    means, highs = np.array(null).T
    mean = float(seen.mean())
    beyond = int((means >= mean - 1e-12 * max(1.0, abs(mean))).sum())
    return AgainstNull(
        mean, float(seen.quantile(0.95)), float(means.mean()), float(highs.mean()), (1 + beyond) / (1 + draws)
    )


def check_margins(first: Float[Tensor, "S T"], second: Float[Tensor, "R U"], *, least: int) -> None:
    """Raise unless both sides speak about the same rows, with enough models each."""
    if first.shape[1] != second.shape[1]:
        raise MismatchError(
            f"Both sides must hold margins of the same rows, but got {first.shape[1]} and {second.shape[1]}."
        )
    if min(len(first), len(second)) < least:
        raise DataError(
            f"At least {least} models a side are needed, but got {len(first)} and {len(second)}. Use more seeds."
        )
