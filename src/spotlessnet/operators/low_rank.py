"""The strongest directions of a curvature, from products alone: block Lanczos."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.covariance import LowRankPlusRidge
from spotlessnet.core.errors import MismatchError, ResourceError, SettingError, check_finite, check_positive
from spotlessnet.core.progress import available, budget, in_use, memory_limit, track
from spotlessnet.operators.room import even_parts
from spotlessnet.operators.solve import Product

TALL = 2**28
"""Entries from which on rows are made orthonormal by their products."""

COLUMNS = {"cpu": 2**21, "cuda": 2**26}
"""Entries that are combined at a time; in the main memory so few that the system need not look for pages each time."""

PIECE = 2**16
"""Entries of a long row that are multiplied at a time."""

BLOCK, PROBES = 16, 4
"""Vectors that are multiplied at once, and random ones for what is left out, where nobody says."""

AT_WORK, AT_LEAST = 4, 3
"""Vectors that one of a block becomes while it is multiplied and made orthonormal to the others; and by the latter
alone, where products take what is left."""


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
    block: int = BLOCK,
    probes: int = PROBES,
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
    - `may_leave_device`: where the budget of the device is too small, explore fewer vectors beyond `rank`; where it is
      too small for those too, keep them in the main memory. Only those that are being multiplied are on the device
      then, and the basis that comes back is not.
    """
    P = int(matrix.size)
    if not 1 <= rank <= P:
        raise SettingError(f"`rank` must lie between 1 and the {P} weights, but got {rank}.")
    if block < 1 or probes < 0:
        raise SettingError(f"`block` must be at least 1 and `probes` at least 0, but got {block} and {probes}.")
    extra = usual_extra(rank, block) if oversample is None else max(oversample, 0)
    near = _like(matrix, like)
    each = float(P * near.element_size())
    multiply: Product = matrix.multiply
    layout = Layout.of(rank, extra, block, P)
    if may_leave_device and near.device.type != "cpu":
        room = budget(near.device, more_helps=True)
        layout = layout.within(room / each, min(extra, rank // 2) if oversample is None else extra)
        if layout.is_long:
            multiply = _few_at_a_time(matrix.multiply, near, each, room + in_use(near.device))
        near = near if layout.stays else near[:0].cpu()
    width, block = layout.width, layout.block
    _check_room(rank, layout.vectors * each, near.device)
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


def usual_extra(rank: int, block: int = BLOCK) -> int:
    """Vectors to explore beyond so many directions, where nobody says."""
    return max(rank // 2 + 10, 4 * block - rank)


def _combine(mix: Float[Tensor, "r m"], Q: Float[Tensor, "m P"]) -> None:
    """`Q[:r] = mix @ Q` in place, some columns at a time: both beside each other may be more than there is room for."""
    step = max(1, COLUMNS.get(Q.device.type, 2**26) // len(Q))
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


class Layout(NamedTuple):
    """How many vectors are explored and multiplied at once, and whether the device that multiplies them holds them."""

    rank: int
    width: int
    block: int
    size: int
    is_long: bool = False
    stays: bool = True

    @staticmethod
    def of(rank: int, extra: int, block: int, size: int) -> "Layout":
        """Whole blocks: a product costs the same for a part of one."""
        return Layout(rank, min(-(-(rank + extra) // block) * block, size), block, size)

    @property
    def vectors(self) -> int:
        """All that are held at once."""
        return self.width + AT_WORK * self.block

    def within(self, room: float, extra: int) -> "Layout":
        """The same where `room` vectors are enough, else smaller blocks with `extra` beyond the rank, or elsewhere.

        Of as many products, smaller blocks find more, and only take longer where a device has room for large ones.
        """
        if self.vectors <= room:
            return self
        less = Layout.of(self.rank, extra, max(1, self.block // 2), self.size)
        return less._replace(is_long=True, stays=less.width + AT_LEAST * less.block <= room)


def _few_at_a_time(multiply: Product, near: Tensor, each: float, limit: float) -> Product:
    """Products of long vectors, wherever they lie: a few at a time are on the device, with all else within `limit`."""

    def product(rows: Tensor) -> Tensor:
        found = torch.empty_like(rows)
        with memory_limit(limit):
            few = int(budget(near.device) / 2 / (3 * each))  # a vector, its sum and what is summed
            for part in even_parts(len(rows), few):
                found[part] = multiply(rows[part].to(near))
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
        if W.untyped_storage().data_ptr() == Q.untyped_storage().data_ptr():
            W = W.clone()  # what comes back as it was is not to be written over
        check_finite("The product with the matrix", W, "Check the weights and the data for NaN.")
        seen = torch.zeros(have, have - old, dtype=torch.float64, device=Q.device)
        for _again in range(2):  # once leaves rounding of the size of what was taken away
            h = _inner(W, Q[:have])  # few rows on the left: half the time of the other way round
            W = _without(W, h, Q[:have])
            seen += h.T
        T[:have, old:have], T[old:have, :have] = seen, seen.T
        outside = _inner(W, W).double()
        if have == width:
            break
        fresh = min(block, width - have)
        W = _spanning(W, outside, fresh, float(T.abs().max()), noise)
        Q[have : have + fresh] = _orthonormal_to(Q[:have], W)
        old, have = have, have + fresh
    return Q, T, outside


def _spanning(
    W: Float[Tensor, "b P"], gram: Float[Tensor, "b b"], count: int, scale: float, noise: _Noise
) -> Float[Tensor, "c P"]:
    """Rows of length one that span `W`, strongest first; random ones that go on searching where that is exhausted."""
    squares, Y = torch.linalg.eigh(gram)
    lengths, Y = squares.clamp(min=0).sqrt().flip(0)[:count], Y.flip(1)[:, :count]
    # Shorter than the rounding of the products is no direction but noise, and dividing by its length would make it one.
    least = max(100 * torch.finfo(W.dtype).eps * scale, torch.finfo(W.dtype).tiny)
    rows = _mixed((Y / lengths.clamp(min=least)).T.to(W), W)
    empty = lengths <= least
    rows[empty] = noise.rows(int(empty.sum()), W.shape[1])
    return rows


def _orthonormal_to(Q: Float[Tensor, "m P"], rows: Float[Tensor, "c P"]) -> Float[Tensor, "c P"]:
    """Orthonormal rows of the same span but for what lies in that of `Q`."""
    # Once leaves rounding where much was taken away; of long rows the caller has taken it before, twice.
    for _ in range(2 if rows.numel() < TALL else 1):
        rows = _orthonormal(_without(rows, _inner(rows, Q), Q))
    return rows


def _orthonormal(rows: Float[Tensor, "b P"]) -> Float[Tensor, "b P"]:
    """Orthonormal rows of the same span; none may be nearly a mixture of the others."""
    if rows.numel() < TALL:
        return torch.linalg.qr(rows.T)[0].T
    # Householder's way goes over all rows once for each of them. Their products alone lose digits, hence twice.
    for _ in range(2):
        L = torch.linalg.cholesky(_inner(rows, rows).double())
        rows = _mixed(torch.linalg.solve_triangular(L, torch.eye(len(L)).to(L), upper=False).to(rows), rows)
    return rows


def _without(rows: Float[Tensor, "b P"], h: Float[Tensor, "b m"], Q: Float[Tensor, "m P"]) -> Float[Tensor, "b P"]:
    """`rows - h Q`; long ones are written over, for memory beside them would have to be found and cleared first."""
    if rows.numel() < TALL:
        return torch.addmm(rows, h, Q, alpha=-1)
    return rows.addmm_(h, Q, alpha=-1)


def _mixed(mix: Float[Tensor, "c b"], rows: Float[Tensor, "b P"]) -> Float[Tensor, "c P"]:
    """`mix @ rows`; long ones are written over, too."""
    if rows.numel() < TALL:
        return mix @ rows
    _combine(mix, rows)
    return rows[: len(mix)]


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
