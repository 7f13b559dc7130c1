"""White box: how much someone who holds the weights can still learn."""

import math
from dataclasses import dataclass

from spotlessnet.core.bound import BOUNDS, Bound
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.readout import Reading
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained


@BOUNDS.register(
    "white-box",
    summary="The divergence of scrubbed from retrained weights, over all weights.",
    paper="Golatkar, Achille and Soatto (2020), Eternal Sunshine of the Spotless Net: propositions 1 and 2",
    guarantee="holds for every attack on the weights and what is computed from them",
)
@dataclass(frozen=True)
class WhiteBox(Bound):
    r"""$KL(N(h(w_D), \Sigma) \| N(w_{D_r}, \Sigma_0))$ over all weights.

    Zero if and only if the two Gaussians are the same; infinite without noise. Limits every attack on the weights, and
    by data processing every attack on what is computed from them. For one $D_f$ it is one term of the information
    bound: the divergence *for this request*.
    """

    def __call__(self, scrubbed: Gaussian, reference: Gaussian, trained: Trained, split: Split) -> Reading:
        """Nats over the weights; the note tells the part of the means from that of the covariances."""
        nats = scrubbed.kl(reference)
        if math.isinf(nats):
            return Reading(nats, note="infinite: without noise the weights give everything away")
        moved, spread = parts(scrubbed, reference, nats)
        # Rounding can leave a divergence of two equal Gaussians a hair below zero.
        level = f" + level of noise {reference.price:.3g}" if reference.price else ""
        return Reading(max(nats, 0.0), note=f"means {moved:.3g} + covariances {spread:.3g}{level}")


def parts(scrubbed: Gaussian, reference: Gaussian, nats: float) -> tuple[float, float]:
    r"""The divergence as $\tfrac12\Delta\mu^\top\Sigma_0^{-1}\Delta\mu$ and the rest, which the covariances make.

    What the choice of a level tells is in neither.
    """
    if scrubbed.is_noiseless or reference.is_noiseless:
        return nats, 0.0
    gap = scrubbed.mean.double() - reference.mean.double()
    # The first term of OB Prop. 1, in float64: millions of terms of one sign.
    terms = gap * reference.covariance.double().solve(gap)
    moved = 0.5 * float(terms.nan_to_num(nan=0.0).sum())  # no number only where both sides know the same weight
    return moved, nats - reference.price - moved
