"""Structured covariances and curvatures, never written out: Kronecker factors, and low rank plus a ridge.

Each knows its own eigenvalues, so `map` turns a curvature `F` into the covariance `F^{-1/2}` in one line.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import MismatchError, NumericsError
from spotlessnet.core.gaussian import Covariance, Spectrum


def orthonormal(basis: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
    """The same columns in float64, at right angles to all its digits.

    Columns of fewer digits are so to theirs, and inverses lift what is amiss by the range of the eigenvalues.
    """
    if basis.dtype == torch.float64:
        return basis
    Q, R = torch.linalg.qr(basis.double())
    return Q * R.diagonal().sign()


@dataclass(frozen=True, eq=False)
class Block:
    """`(L ⊗ R) diag(values) (L ⊗ R)ᵀ` over one parameter; a missing factor is the identity."""

    left: Float[Tensor, "r r"] | None
    right: Float[Tensor, "c c"] | None
    values: Float[Tensor, "r c"]

    def rotate(self, v: Float[Tensor, "K r c"]) -> Float[Tensor, "K r c"]:
        """Into the eigenbasis, `Lᵀ V R`."""
        v = v if self.left is None else self.left.T @ v
        return v if self.right is None else v @ self.right

    def unrotate(self, v: Float[Tensor, "K r c"]) -> Float[Tensor, "K r c"]:
        """Out of the eigenbasis, `L V Rᵀ`."""
        v = v if self.left is None else self.left @ v
        return v if self.right is None else v @ self.right.T

    def double(self) -> "Block":
        """The same in float64."""
        left, right = (None if side is None else orthonormal(side) for side in (self.left, self.right))
        return Block(left, right, self.values.double())


@dataclass(frozen=True, eq=False)
class Kronecker(Covariance):
    """One block per parameter, each with Kronecker-factored eigenvectors, in the order of the flat vector."""

    blocks: tuple[Block, ...]
    structure: ClassVar[int] = 2

    @property
    def size(self) -> int:
        return sum(b.values.numel() for b in self.blocks)

    def map(self, f: Spectrum) -> "Kronecker":
        return Kronecker(tuple(Block(b.left, b.right, f(b.values)) for b in self.blocks))

    def multiply(self, v: Float[Tensor, "*K P"]) -> Float[Tensor, "*K P"]:
        pieces = v.reshape(-1, v.shape[-1]).split([b.values.numel() for b in self.blocks], dim=1)
        done = []
        for block, piece in zip(self.blocks, pieces, strict=True):
            turned = block.rotate(piece.reshape(-1, *block.values.shape))
            done.append(block.unrotate(turned * block.values).reshape(len(piece), -1))
        return torch.cat(done, dim=1).reshape(v.shape)

    def diagonal(self) -> Float[Tensor, " P"]:
        return torch.cat([_block_diagonal(b).reshape(-1) for b in self.blocks])

    def logdet(self) -> float:
        return float(sum(b.values.double().log().sum() for b in self.blocks))

    def trace_with(self, other: Covariance) -> float:
        if not isinstance(other, Kronecker):
            return other.trace_with(self)
        if [p.values.numel() for p in self.blocks] != [q.values.numel() for q in other.blocks]:
            raise MismatchError("The blocks of two Kronecker matrices must cover the same parameters.")
        return sum(_block_trace(p, q) for p, q in zip(self.blocks, other.blocks, strict=True))

    def double(self) -> "Kronecker":
        return Kronecker(tuple(b.double() for b in self.blocks))

    @property
    def _like(self) -> Tensor:
        return self.blocks[0].values


def _block_diagonal(block: Block) -> Float[Tensor, "r c"]:
    d = block.values if block.left is None else block.left.square() @ block.values
    return d if block.right is None else d @ block.right.square().T


@dataclass(frozen=True, eq=False)
class LowRankPlusRidge(Covariance):
    """`ridge · I + U diag(values) Uᵀ` with orthonormal `U`; `values` may be negative down to `-ridge`."""

    basis: Float[Tensor, "P r"]
    values: Float[Tensor, " r"]
    ridge: float
    structure: ClassVar[int] = 1

    @staticmethod
    def dense(matrix: Float[Tensor, "P P"]) -> "LowRankPlusRidge":
        """Any symmetric matrix, by its full eigenbasis: for small problems."""
        values, vectors = torch.linalg.eigh(matrix)
        return LowRankPlusRidge(vectors, values, 0.0)

    @property
    def size(self) -> int:
        return self.basis.shape[0]

    @property
    def rank(self) -> int:
        """The number of kept directions."""
        return self.basis.shape[1]

    def map(self, f: Spectrum) -> "LowRankPlusRidge":
        # A full basis leaves no complement, so its ridge stays zero whatever f(0) would be.
        full = self.rank == self.size
        outside = 0.0 if full else float(f(torch.tensor(self.ridge, dtype=torch.float64)))
        if not math.isfinite(outside):
            raise NumericsError(
                f"{self.size - self.rank} directions have the eigenvalue {self.ridge:g}, where the function is not "
                "finite. Give the matrix a ridge."
            )
        # Eigenvalues are `values + ridge` inside and `ridge` outside, so `f` acts on the sums.
        return LowRankPlusRidge(self.basis, f(self.values + self.ridge) - outside, outside)

    def multiply(self, v: Float[Tensor, "*K P"]) -> Float[Tensor, "*K P"]:
        # From right to left: `P·r` operations, where the written-out matrix would take `P²`.
        return self.ridge * v + ((v @ self.basis) * self.values) @ self.basis.T

    def diagonal(self) -> Float[Tensor, " P"]:
        return self.ridge + self.basis.square() @ self.values

    def logdet(self) -> float:
        inside = float((self.values.double() + self.ridge).log().sum())
        outside = self.size - self.rank
        if not outside:
            return inside
        return inside + outside * math.log(self.ridge) if self.ridge > 0 else -math.inf

    def trace_with(self, other: Covariance) -> float:
        # `tr(U diag(values) Uᵀ B)` needs `B` on the kept directions only.
        seen = (other.multiply(self.basis.T) * self.basis.T).sum(dim=1)
        return self.ridge * other.trace() + float((self.values.double() * seen.double()).sum())

    def double(self) -> "LowRankPlusRidge":
        return LowRankPlusRidge(orthonormal(self.basis), self.values.double(), self.ridge)

    @property
    def _like(self) -> Tensor:
        return self.values


def _block_trace(a: Block, b: Block) -> float:
    """`Σ_ij values_i (Qᵀ Q')²_ij values'_j`; squares of a Kronecker product are a Kronecker product of squares."""
    for one, other in ((a, b), (b, a)):
        if one.left is None and one.right is None:
            return float((one.values.reshape(-1) * _block_diagonal(other).reshape(-1)).double().sum())
    left = _overlap(a.left, b.left, a.values.shape[0], a.values)
    right = _overlap(a.right, b.right, a.values.shape[1], a.values)
    return float((a.values * (left @ b.values @ right.T)).double().sum())


def _overlap(p: Tensor | None, q: Tensor | None, size: int, like: Tensor) -> Float[Tensor, "n n"]:
    eye = torch.eye(size, dtype=like.dtype, device=like.device)
    return ((eye if p is None else p).T @ (eye if q is None else q)).square()
