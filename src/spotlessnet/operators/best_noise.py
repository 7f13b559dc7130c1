"""The best noise against an error of the step whose covariance is known.

Golatkar, Achille and Soatto (2020), *Eternal Sunshine of the Spotless Net*, Proposition 4, for any error.
"""

from jaxtyping import Float
from torch import Tensor

from spotlessnet.operators.dense import symmetric_function, symmetric_power


def best_noise(
    curvature: Float[Tensor, "P P"], error: Float[Tensor, "P P"], strength: float = 1.0
) -> Float[Tensor, "P P"]:
    r"""The $\Sigma$ with $\Sigma B \Sigma = \lambda \Sigma_h$, which minimises
    $\tfrac12\mathrm{tr}(B\Sigma) + \tfrac\lambda2\mathrm{tr}(\Sigma^{-1}\Sigma_h)$.

    $$\Sigma = B^{-1/2}\big(\lambda\, B^{1/2}\Sigma_h B^{1/2}\big)^{1/2} B^{-1/2}$$

    For $\Sigma_h = \sigma_h^2 I$ it is $\sqrt{\lambda\sigma_h^2}\,B^{-1/2}$.

    **Arguments:**

    - `curvature`: $B$, positive definite.
    - `error`: $\Sigma_h$, of $h(w) - w_{D_r}$; where it is singular the noise is, too.
    - `strength`: $\lambda$.
    """
    root, back = symmetric_power(curvature, 0.5), symmetric_power(curvature, -0.5)
    middle = strength * root @ error @ root
    # Products of symmetric matrices are symmetric up to rounding only, which `eigh` would not see.
    inner = symmetric_function(0.5 * (middle + middle.T), lambda e: e.clamp(min=0).sqrt())
    noise = back @ inner @ back
    return 0.5 * (noise + noise.T)
