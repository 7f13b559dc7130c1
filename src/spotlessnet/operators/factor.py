"""The Cholesky factor of a kernel: float64, with the least jitter that makes it definite."""

import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import MismatchError, SolveError, check_finite, check_not_negative

JITTERS = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
"""What is tried in turn, relative to the mean of the diagonal."""

ILL = 1e13
"""From this condition number on, a float64 solution has hardly three digits left."""


@dataclass(frozen=True, eq=False)
class Factor:
    r"""$\Theta + r I + j\,\bar d\, I = L L^\top$ with $\bar d$ the mean of the diagonal.

    **Arguments:**

    - `cholesky`: $L$, in float64.
    - `jitter`: $j$, zero if the matrix was definite by itself.
    - `condition`: a lower bound of the condition number, from the diagonal of $L$.
    """

    cholesky: Float[Tensor, "n n"]
    jitter: float
    condition: float

    def solve(self, b: Float[Tensor, "n *k"]) -> Float[Tensor, "n *k"]:
        """The solution for one or several right-hand sides, as columns; computed in float64."""
        if len(b) != len(self.cholesky):
            raise MismatchError(f"A kernel of {len(self.cholesky)} rows cannot be solved for {len(b)} entries.")
        x = torch.cholesky_solve(b.to(self.cholesky).reshape(len(b), -1), self.cholesky)
        return x.reshape(b.shape).to(b.dtype)

    def logdet(self) -> float:
        """The logarithm of the determinant."""
        return float(2 * self.cholesky.diagonal().log().sum())


def factor(theta: Float[Tensor, "n m"], ridge: float = 0.0) -> Factor:
    """Factor `theta + ridge · I` in float64, whatever the format of `theta`.

    **Arguments:**

    - `ridge`: as a rule `count * decay`. Without one, a kernel with repeated rows, or with more entries than the
      network has weights, is singular; jitter then stands in and a warning says how much.
    """
    if theta.ndim != 2 or theta.shape[0] != theta.shape[1]:
        raise MismatchError(f"A kernel to factor must be square, but has shape {tuple(theta.shape)}.")
    check_not_negative("ridge", ridge)
    check_finite("The kernel", theta, "Check the network's outputs.")
    K = theta.to(torch.float64) if theta.device.type != "mps" else theta.cpu().double()
    # Cholesky reads one triangle only; rounding must not depend on which.
    K = 0.5 * (K + K.T)
    # Relative to the diagonal: a jitter in absolute terms is nothing for one network and everything for another.
    scale = float(K.diagonal().mean()) + ridge
    for jitter in JITTERS:
        shifted = K.clone()
        shifted.diagonal().add_(ridge + jitter * scale)
        L, failed = torch.linalg.cholesky_ex(shifted)
        if not int(failed):
            return _told(Factor(L, jitter, _condition(L)))
    # Only for the message, which can then name the ridge that would do.
    least = float(torch.linalg.eigvalsh(K)[0]) + ridge
    raise SolveError(
        f"A kernel must be positive definite to be factored, but with ridge {ridge:.3g} and jitter up to "
        f"{JITTERS[-1]:g} of its mean diagonal {scale:.3g} its least eigenvalue is {least:.3g}. "
        f"Give a ridge above {max(-least, 0):.3g}, leave out repeated rows, or compute the kernel in float64."
    )


def _condition(L: Float[Tensor, "n n"]) -> float:
    d = L.diagonal()
    return float((d.max() / d.min()).square()) if len(d) else 1.0


def _told(made: Factor) -> Factor:
    if made.jitter:
        warnings.warn(
            f"The kernel was not positive definite; {made.jitter:g} of its mean diagonal was added. "
            "Give a ridge to choose it yourself.",
            stacklevel=3,
        )
    elif made.condition > ILL:
        warnings.warn(
            f"The kernel's condition number is at least {made.condition:.1e}; solutions will hold few digits. "
            "Give a larger ridge.",
            stacklevel=3,
        )
    return made
