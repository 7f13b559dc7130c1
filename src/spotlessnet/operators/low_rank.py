"""The strongest directions of a curvature, from products alone: block Lanczos."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.covariance import LowRankPlusRidge
from spotlessnet.core.errors import MismatchError, ResourceError, SettingError, check_finite, check_positive
from spotlessnet.core.progress import available, budget, track
from spotlessnet.operators.solve import Product

TALL = 2**28
"""Entries from which on rows are made orthonormal by their products."""

COLUMNS = 2**26
"""Entries that are combined at a time."""

PIECE = 2**16
"""Entries of a long row that are multiplied at a time."""

AT_WORK = 4
"""Vectors that one of a block becomes while it is multiplied and made orthonormal to the others."""


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
        # What lies outside the span is at most as curved as the weakest direction kept; taking just that as the guess
        # keeps the spread of eigenvalues after preconditioning smallest.
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
    may_leave_device: bool = False,
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
    - `may_leave_device`: keep vectors in the main memory where the budget of the device is too small for them; only
      those that are being multiplied are on the device then, and the basis that comes back is not.
    """
    P = int(matrix.size)
    if not 1 <= rank <= P:
        raise SettingError(f"`rank` must lie between 1 and the {P} weights, but got {rank}.")
    if block < 1 or probes < 0:
        raise SettingError(f"`block` must be at least 1 and `probes` at least 0, but got {block} and {probes}.")
    extra = max(rank // 2 + 10, 4 * block - rank) if oversample is None else max(oversample, 0)
    # Whole blocks: a product costs the same for a part of one.
    width = min(-(-(rank + extra) // block) * block, P)
    near = _like(matrix, like)
    each = float(P * near.element_size())
    multiply: Product = matrix.multiply
    room = (width + AT_WORK * block) * each
    if may_leave_device and near.device.type != "cpu" and room > budget(near.device, more_helps=True):
        multiply, near = _from_afar(matrix.multiply, near, each), near[:0].cpu()
    _check_room(rank, room, near.device)
    noise = _Noise(generator, near)
    with torch.no_grad():
        Q, T, outside = _krylov(multiply, P, width, min(block, width), noise, label)
        theta, Y = torch.linalg.eigh(T)
        # `eigh` sorts upwards. Below zero is rounding: the matrix is positive semi-definite.
        theta, Y = theta.flip(0).clamp(min=0), Y.flip(1)
        # In the Lanczos relation only the last block leaves the space, so its share of a Ritz vector is the residual.
        tail = Y[-len(outside) :]
        residuals = (tail * (outside @ tail)).sum(dim=0).clamp(min=0).sqrt()
        probes = min(probes, P - width)
        beyond = _trace_outside(multiply, Q, probes, noise) if width < P else 0.0
        # What is left out is bent at most like the next Ritz value with its residual; kept pairs miss by theirs.
        worst = torch.cat([residuals[:rank], (theta + residuals)[rank : rank + 1]]).max()
        _combine(Y[:, :rank].T.to(Q), Q)
        # A view keeps what was explored beside it: of long vectors that is less than a copy beside them.
        U = (Q[:rank].clone() if Q.numel() < TALL else Q[:rank]).T
    return LowRank(
        basis=U,
        values=theta[:rank].to(Q),
        residuals=residuals[:rank].to(Q),
        error=float(worst),
        remainder=float(theta[rank:].sum()) + beyond,
        products=width + probes,
    )


def _combine(mix: Float[Tensor, "r m"], Q: Float[Tensor, "m P"]) -> None:
    """`Q[:r] = mix @ Q` in place, some columns at a time: both beside each other may be more than there is room for."""
    step = max(1, COLUMNS // len(Q))
    for i in range(0, Q.shape[1], step):
        Q[: len(mix), i : i + step] = mix @ Q[:, i : i + step]


@dataclass(frozen=True)
class _Noise:
    generator: torch.Generator
    like: Tensor

    def rows(self, count: int, size: int) -> Float[Tensor, "K P"]:
        device = self.generator.device
        if device == self.like.device or device.type == "cpu":
            return torch.randn(count, size, generator=self.generator, device=device).to(self.like)
        # One by one: the device that draws has no room for all of them.
        found = self.like.new_empty(count, size)
        for row in found:
            row.copy_(torch.randn(size, generator=self.generator, device=device))
        return found


def _from_afar(multiply: Product, near: Tensor, each: float) -> Product:
    """Products of vectors that lie in the main memory: a few at a time go to the device and come back."""

    def product(rows: Tensor) -> Tensor:
        few = max(1, min(len(rows), int(budget(near.device) / 2 / (3 * each))))  # a vector, its sum and what is summed
        found = torch.empty_like(rows)
        for i in range(0, len(rows), few):
            found[i : i + few] = multiply(rows[i : i + few].to(near))
        return found

    return product


def _check_room(rank: int, bytes: float, device: torch.device) -> None:
    free = available(device)
    if bytes > free:
        raise ResourceError(
            f"{rank} directions need {bytes / 2**30:.3g} GiB while they are found, but {free / 2**30:.3g} GiB are "
            "free. Ask for a smaller rank."
        )


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
    # A random block has a share of every eigenvector with probability one.
    Q[:block] = _orthonormal(noise.rows(block, P))
    old, have = 0, block
    for _ in track(range(-(-width // block)), label):
        W = multiply(Q[old:have])
        if W.shape != Q[old:have].shape:
            raise MismatchError(f"The product must keep the shape {(have - old, P)}, but gave {tuple(W.shape)}.")
        check_finite("The product with the matrix", W, "Check the weights and the data for NaN.")
        seen = torch.zeros(have, have - old, dtype=torch.float64, device=Q.device)
        for _again in range(2):  # once leaves rounding of the size of what was taken away
            h = _inner(Q[:have], W)
            W = W - h.T @ Q[:have]
            seen += h
        T[:have, old:have], T[old:have, :have] = seen, seen.T
        outside = _inner(W, W).double()
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
    # Shorter than the rounding of the products is no direction but noise, and dividing by its length would make it one.
    least = max(100 * torch.finfo(W.dtype).eps * scale, torch.finfo(W.dtype).tiny)
    rows = (Y / lengths.clamp(min=least)).T.to(W) @ W
    empty = lengths <= least
    rows[empty] = noise.rows(int(empty.sum()), W.shape[1])
    for _ in range(2):
        rows = _orthonormal(rows - _inner(rows, Q) @ Q)
    return rows


def _orthonormal(rows: Float[Tensor, "b P"]) -> Float[Tensor, "b P"]:
    """Orthonormal rows of the same span; none may be nearly a mixture of the others."""
    if rows.numel() < TALL:
        return torch.linalg.qr(rows.T)[0].T
    # Householder's way goes over all rows once for each of them. Their products alone lose digits, hence twice.
    for _ in range(2):
        L = torch.linalg.cholesky(_inner(rows, rows).double())
        rows = torch.linalg.solve_triangular(L, torch.eye(len(L)).to(L), upper=False).to(rows) @ rows
    return rows


def _inner(a: Float[Tensor, "m P"], b: Float[Tensor, "k P"]) -> Float[Tensor, "m k"]:
    """`a @ b.T`; of long rows in the main memory piece by piece, which all cores can share."""
    if a.device.type != "cpu" or max(a.numel(), b.numel()) < TALL:
        return a @ b.T
    whole = a.shape[1] // PIECE * PIECE
    left, right = (rows[:, :whole].unflatten(1, (-1, PIECE)).transpose(0, 1) for rows in (a, b))
    return torch.bmm(left, right.transpose(1, 2)).sum(dim=0) + a[:, whole:] @ b[:, whole:].T


def _trace_outside(multiply: Product, Q: Float[Tensor, "m P"], probes: int, noise: _Noise) -> float:
    """An estimate of the trace of `A` on the complement of `Q`; unknown without probes."""
    if not probes:
        return math.nan
    g = noise.rows(probes, Q.shape[1])
    # Hutchinson's estimate on the complement: E gᵀAg is the trace of A there.
    g = g - _inner(g, Q) @ Q
    return float((g * multiply(g)).sum(dtype=torch.float64)) / probes
