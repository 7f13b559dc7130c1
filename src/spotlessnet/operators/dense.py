"""Functions of small symmetric matrices that are written out: exponentials, powers, clamped eigenvalues."""

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import MismatchError, NumericsError, ResourceError, check_finite, check_positive
from spotlessnet.core.gaussian import Spectrum

LARGEST = 8192
"""The widest matrix that is factored; beyond it an eigendecomposition takes minutes and gigabytes."""


def symmetric_function(matrix: Float[Tensor, "n n"], f: Spectrum, *, largest: int = LARGEST) -> Float[Tensor, "n n"]:
    r"""$f(A) = Q\,f(\Lambda)\,Q^\top$ of a symmetric matrix $A = Q \Lambda Q^\top$."""
    values, vectors = eigenbasis(matrix, largest=largest)
    return (vectors * f(values)) @ vectors.T


def eigenbasis(
    matrix: Float[Tensor, "n n"], *, largest: int = LARGEST
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n n"]]:
    """Eigenvalues, smallest first, and eigenvectors as columns; refuses a matrix too wide, not finite or uneven."""
    n = len(matrix)
    if n > largest:
        raise ResourceError(
            f"A dense matrix may be at most {largest} wide, but this one is {n}. Use products and "
            "`conjugate_gradient` or `low_rank` instead, or raise `largest`."
        )
    check_finite("A dense matrix", matrix, "Check the weights and the data it came from.")
    uneven = float((matrix - matrix.T).abs().max()) if n else 0.0
    scale = float(matrix.abs().max()) if n else 0.0
    if uneven > 1e3 * torch.finfo(matrix.dtype).eps * scale:
        raise NumericsError(
            f"The matrix must be symmetric, but differs from its transpose by {uneven:.2g}. "
            "Average it with its transpose if that is rounding."
        )
    values, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.T))
    return values, vectors


def symmetric_exp(matrix: Float[Tensor, "n n"], time: float = 1.0) -> Float[Tensor, "n n"]:
    """`e^{A t}` of a symmetric matrix."""
    return _finite(symmetric_function(matrix, lambda e: (e * time).exp()), time)


def symmetric_power(matrix: Float[Tensor, "n n"], exponent: float) -> Float[Tensor, "n n"]:
    """`A^exponent` of a positive definite matrix: `-1/2` and `-1/4` give noise, `1/2` its root."""
    values, vectors = eigenbasis(matrix)
    least = float(values.min())
    # Below rounding of the largest eigenvalue a sign means nothing, and a negative power would only magnify it.
    floor = len(values) * torch.finfo(values.dtype).eps * float(values.abs().max())
    if least <= floor and (exponent < 0 or least < -floor):
        raise NumericsError(
            f"A power {exponent:g} needs positive eigenvalues, but the least is {least:.3g}. "
            "Add a ridge, or clamp the eigenvalues with `clamp_eigenvalues`."
        )
    return (vectors * values.clamp(min=0).pow(exponent)) @ vectors.T


def clamp_eigenvalues(
    matrix: Float[Tensor, "n n"], *, least: float | None = None, most: float | None = None
) -> Float[Tensor, "n n"]:
    """The same eigenvectors, eigenvalues held between `least` and `most`."""
    return symmetric_function(matrix, lambda e: e.clamp(min=least, max=most))


def undo_and_redo(
    whole: Float[Tensor, "n n"], retained: Float[Tensor, "m m"], time: float, *, clamp: bool = False
) -> Float[Tensor, "n n"]:
    r"""$e^{-Bt} e^{At}$: run gradient flow on $A$ backwards for a time, then forwards on $B$.

    **Arguments:**

    - `whole`: $A = \nabla^2 L_D$.
    - `retained`: $B = \nabla^2 L_{D_r}$.
    - `clamp`: use $\exp(\mathrm{clamp}(A - B, 1/t)\,t)$ in its place, eigenvalues held below $1/t$; equal where the
      two commute and differ by less than $1/t$, and it cannot overflow.
    """
    check_positive("time", time)
    if whole.shape != retained.shape:
        raise MismatchError(f"Matrices of {len(whole)} and {len(retained)} rows cannot be combined.")
    if clamp:
        # Held below 1/t an eigenvalue grows by e at most: the backward flow amplifies without limit otherwise.
        return symmetric_exp(clamp_eigenvalues(whole - retained, most=1 / time), time)
    return _finite(symmetric_exp(retained, -time) @ symmetric_exp(whole, time), time)


def clamped_off(whole: Float[Tensor, "n n"], retained: Float[Tensor, "n n"], time: float) -> float:
    """By how much `undo_and_redo` may miss where it is clamped: what was cut off, and where the two do not commute."""
    grown = float(eigenbasis(whole - retained)[0][-1]) * time
    between = whole @ retained - retained @ whole
    return max(0.0, grown - 1) + 0.5 * time**2 * float(torch.linalg.matrix_norm(between, 2))


def _finite(matrix: Float[Tensor, "n n"], time: float) -> Float[Tensor, "n n"]:
    check_finite(f"The exponential over a time of {time:g}", matrix, "Shorten the time, or use `clamp=True`.")
    return matrix


def divide(v: Float[Tensor, " P"], matrix: Float[Tensor, "P P"]) -> Float[Tensor, " P"]:
    """`matrix⁻¹ v`, refusing one that is not positive definite."""
    values, vectors = eigenbasis(matrix)
    if float(values[0]) <= 0:
        raise NumericsError(
            f"The curvature must be positive definite, but its least eigenvalue is {float(values[0]):.3g}. "
            "Raise `Newton.damping`."
        )
    return vectors @ ((vectors.T @ v) / values)
