"""The strongest directions of a curvature, from products alone, and what is left when a cohort's share is taken out."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.covariance import LowRankPlusRidge
from spotlessnet.core.errors import MismatchError, SettingError, check_finite, check_not_negative, check_positive
from spotlessnet.core.progress import track
from spotlessnet.operators.dense import clamp_eigenvalues
from spotlessnet.operators.solve import Product


@dataclass(frozen=True, eq=False)
class LowRank:
    r"""The `r` largest eigenpairs of a positive semi-definite matrix, $A \approx U \Lambda U^\top$.

    **Arguments:**

    - `basis`, `values`: $U$ with orthonormal columns, and $\Lambda$, largest first.
    - `residuals`: $\|A u_i - \lambda_i u_i\|$; an eigenvalue lies that near to each $\lambda_i$.
    - `error`: an estimate of $\|A - U \Lambda U^\top\|_2$, the curvature of the strongest direction left out.
    - `remainder`: an estimate of $\mathrm{tr}(A - U \Lambda U^\top)$, the curvature left out in all.
    - `products`: how many products with `A` it took.
    """

    basis: Float[Tensor, "P r"]
    values: Float[Tensor, " r"]
    residuals: Float[Tensor, " r"]
    error: float
    remainder: float
    products: int

    @property
    def rank(self) -> int:
        """The number of kept directions."""
        return len(self.values)

    @property
    def root(self) -> Float[Tensor, "P r"]:
        """`R` with `R Rᵀ = U Λ Uᵀ`."""
        return self.basis * self.values.clamp(min=0).sqrt()

    def plus_ridge(self, ridge: float) -> LowRankPlusRidge:
        """`U Λ Uᵀ + ridge I`, ready to solve with, to draw from and to take roots of."""
        check_positive("ridge", ridge, "A low rank leaves directions without curvature.")
        return LowRankPlusRidge(self.basis, self.values, ridge)

    def preconditioner(self, ridge: float) -> LowRankPlusRidge:
        r"""For solves with `A + ridge I`: exact inside the span, the smallest kept eigenvalue outside it.

        The condition number falls from $(\lambda_1 + \rho)/\rho$ to about $(\lambda_r + \rho)/\rho$.
        """
        check_positive("ridge", ridge, "A low rank leaves directions without curvature.")
        least = float(self.values.min()) if self.rank else 0.0
        return LowRankPlusRidge(self.basis, self.values - least, ridge + max(least, 0.0))


def low_rank(
    matrix: Any,
    rank: int,
    *,
    generator: torch.Generator,
    like: Float[Tensor, " P"] | None = None,
    oversample: int | None = None,
    block: int = 16,
    probes: int = 4,
    label: str = "finding the strongest directions",
) -> LowRank:
    r"""The top eigenpairs by block Lanczos with full reorthogonalisation.

    Needs `rank + oversample` products, in blocks, and as many vectors of memory. Rayleigh-Ritz on the Krylov space of a
    random block reaches a given error with a fraction of the products of subspace iteration.

    **Arguments:**

    - `matrix`: has `.size` and `.multiply` of rows `[K, P]`; positive semi-definite, without its ridge.
    - `rank`: how many directions to keep.
    - `generator`: where the random block comes from.
    - `like`: a vector that says device and number format; the matrix's own (`matrix.weights`) or float32 otherwise.
    - `oversample`: how many vectors to explore beyond `rank`; `rank // 2 + 10`, and at least four blocks, unless said.
    - `block`: vectors multiplied at once; at least as many as an eigenvalue may have copies (the number of outputs).
    - `probes`: random vectors that estimate the remainder's trace, with one product each.
    """
    P = int(matrix.size)
    if not 1 <= rank <= P:
        raise SettingError(f"`rank` must lie between 1 and the {P} weights, but got {rank}.")
    if block < 1 or probes < 0:
        raise SettingError(f"`block` must be at least 1 and `probes` at least 0, but got {block} and {probes}.")
    extra = max(rank // 2 + 10, 4 * block - rank) if oversample is None else max(oversample, 0)
    width = min(-(-(rank + extra) // block) * block, P)
    noise = _Noise(generator, _like(matrix, like))
    with torch.no_grad():
        Q, T, outside = _krylov(matrix.multiply, P, width, min(block, width), noise, label)
        theta, Y = torch.linalg.eigh(T)
        theta, Y = theta.flip(0).clamp(min=0), Y.flip(1)
        tail = Y[-len(outside) :]
        residuals = (tail * (outside @ tail)).sum(dim=0).clamp(min=0).sqrt()
        probes = min(probes, P - width)
        beyond = _trace_outside(matrix.multiply, Q, probes, noise) if width < P else 0.0
        worst = torch.cat([residuals[:rank], (theta + residuals)[rank : rank + 1]]).max()
        U = (Y[:, :rank].T.to(Q) @ Q).T
    return LowRank(
        basis=U,
        values=theta[:rank].to(Q),
        residuals=residuals[:rank].to(Q),
        error=float(worst),
        remainder=float(theta[rank:].sum()) + beyond,
        products=width + probes,
    )


@dataclass(frozen=True, eq=False)
class Removal:
    r"""$H_r + \rho I$ after a cohort's curvature was taken out of $H_D$.

    **Arguments:**

    - `curvature`: ready to solve with; every eigenvalue is at least the ridge.
    - `least`: the least eigenvalue of $H_D - H_f$ in the small space before damping; clearly negative means that
      $H_D$ did not contain the cohort, or was kept too coarsely.
    - `damped`: how many negative eigenvalues were raised to zero.
    - `dropped`: the share of $\mathrm{tr}\,H_f$ lost when the cohort's root was cut to `columns`.
    """

    curvature: LowRankPlusRidge
    least: float
    damped: int
    dropped: float


def without_cohort(
    kept: LowRank,
    root: Float[Tensor, "P m"],
    *,
    ridge: float,
    matrix: Any = None,
    outside: float = 0.0,
    columns: int | None = None,
) -> Removal:
    r"""$H_r = H_D - H_f$ from the kept eigenbasis of $H_D$ and the cohort's own $H_f = R R^\top$, in the span of both.

    Let $Q$ span what $R$ has outside $U$. The kept eigenbasis knows two blocks of $H_D$: $\Lambda$ on $U$, and nothing
    between $U$ and $Q$. So two blocks of $H_r$ are known too,

    $$S = \Lambda - U^\top H_f U, \qquad C = -U^\top H_f Q,$$

    and the third, $Q^\top H_r Q$, was dropped with the rest of $H_D$. Subtracting $H_f$ from nothing there would turn
    the matrix negative, and leaving it alone would ignore $C$; it becomes $C^\top S^{-1} C$, the smallest that keeps
    $H_r$ positive semi-definite, held below the strongest curvature left out (`kept.error`), plus `outside`.
    Eigenvalues that are negative all the same are raised to zero and counted. Memory is that of `r + m` vectors.

    **Arguments:**

    - `kept`: from `low_rank` of $H_D$, without ridge.
    - `root`: $R$, Jacobian rows of the cohort times the root of the output Hessian, as columns;
      `low_rank(H_f, ...).root` where it is too wide to write out.
    - `ridge`: $\rho$ of the retained data, `N_r · decay`.
    - `matrix`: $H_D$ without ridge, if products with it are at hand: the third block is then exact, for one product
      with each column of $Q$.
    - `outside`: curvature that $H_r$ has on $Q$ beyond the smallest; the mean eigenvalue left out is a good guess.
    - `columns`: keep only so many singular directions of `root`.
    """
    check_positive("ridge", ridge, "A low rank leaves directions without curvature.")
    check_not_negative("outside", outside)
    if root.shape[0] != kept.basis.shape[0]:
        raise MismatchError(f"The cohort has {root.shape[0]} weights, but the kept basis {kept.basis.shape[0]}.")
    check_finite("The cohort's root", root, "Check its rows for NaN.")
    U, r = kept.basis, kept.rank
    with torch.no_grad():
        R, dropped = _strongest(root.to(U), columns)
        Q = _complement(R, U)
        V = torch.cat([U, Q], dim=1)
        inside = (V.T @ R).double()
        M = -inside @ inside.T
        M[:r, :r] += kept.values.double().diag()
        rounding = 100 * torch.finfo(U.dtype).eps * max(float(kept.values.max()), float(M.abs().max()))
        if matrix is None:
            M[r:, r:] = _smallest(M[:r, :r], M[:r, r:], rounding, kept.error)
            M[r:, r:].diagonal().add_(outside)
        elif Q.shape[1]:
            HQ = (matrix.multiply(Q.T) @ V).double()
            M[r:, :] += HQ
            M[:r, r:] += HQ[:, :r].T
        values, Y = torch.linalg.eigh(0.5 * (M + M.T))
        found = values > 0
        basis = V @ Y[:, found].to(V)
    return Removal(
        LowRankPlusRidge(basis, values[found].to(V), ridge),
        least=float(values.min()),
        damped=int((values < -rounding).sum()),
        dropped=dropped,
    )


def _strongest(root: Float[Tensor, "P m"], columns: int | None) -> tuple[Float[Tensor, "P n"], float]:
    """The root cut to its strongest singular directions, and the share of its trace that was lost."""
    if columns is None or columns >= root.shape[1]:
        return root, 0.0
    if columns < 1:
        raise SettingError(f"`columns` must be at least 1, but got {columns}.")
    squares, Y = torch.linalg.eigh((root.T @ root).double())
    lost = float(squares[:-columns].clamp(min=0).sum() / squares.clamp(min=0).sum())
    return root @ Y[:, -columns:].to(root), lost


def _complement(root: Float[Tensor, "P m"], basis: Float[Tensor, "P r"]) -> Float[Tensor, "P q"]:
    """Orthonormal columns that span what `root` has outside `basis`."""
    Q, least = root, 100 * torch.finfo(root.dtype).eps * float(root.norm())
    for _ in range(3):  # short columns lose their right angles in one pass
        Q = Q - basis @ (basis.T @ Q)
        # By the small matrix of their products: several times faster than Householder's way for tall columns.
        squares, Y = torch.linalg.eigh((Q.T @ Q).double())
        lengths = squares.clamp(min=0).sqrt()
        seen = lengths > least
        Q, least = Q @ (Y[:, seen] / lengths[seen]).to(Q), 0.0
    return Q


def _smallest(S: Float[Tensor, "r r"], C: Float[Tensor, "r q"], rounding: float, most: float) -> Float[Tensor, "q q"]:
    """`Cᵀ S⁻¹ C`, eigenvalues held below `most`."""
    values, vectors = torch.linalg.eigh(S)
    half = (vectors.T @ C) / values.clamp(min=rounding).sqrt().unsqueeze(1)
    return clamp_eigenvalues(half.T @ half, most=most) if half.shape[1] else half.T @ half


@dataclass(frozen=True)
class _Noise:
    generator: torch.Generator
    like: Tensor

    def rows(self, count: int, size: int) -> Float[Tensor, "K P"]:
        drawn = torch.randn(count, size, generator=self.generator, device=self.generator.device)
        return drawn.to(self.like)


def _like(matrix: Any, like: Tensor | None) -> Tensor:
    if like is not None:
        return like
    trained = getattr(matrix, "trained", matrix)
    weights = getattr(trained, "weights", None)
    return weights if isinstance(weights, Tensor) else torch.empty(0)


def _krylov(
    multiply: Product, P: int, width: int, block: int, noise: _Noise, label: str
) -> tuple[Float[Tensor, "m P"], Float[Tensor, "m m"], Float[Tensor, "b b"]]:
    """Orthonormal rows `Q` of a Krylov space, `T = Q A Qᵀ`, and the Gram matrix of what the last block sees beyond."""
    Q = noise.like.new_empty(width, P)
    T = torch.zeros(width, width, dtype=torch.float64, device=Q.device)
    outside = T[:0, :0]
    Q[:block] = torch.linalg.qr(noise.rows(block, P).T)[0].T
    old, have = 0, block
    for _ in track(range(-(-width // block)), label):
        W = multiply(Q[old:have])
        if W.shape != Q[old:have].shape:
            raise MismatchError(f"The product must keep the shape {(have - old, P)}, but gave {tuple(W.shape)}.")
        check_finite("The product with the matrix", W, "Check the weights and the data for NaN.")
        seen = torch.zeros(have, have - old, dtype=torch.float64, device=Q.device)
        for _again in range(2):  # once leaves rounding of the size of what was taken away
            h = Q[:have] @ W.T
            W = W - h.T @ Q[:have]
            seen += h
        T[:have, old:have], T[old:have, :have] = seen, seen.T
        outside = (W @ W.T).double()
        if have == width:
            break
        fresh = min(block, width - have)
        Q[have : have + fresh] = _new_rows(W, outside, fresh, Q[:have], float(T.abs().max()), noise)
        old, have = have, have + fresh
    return Q, T, outside


def _new_rows(
    W: Float[Tensor, "b P"],
    gram: Float[Tensor, "b b"],
    count: int,
    Q: Float[Tensor, "m P"],
    scale: float,
    noise: _Noise,
) -> Float[Tensor, "c P"]:
    """Orthonormal rows that span `W`, strongest first; random ones that go on searching where that is exhausted."""
    squares, Y = torch.linalg.eigh(gram)
    lengths, Y = squares.clamp(min=0).sqrt().flip(0)[:count], Y.flip(1)[:, :count]
    least = max(100 * torch.finfo(W.dtype).eps * scale, torch.finfo(W.dtype).tiny)
    rows = (Y / lengths.clamp(min=least)).T.to(W) @ W
    empty = lengths <= least
    rows[empty] = noise.rows(int(empty.sum()), W.shape[1])
    for _ in range(2):
        rows = rows - (rows @ Q.T) @ Q
        rows = torch.linalg.qr(rows.T)[0].T
    return rows


def _trace_outside(multiply: Product, Q: Float[Tensor, "m P"], probes: int, noise: _Noise) -> float:
    """An estimate of the trace of `A` on the complement of `Q`; unknown without probes."""
    if not probes:
        return math.nan
    g = noise.rows(probes, Q.shape[1])
    g = g - (g @ Q.T) @ Q
    return float((g * multiply(g)).sum(dtype=torch.float64)) / probes
