"""The inverse of a ridge problem's matrix, kept from request to request, and its rank-k update.

An inverse rather than a Cholesky factor: all that a request does with it is then matrix products, which a GPU does at
the speed of its memory, where triangular systems of a few columns wait for one row after another. It need not be
accurate: weights are corrected with residuals that carry no rounding, and certified without trusting it.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import SolveError

LEAST_PIVOT = 1e-6
"""Examples that leave less than this of a direction would leave an inverse of too few digits."""


def cholesky(gram: Float[Tensor, "d d"], ridge: int) -> Float[Tensor, "d d"]:
    r"""$L$ with $L L^\top = G + rI$."""
    A = gram.clone()
    A.diagonal().add_(ridge)
    L, failed = torch.linalg.cholesky_ex(A)
    if int(failed):
        raise SolveError(
            f"The moments plus the ridge {ridge} must be positive definite, but are not (minor {int(failed)}). "
            "Take a larger ridge."
        )
    return L


def solve(L: Float[Tensor, "d d"], b: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
    """The solution by two triangular systems."""
    return torch.cholesky_solve(b, L)


def inverse(gram: Float[Tensor, "d d"], ridge: int) -> Float[Tensor, "d d"]:
    r"""$P = (G + rI)^{-1}$."""
    return torch.cholesky_inverse(cholesky(gram, ridge))


def update_(
    P: Float[Tensor, "d d"], X: Float[Tensor, "k d"], sign: int, rest: Float[Tensor, "k C"]
) -> Float[Tensor, "d C"] | None:
    r"""Make $P$ the inverse of $P^{-1} \pm X^\top X$ in place, and give the step of the weights that goes with it.

    With $U = P X^\top$ and $M = I \pm X U$ (Woodbury):

    $$P' = P \mp U M^{-1} U^\top, \qquad P' X^\top = U M^{-1}.$$

    Weights that solved the old problem miss the new one by $\pm X^\top (T - XW)$, so they move by
    $\pm U M^{-1} (T - XW)$. `None`, with $P$ as it was, where too little would be left for the digits of float64.

    **Arguments:**

    - `X`: the examples, scaled by the roots of their weights.
    - `sign`: 1 to add them, -1 to take them away.
    - `rest`: $T - XW$, scaled alike.
    """
    U = P @ X.T
    M = sign * (X @ U)
    M.diagonal().add_(1)
    K, failed = torch.linalg.cholesky_ex(M)
    # The pivots are what the examples leave of their own directions; one look at the device for both questions.
    if not bool((failed == 0) & (K.diagonal().square().amin() > LEAST_PIVOT)):
        return None
    Y = torch.linalg.solve_triangular(K, U.T, upper=False)
    P.addmm_(Y.T, Y, alpha=-sign)
    return sign * (Y.T @ torch.linalg.solve_triangular(K, rest, upper=False))


def worth_updating(features: int, examples: int) -> bool:
    """Whether updating costs less than inverting anew: about 4kd² operations against d³ and more."""
    return 4 * examples < features
