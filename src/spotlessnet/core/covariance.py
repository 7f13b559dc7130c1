"""Symmetric matrices over the weights that are never written out: covariances, and curvatures alike.

Each knows its own eigenvalues, so `map` turns a curvature `F` into the covariance `F^{-1/2}` in one line.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import MismatchError, NumericsError
from spotlessnet.core.noise import NoiseSource, as_source

Spectrum = Callable[[Tensor], Tensor]


class Covariance(ABC):
    """A symmetric matrix `[P, P]` with known eigenvalues."""

    @property
    @abstractmethod
    def size(self) -> int:
        """`P`."""

    @abstractmethod
    def map(self, f: Spectrum) -> "Covariance":
        """The same eigenvectors with `f` of the eigenvalues."""

    @abstractmethod
    def multiply(self, v: Float[Tensor, "*K P"]) -> Float[Tensor, "*K P"]:
        """`Σ v`, for one vector or rows of vectors."""

    @abstractmethod
    def diagonal(self) -> Float[Tensor, " P"]:
        """The diagonal of `Σ`."""

    @abstractmethod
    def logdet(self) -> float:
        """`log |Σ|`."""

    def solve(self, v: Float[Tensor, "*K P"]) -> Float[Tensor, "*K P"]:
        """`Σ⁻¹ v`."""
        return self.map(torch.reciprocal).multiply(v)

    def inverse(self) -> "Covariance":
        """`Σ⁻¹`."""
        return self.map(torch.reciprocal)

    def trace(self) -> float:
        """The sum of the eigenvalues."""
        return float(self.diagonal().double().sum())

    def draw(self, noise: NoiseSource | torch.Generator) -> Float[Tensor, " P"]:
        """One sample of `N(0, Σ)`; in float64 where the noise must protect."""
        source = as_source(noise)
        # Where noise must protect, its low bits must not depend on the weights, as those of a float32 product do.
        root = (self.double() if source.protects else self).map(lambda e: e.clamp(min=0).sqrt())
        return root.multiply(source.unit(self.size, root._like))

    def scaled(self, factor: float) -> "Covariance":
        """`factor · Σ`."""
        return self.map(lambda e: factor * e)

    def pushforward(self, jacobian: Float[Tensor, "M P"]) -> Float[Tensor, "M M"]:
        """`J Σ Jᵀ`, what the noise does to `M` linear readings."""
        return jacobian @ self.multiply(jacobian).T

    @abstractmethod
    def double(self) -> "Covariance":
        """The same in float64."""

    @property
    @abstractmethod
    def _like(self) -> Tensor:
        """A tensor of the matrix's number format and device."""


@dataclass(frozen=True, eq=False)
class NoNoise(Covariance):
    """No noise at all."""

    count: int
    like: Tensor

    @staticmethod
    def at(weights: Float[Tensor, " P"]) -> "NoNoise":
        """No noise around these weights."""
        return NoNoise(weights.numel(), weights.new_zeros(()))

    @property
    def size(self) -> int:
        return self.count

    def map(self, f: Spectrum) -> "Covariance":
        value = f(self.like)
        if not bool(value.isfinite()):
            raise NumericsError("A Gaussian without noise has no inverse covariance. Add noise, or skip the bound.")
        # A function that lifts zero, such as adding a ridge, turns nothing into noise on every weight.
        return Diagonal(value.expand(self.count).clone()) if bool(value) else self

    def multiply(self, v: Float[Tensor, "*K P"]) -> Float[Tensor, "*K P"]:
        return torch.zeros_like(v)

    def diagonal(self) -> Float[Tensor, " P"]:
        return self.like.new_zeros(self.count)

    def logdet(self) -> float:
        return -math.inf

    def draw(self, noise: NoiseSource | torch.Generator) -> Float[Tensor, " P"]:
        return self.diagonal()

    def double(self) -> "NoNoise":
        return NoNoise(self.count, self.like.double())

    @property
    def _like(self) -> Tensor:
        return self.like


@dataclass(frozen=True, eq=False)
class Diagonal(Covariance):
    """Independent noise on each weight."""

    variance: Float[Tensor, " P"]

    @property
    def size(self) -> int:
        return self.variance.numel()

    def map(self, f: Spectrum) -> "Diagonal":
        return Diagonal(f(self.variance))

    def multiply(self, v: Float[Tensor, "*K P"]) -> Float[Tensor, "*K P"]:
        return v * self.variance

    def diagonal(self) -> Float[Tensor, " P"]:
        return self.variance

    def logdet(self) -> float:
        return float(self.variance.double().log().sum())

    def double(self) -> "Diagonal":
        return Diagonal(self.variance.double())

    @property
    def _like(self) -> Tensor:
        return self.variance


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
        left, right = (None if side is None else side.double() for side in (self.left, self.right))
        return Block(left, right, self.values.double())


@dataclass(frozen=True, eq=False)
class Kronecker(Covariance):
    """One block per parameter, each with Kronecker-factored eigenvectors, in the order of the flat vector."""

    blocks: tuple[Block, ...]

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

    def double(self) -> "LowRankPlusRidge":
        return LowRankPlusRidge(self.basis.double(), self.values.double(), self.ridge)

    @property
    def _like(self) -> Tensor:
        return self.values


def trace_of_product(a: Covariance, b: Covariance) -> float:
    """`tr(A B)` by structure, never by writing either matrix out."""
    if a.size != b.size:
        raise MismatchError(f"Matrices over {a.size} and {b.size} weights cannot be multiplied.")
    for one, other in ((a, b), (b, a)):
        if isinstance(one, NoNoise):
            return 0.0
        if isinstance(one, Diagonal):
            return float((one.variance.double() * other.diagonal().double()).sum())
    for one, other in ((a, b), (b, a)):
        if isinstance(one, LowRankPlusRidge):
            seen = (other.multiply(one.basis.T) * one.basis.T).sum(dim=1)
            return one.ridge * other.trace() + float((one.values.double() * seen.double()).sum())
    if isinstance(a, Kronecker) and isinstance(b, Kronecker):
        if [p.values.numel() for p in a.blocks] != [q.values.numel() for q in b.blocks]:
            raise MismatchError("The blocks of two Kronecker matrices must cover the same parameters.")
        return sum(_block_trace(p, q) for p, q in zip(a.blocks, b.blocks, strict=True))
    raise MismatchError(f"No rule for the trace of {type(a).__name__} times {type(b).__name__}.")


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
