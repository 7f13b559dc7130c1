"""KL between two Gaussians whose covariances are written out: what is left of the weights' noise in a few outputs."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import check_finite

NEGLIGIBLE = 0.01
"""Share of the means' nats that rounding may hide while the number is still called a bound."""

ROUNDINGS = 4
"""Roundings behind one entry, times their number: what leaves the support by less may be no more than that."""


@dataclass(frozen=True)
class DenseKL:
    """Nats, and what they are made of.

    **Arguments:**

    - `moved`: the part that the means contribute, `spread` the part of the covariances; they add up to `nats`.
    - `rank`, `size`: dimensions in which the reference has noise, and dimensions in all.
    - `outside`: share of the squared shift where the reference has no noise; beyond rounding, `nats` is infinite.
    - `hidden`: nats of the shift that rounding may hide in dimensions without noise, which were left out.
    - `rounded`: by how many nats rounding may have moved what was counted; infinite where it may hide all noise.
    - `is_unsure`: the shift leaves the support by less than its own error, or a dimension that was left out has noise:
      the divergence may, or may not, really be larger.
    """

    nats: float
    moved: float
    spread: float
    rank: int
    size: int
    outside: float = 0.0
    hidden: float = 0.0
    rounded: float = 0.0
    is_unsure: bool = False

    @property
    def is_bound(self) -> bool:
        """Whether the divergence of these two Gaussians cannot be above it: infinite, or with nothing left out."""
        exact = self.hidden <= NEGLIGIBLE * self.moved and self.rounded <= NEGLIGIBLE * max(self.nats, 1.0)
        return math.isinf(self.nats) or (exact and not self.is_unsure)

    @property
    def note(self) -> str:
        """What a reader of the number must know."""
        if math.isinf(self.nats):
            return "infinite: no noise where the outputs differ"
        parts = [f"means {self.moved:.3g} + covariances {self.spread:.3g}"]
        if self.rank < self.size:
            parts.append(f"on the {self.rank} of {self.size} dimensions where the reference has noise")
        if not self.is_bound:
            more, where = self.hidden + self.rounded, " in the others" if self.rank < self.size else ""
            parts.append(f"rounding may hide {more:.3g} nats or more{where}: an estimate, not a bound")
        return "; ".join(parts)


def dense_kl(
    gap: Float[Tensor, " M"],
    covariance: Float[Tensor, "M M"],
    reference: Float[Tensor, "M M"],
    *,
    rounding: float = torch.finfo(torch.float64).eps,
    gap_error: float = 0.0,
) -> DenseKL:
    r"""$KL(N(\mu, \Sigma) \| N(\mu_0, \Sigma_0))$ with $\Delta = \mu - \mu_0$, in float64.

    $$\tfrac12\big[\|m\|^2 + \mathrm{tr}\,A - \log|A| - r\big], \qquad
      W^\top \Sigma_0 W = I_r, \quad m = W^\top\Delta, \quad A = W^\top \Sigma W$$

    `W` whitens the reference on its support, `r` dimensions: all of them unless it is singular. The divergence is
    **infinite** where the shift or the noise leaves that support, and where the noise has a smaller one: outputs that
    are certain on one side only tell the two apart at once. Variances below rounding count as zero, and only what is
    within its own rounding may leave the support: so a number may be infinite without need (variances that differ by
    sixteen orders) but is never too small.

    **Arguments:**

    - `gap`: $\Delta$.
    - `rounding`: relative error of the entries; eigenvalues of the reference below it count as zero.
    - `gap_error`: absolute error of the shift, as a length, where it is more than that of its own entries.
    """
    M = gap.numel()
    for name, tensor in (("shift", gap), ("covariance", covariance), ("reference covariance", reference)):
        check_finite(f"The {name} of the outputs", tensor, "Lower the noise, or check the network.")
    # Double: the formula subtracts a trace and a log-determinant of nearly the same size.
    delta = gap.double()
    S = _symmetric(covariance)
    S0 = _symmetric(reference)
    values, vectors = torch.linalg.eigh(S0)
    # The least variance that can be told from zero.
    least = max(float(values.max()), 0.0) * M * rounding
    kept = values > least
    r = int(kept.sum())
    if not r:
        same = not bool(delta.any()) and not bool(S.any())
        return DenseKL(0.0 if same else math.inf, 0.0, 0.0, 0, M)
    V, rest = vectors[:, kept], vectors[:, ~kept]
    # Whitening first makes the inverse of the reference the identity; inverting it would square its condition number.
    W = V / values[kept].sqrt()
    m = W.T @ delta
    A = _symmetric(W.T @ S @ W)
    moved = 0.5 * float(m.square().sum())
    total = float(delta.square().sum())
    missed = float((rest.T @ delta).square().sum())
    outside = missed / total if total else 0.0
    # Where the least noise that could be told from none would give more nats than all that lies inside, it is infinite.
    hidden = 0.5 * missed / least
    eps = ROUNDINGS * M * rounding
    turn = _turn(S0, V, values[kept], rest, eps)
    beyond = (rest.T @ delta).abs()
    # A shift outside the support counts only beyond its own error: rounding would else make every answer infinite.
    own = _shift_error(delta, V, rest, turn, eps)
    leaves = bool((beyond > own + gap_error).any()) or _noise_differs(S, S0, V, rest, turn, eps)
    noise = float((rest.T @ S @ rest).diagonal().sum())
    # Where the noise has no volume that can be told from none its log-determinant is minus infinity, so are the nats
    # plus.
    logdet = _logdet(A, M * rounding)
    if leaves or hidden > moved or noise > least * max(float(A.trace()), 1.0) or logdet is None:
        return DenseKL(math.inf, moved, math.inf, r, M, outside, hidden)
    spread = max(0.0, 0.5 * (float(A.trace()) - logdet - r))  # negative only by rounding
    rounded = _rounded(m, A, W, S, S0, eps)
    unsure = bool((beyond > own).any())
    return DenseKL(moved + spread, moved, spread, r, M, outside, hidden, rounded, is_unsure=unsure)


