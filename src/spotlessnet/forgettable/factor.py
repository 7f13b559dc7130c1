"""The Cholesky factor of a ridge problem, and its rank-k update for examples that come or go."""

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import SolveError

PANEL = 256
"""Columns of the factor that are updated at once: matrix products large enough to be fast, small corners."""


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


def update_(L: Float[Tensor, "d d"], X: Float[Tensor, "k d"], sign: int) -> bool:
    r"""Make $L$ the factor of $L L^\top \pm X^\top X$ in place; `False`, with $L$ spoilt, where that is not definite.

    With $Z = L^{-1} X^\top$ the new factor is $L\,T$ where $T T^\top = I \pm Z Z^\top$. For panels $j$ of rows of $Z$,

    $$S_j = \Big(I \pm \sum_{i<j} Z_i^\top Z_i\Big)^{-1}, \quad T_{jj} T_{jj}^\top = I \pm Z_j S_j Z_j^\top, \quad
      T_{ij} = \pm Z_i S_j Z_j^\top T_{jj}^{-\top} \;(i > j),$$

    so that $L'_{:,j} = L_{:,j} T_{jj} \pm R_j\, S_j Z_j^\top T_{jj}^{-\top}$ with
    $R_j = X^\top - \sum_{i \le j} L_{:,i} Z_i$. Corners of all panels are factored in one batch; the rest is matrix
    products, $O(k d^2)$ in all.

    **Arguments:**

    - `X`: the examples, scaled by the roots of their weights.
    - `sign`: 1 to add them, -1 to take them away.
    """
    d, k = len(L), len(X)
    if not k:
        return True
    panel = min(PANEL, d)
    J = -(-d // panel)
    Z = torch.linalg.solve_triangular(L, X.T, upper=False)
    # Zero rows at the end change nothing: their corners are unit matrices.
    Zp = torch.cat([Z, Z.new_zeros(J * panel - d, k)]).view(J, panel, k)
    small = Zp.mT @ Zp
    before = small.cumsum(0) - small
    eye = torch.eye(k, dtype=L.dtype, device=L.device)
    S_root, bad = torch.linalg.cholesky_ex(eye + sign * before)
    last = torch.linalg.cholesky_ex(eye + sign * small.sum(0))[1]
    if bool(bad.any()) or bool(last):
        return False
    V = torch.linalg.solve_triangular(S_root, Zp.mT, upper=False)  # V_jᵀ V_j = Z_j S_j Z_jᵀ
    corner = sign * (V.mT @ V)
    corner.diagonal(dim1=1, dim2=2).add_(1)
    T, bad = torch.linalg.cholesky_ex(corner)
    if bool(bad.any()):
        return False
    SZ = torch.linalg.solve_triangular(S_root.mT, V, upper=True)  # S_j Z_jᵀ
    B = sign * torch.linalg.solve_triangular(T, SZ.mT, upper=False).mT  # [J, k, panel]
    R = X.T.clone()
    for j in range(J):
        a, b = j * panel, min((j + 1) * panel, d)
        column = L[a:, a:b]
        R[a:].addmm_(column, Z[a:b], alpha=-1)
        new = column @ T[j, : b - a, : b - a]
        new.addmm_(R[a:], B[j][:, : b - a])
        # Above the diagonal only rounding is left.
        new[: b - a].tril_()
        L[a:, a:b] = new
    return bool(L.diagonal().isfinite().all()) and bool((L.diagonal() > 0).all())


def worth_updating(features: int, examples: int) -> bool:
    """Whether updating costs less than factoring anew: about 4kd² + 256d² operations against d³/3."""
    return 12 * examples + 3 * PANEL < features
