"""KL between two Gaussians whose covariances are written out: what is left of the weights' noise in a few outputs."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import check_finite

JITTERS = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
"""Relative ridges tried in turn when the scrubbed covariance will not factor."""

NEGLIGIBLE = 1e-6
"""Share of the shift that may lie outside the reference's support and be put down to rounding."""


@dataclass(frozen=True)
class DenseKL:
    """Nats, and what they are made of.

    **Arguments:**

    - `moved`: the part that the means contribute, `spread` the part of the covariances; they add up to `nats`.
    - `rank`, `size`: dimensions in which the reference has noise, and dimensions in all.
    - `outside`: share of the squared shift where the reference has no noise; not counted in `nats`.
    - `jitter`: ridge that was added to the scrubbed covariance, as a share of its mean diagonal.
    """

    nats: float
    moved: float
    spread: float
    rank: int
    size: int
    outside: float = 0.0
    jitter: float = 0.0

    @property
    def is_bound(self) -> bool:
        """Whether nothing was left out and nothing added."""
        return self.outside <= NEGLIGIBLE and self.jitter == 0.0

    @property
    def note(self) -> str:
        """What a reader of the number must know."""
        if math.isinf(self.nats):
            return "infinite: no noise where the outputs differ"
        parts = [f"means {self.moved:.3g} + covariances {self.spread:.3g}"]
        if self.rank < self.size:
            parts.append(f"on the {self.rank} of {self.size} dimensions where the reference has noise")
        if self.outside > NEGLIGIBLE:
            parts.append(f"{self.outside:.0%} of the shift lies outside them: an estimate, not a bound")
        if self.jitter:
            parts.append(f"jitter {self.jitter:.0e}: an estimate, not a bound")
        return "; ".join(parts)


def dense_kl(
    gap: Float[Tensor, " M"],
    covariance: Float[Tensor, "M M"],
    reference: Float[Tensor, "M M"],
    *,
    rounding: float = torch.finfo(torch.float64).eps,
) -> DenseKL:
    r"""$KL(N(\mu, \Sigma) \| N(\mu_0, \Sigma_0))$ with $\Delta = \mu - \mu_0$, in float64.

    $$\tfrac12\big[\|m\|^2 + \mathrm{tr}\,A - \log|A| - r\big], \qquad
      W^\top \Sigma_0 W = I_r, \quad m = W^\top\Delta, \quad A = W^\top \Sigma W$$

    `W` whitens the reference on its support, `r` dimensions: all of them unless it is singular.

    **Arguments:**

    - `gap`: $\Delta$.
    - `rounding`: relative error of the entries; eigenvalues of the reference below it count as zero.
    """
    M = gap.numel()
    for name, tensor in (("shift", gap), ("covariance", covariance), ("reference covariance", reference)):
        check_finite(f"The {name} of the outputs", tensor, "Lower the noise, or check the network.")
    delta, S, S0 = gap.double(), _symmetric(covariance), _symmetric(reference)
    values, vectors = torch.linalg.eigh(S0)
    kept = values > max(float(values.max()), 0.0) * M * rounding
    r = int(kept.sum())
    if not r:
        same = not bool(delta.any()) and not bool(S.any())
        return DenseKL(0.0 if same else math.inf, 0.0, 0.0, 0, M)
    W = vectors[:, kept] / values[kept].sqrt()
    m, A = W.T @ delta, _symmetric(W.T @ S @ W)
    moved, total = 0.5 * float(m.square().sum()), float(delta.square().sum())
    inside = float((vectors[:, kept].T @ delta).square().sum())
    outside = max(0.0, 1.0 - inside / total) if total else 0.0
    factor, jitter = _factor(A)
    if factor is None:
        return DenseKL(math.inf, moved, math.inf, r, M, outside, jitter)
    logdet = 2.0 * float(factor.diagonal().log().sum())
    spread = max(0.0, 0.5 * (float(A.trace()) - logdet - r))  # negative only by rounding
    return DenseKL(moved + spread, moved, spread, r, M, outside, jitter)


def _symmetric(matrix: Tensor) -> Float[Tensor, "M M"]:
    double = matrix.double()
    return 0.5 * (double + double.T)


def _factor(A: Float[Tensor, "r r"]) -> tuple[Tensor | None, float]:
    """The Cholesky factor and the relative ridge it took, or nothing where there is no noise at all."""
    scale = float(A.diagonal().mean())
    if not scale > 0:
        return None, 0.0
    eye = torch.eye(len(A), dtype=A.dtype, device=A.device)
    for jitter in JITTERS:
        factor, failed = torch.linalg.cholesky_ex(A + jitter * scale * eye)
        if not bool(failed):
            return factor, jitter
    return None, 0.0