def _rounded(
    m: Float[Tensor, " r"],
    A: Float[Tensor, "r r"],
    W: Float[Tensor, "M r"],
    S: Float[Tensor, "M M"],
    S0: Float[Tensor, "M M"],
    eps: float,
) -> float:
    """By how many nats rounded entries of both covariances may have moved the number, along directions that were kept.

    Least variances of the reference that are hardly above rounding whiten to numbers that are mostly error.
    """
    eye = torch.eye(len(m), dtype=m.dtype, device=m.device)
    reference = eps * float(_deviations(S0, W).square().sum()) + float((W.T @ S0 @ W - eye).norm())
    error = eps * float(_deviations(S, W).square().sum()) + reference * float(A.norm())
    inverse = torch.linalg.inv(A)
    share = error * float(torch.linalg.matrix_norm(inverse, 2))
    if not max(share, reference) < 1:
        return math.inf
    # To first order tr((I - A⁻¹) dA) / 2: nothing where both noises are the same. The rest of the logarithm is of
    # second order.
    spread = error * float((eye - inverse).norm()) + share**2 / (1 - share)
    return 0.5 * (float(m.square().sum()) * reference / (1 - reference) + spread)


def _turn(
    S0: Float[Tensor, "M M"],
    V: Float[Tensor, "M r"],
    values: Float[Tensor, " r"],
    rest: Float[Tensor, "M s"],
    eps: float,
) -> Float[Tensor, "s r"]:
    """By how much rounding may turn each direction of the support towards each one outside.

    An entry of a covariance is a sum of products, so it errs by a share of the two standard deviations that it belongs
    to; what eigenvectors miss is measured.
    """
    missed = (rest.T @ (S0 @ V - V * values)).abs()
    return (eps * torch.outer(_deviations(S0, rest), _deviations(S0, V)) + missed) / values


def _deviations(S: Float[Tensor, "M M"], directions: Float[Tensor, "M k"]) -> Float[Tensor, " k"]:
    """The standard deviation along each direction, were the entries independent."""
    return (directions.square().T @ S.diagonal().clamp(min=0)).sqrt()


def _shift_error(
    delta: Float[Tensor, " M"],
    V: Float[Tensor, "M r"],
    rest: Float[Tensor, "M s"],
    turn: Float[Tensor, "s r"],
    eps: float,
) -> Float[Tensor, " s"]:
    """How much shift may seem to leave the support though it does not: that of rounded entries, and of turned axes."""
    return eps * (rest.square().T @ delta.square()).sqrt() + turn @ (V.T @ delta).abs()


def _noise_differs(
    S: Float[Tensor, "M M"],
    S0: Float[Tensor, "M M"],
    V: Float[Tensor, "M r"],
    rest: Float[Tensor, "M s"],
    turn: Float[Tensor, "s r"],
    eps: float,
) -> bool:
    """Whether the two noises differ outside the support by more than rounding: one of them is then not as certain."""
    inside = (V.T @ S @ V).abs() + (V.T @ S0 @ V).abs()
    across = (rest.T @ (S.abs() + S0.abs()) @ V).abs() @ turn.T
    deviations = _deviations(S, rest) + _deviations(S0, rest)
    error = eps * torch.outer(deviations, deviations) + across + across.T + turn @ inside @ turn.T
    return bool(((rest.T @ (S - S0) @ rest).abs() > error).any())


def _symmetric(matrix: Tensor) -> Float[Tensor, "M M"]:
    double = matrix.double()
    return 0.5 * (double + double.T)


def _logdet(A: Float[Tensor, "r r"], rounding: float) -> float | None:
    """The logarithm of the determinant, or nothing where an eigenvalue cannot be told from zero."""
    values = torch.linalg.eigvalsh(A)
    least, most = float(values[0]), float(values[-1])
    return float(values.log().sum()) if least > rounding * most > 0 else None
