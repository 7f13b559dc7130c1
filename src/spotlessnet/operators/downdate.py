"""A downdate of a curvature: what is left of its kept directions when a cohort's own share is taken out."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.covariance import LowRankPlusRidge
from spotlessnet.core.errors import MismatchError, check_finite, check_positive
from spotlessnet.operators.dense import clamp_eigenvalues
from spotlessnet.operators.low_rank import LowRank


@dataclass(frozen=True, eq=False)
class Removal:
    r"""$H_r + \rho I$ after a cohort's curvature was taken out of $H_D$.

    **Arguments:**

    - `curvature`: ready to solve with; every eigenvalue is at least the ridge.
    - `least`: the least eigenvalue of $H_D - H_f$ in the small space before damping; clearly negative means that
      $H_D$ did not contain the cohort, or was kept too coarsely.
    - `damped`: how many negative eigenvalues were raised to zero.
    - `dropped`: the share of $\mathrm{tr}\,H_f$ that the caller had cut off the cohort's root.
    """

    curvature: LowRankPlusRidge
    least: float
    damped: int
    dropped: float = 0.0


def without_cohort(kept: LowRank, root: Float[Tensor, "P m"], *, ridge: float) -> Removal:
    r"""$H_r = H_D - H_f$ from the kept eigenbasis of $H_D$ and the cohort's own $H_f = R R^\top$, in the span of both.

    Let $Q$ span what $R$ has outside $U$. The kept eigenbasis knows two blocks of $H_D$: $\Lambda$ on $U$, and nothing
    between $U$ and $Q$. So two blocks of $H_r$ are known too,

    $$S = \Lambda - U^\top H_f U, \qquad C = -U^\top H_f Q,$$

    and the third, $Q^\top H_r Q$, was dropped with the rest of $H_D$. Subtracting $H_f$ from nothing there would turn
    the matrix negative, and leaving it alone would ignore $C$; it becomes $C^\top S^{-1} C$, the smallest that keeps
    $H_r$ positive semi-definite, held below the strongest curvature left out (`kept.error`).
    Eigenvalues that are negative all the same are raised to zero and counted. Memory is that of `r + m` vectors.

    **Arguments:**

    - `kept`: from `low_rank` of $H_D$, without ridge.
    - `root`: $R$, Jacobian rows of the cohort times the root of the output Hessian, as columns;
      `low_rank(H_f, ...).root` where it is too wide to write out.
    - `ridge`: $\rho$ of the retained data, `N_r · decay`.
    """
    check_positive("ridge", ridge, "A low rank leaves directions without curvature.")
    if root.shape[0] != kept.basis.shape[0]:
        raise MismatchError(f"The cohort has {root.shape[0]} weights, but the kept basis {kept.basis.shape[0]}.")
    check_finite("The cohort's root", root, "Check its rows for NaN.")
    U, r = kept.basis, kept.rank
    with torch.no_grad():
        R = root.to(U)
        # Rows, not columns: vectors of all weights then lie in one piece.
        V = torch.cat([U.T, _complement(R, U)])
        # Double from here on: H_D − H_f cancels almost wholly where the cohort made most of the curvature.
        inside = (V @ R).double()
        M = -inside @ inside.T
        M[:r, :r] += kept.values.double().diag()
        # The products above were rounded in the weights' own format; less than this cannot be told from zero.
        rounding = 100 * torch.finfo(U.dtype).eps * max(float(kept.values.max()), float(M.abs().max()))
        M[r:, r:] = _smallest(M[:r, :r], M[:r, r:], rounding, kept.error)
        values, Y = torch.linalg.eigh(0.5 * (M + M.T))
        found = values > 0
        basis = (Y[:, found].T.to(V) @ V).T
    return Removal(
        LowRankPlusRidge(basis, values[found].to(V), ridge),
        least=float(values.min()),
        damped=int((values < -rounding).sum()),
    )


def _complement(root: Float[Tensor, "P m"], basis: Float[Tensor, "P r"]) -> Float[Tensor, "q P"]:
    """Orthonormal rows that span what the columns of `root` have outside those of `basis`."""
    Q, least = root.T, 100 * torch.finfo(root.dtype).eps * float(root.norm())
    for _ in range(3):  # short ones lose their right angles in one pass
        Q = Q - (Q @ basis) @ basis.T
        # By the small matrix of their products: several times faster than Householder's way for long rows.
        squares, Y = torch.linalg.eigh((Q @ Q.T).double())
        lengths = squares.clamp(min=0).sqrt()
        seen = lengths > least
        Q, least = (Y[:, seen] / lengths[seen]).T.to(Q) @ Q, 0.0
    return Q


def _smallest(S: Float[Tensor, "r r"], C: Float[Tensor, "r q"], rounding: float, most: float) -> Float[Tensor, "q q"]:
    """`Cᵀ S⁻¹ C`, eigenvalues held below `most`."""
    values, vectors = torch.linalg.eigh(S)
    half = (vectors.T @ C) / values.clamp(min=rounding).sqrt().unsqueeze(1)
    return clamp_eigenvalues(half.T @ half, most=most) if half.shape[1] else half.T @ half
