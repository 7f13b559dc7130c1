"""The adversarial query: an input made to give away as much as one answer can.

Golatkar, Achille and Soatto (2020), *Forgetting Outside the Box*, section 3.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.bounds.black_box import white_box_nats
from spotlessnet.core.errors import NeedError, NumericsError, check_positive
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.progress import track
from spotlessnet.core.trained import Trained
from spotlessnet.operators.precision import in_format


class Query(NamedTuple):
    """An input, what it gives away, and what the input it was made from gave away, in nats."""

    x: Tensor
    nats: float
    before: float


def adversarial_query(
    scrubbed: Gaussian,
    reference: Gaussian,
    trained: Trained,
    x: Float[Tensor, "..."],
    *,
    radius: float,
    steps: int = 50,
) -> Query:
    r"""Climb the black-box divergence of one answer, over inputs no entry of which moves by more than `radius`.

    $$\max_{\|x' - x\|_\infty \le r}
      KL\big(N(f_{h(w)}(x'), J\Sigma J^\top) \,\|\, N(f_{w_r}(x'), J_0\Sigma_0J_0^\top)\big)$$

    By steps along the sign of the gradient that grow shorter; the best input on the way is kept. What it finds is a
    lower limit of what the worst query gives away. As for `BlackBox`, in float64 and capped at the white box.

    **Arguments:**

    - `x`: one input, without the axis of rows.
    - `radius`: $r$.
    """
    check_positive("radius", radius)
    check_positive("steps", steps)
    if scrubbed.is_noiseless or reference.is_noiseless:
        raise NeedError("Without noise every answer that differs gives away everything. Give both Gaussians noise.")
    limit, trained = white_box_nats(scrubbed, reference), in_format(trained, torch.float64)
    scrubbed, reference = (
        replace(side, mean=side.mean.double(), covariance=side.covariance.double()) for side in (scrubbed, reference)
    )
    centre = x.detach().to(trained.weights)
    at = best = centre
    before = most = float(one_answer(scrubbed, reference, trained, centre).detach())
    for step in track(range(steps), "making a query"):
        here = at.clone().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(one_answer(scrubbed, reference, trained, here), here)
        # Along the sign, the steepest way in the ∞-norm; a quarter of the box at first, so that any corner is in reach.
        moved = at + 0.25 * radius * (1 - step / steps) * slope.sign()
        at = torch.minimum(torch.maximum(moved, centre - radius), centre + radius)
        nats = float(one_answer(scrubbed, reference, trained, at).detach())
        if nats > most:
            best, most = at, nats
    return Query(best, min(most, limit), min(before, limit))


def one_answer(scrubbed: Gaussian, reference: Gaussian, trained: Trained, x: Float[Tensor, "..."]) -> Float[Tensor, ""]:
    """The divergence of the answer about one input, differentiable in it."""

    def seen(gaussian: Gaussian) -> tuple[Tensor, Tensor]:
        network = trained.at(gaussian.mean, gaussian.buffers)

        def f(w: Tensor) -> Tensor:
            return network.outputs(x.unsqueeze(0), w).flatten()

        w = gaussian.mean.to(trained.weights)
        J = torch.func.jacrev(f)(w)
        return f(w).double(), (J @ gaussian.covariance.multiply(J).T).double()

    (m, S), (m0, S0) = seen(scrubbed), seen(reference)
    # `cholesky_ex` raises nothing, so that the refusal below can say what to do.
    (L, failed), (L0, failed0) = torch.linalg.cholesky_ex(S), torch.linalg.cholesky_ex(S0)
    if bool(failed) or bool(failed0):
        raise NumericsError(
            "The noise must reach every output of a query, but it does not. Add noise to the last layer."
        )
    # With S = L Lᵀ and S₀ = L₀ L₀ᵀ: tr(S₀⁻¹S) = ‖L₀⁻¹L‖², and half a log determinant is a sum of logs.
    gap, spread = torch.linalg.solve_triangular(L0, torch.cat([(m - m0).unsqueeze(1), L], dim=1), upper=False).split(
        [1, len(m)], dim=1
    )
    logs = (L0.diagonal().log() - L.diagonal().log()).sum()
    return 0.5 * (gap.square().sum() + spread.square().sum() - len(m)) + logs + reference.price
