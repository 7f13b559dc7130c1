"""Mixed-linear scrubbing: user weights forget exactly, up to a residual that is measured and bounded.

Golatkar, Achille, Ravichandran, Polito and Soatto (2021), *Mixed-Privacy Forgetting in Deep Networks*.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.deprecated import OldName
from spotlessnet.core.errors import NeedError, SettingError, check_not_negative, check_positive
from spotlessnet.core.gaussian import Covariance, Diagonal, Gaussian, Measured, NoNoise
from spotlessnet.core.gaussian_dp import epsilon_of
from spotlessnet.core.scrub import METHODS, Notes, Scrub, Sizes, Work
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.cost import kernel_cost
from spotlessnet.operators.linear_response import EXPECTED_ITERATIONS, cheaper_form
from spotlessnet.training.mixed import PASSES, UserNetwork, settle


@dataclass(frozen=True)
class MixedLinearFacts(Measured):
    """What is left of the gradient, and what that certifies: the distance to retraining and, with noise, nats."""

    under: ClassVar[str] = "mixed_linear"

    residual: float | None = None
    distance: float | None = None
    products: int | None = None
    zeroed: bool | None = None
    nats: float | None = None


@METHODS.register(
    "mixed-linear",
    paper="Golatkar, Achille, Ravichandran, Polito and Soatto (2021), Mixed-Privacy Forgetting in Deep Networks",
    needs=("retained data", "user weights"),
    guarantee="certified distance to retraining, and nats with noise",
)
@dataclass(frozen=True)
class MixedLinear(Scrub):
    r"""One Newton step on user weights, which for a linear network and squared loss is retraining.

    $$h(u) = u - H_r^{-1}\nabla L_{D_r}(u), \qquad \Sigma = \sigma^2 I, \qquad H_r = \tfrac1{N_r}J_r^\top J_r + \mu I$$

    The gradient $r$ that is left (in sum form) certifies $\|h(u) - u^*\| \le \|r\| / (N_r\mu)$, and with noise
    $KL \le \|r\|^2 / (2\sigma^2 (N_r\mu)^2)$ nats against retraining with the same noise. When every user row goes,
    $u = 0$, at no cost: so this method may be left with nothing.

    **Arguments:**

    - `noise`: $\sigma$, the standard deviation on each user weight; zero for none.
    - `tolerance`: how small the gradient must become, as a share of the one at the beginning.
    """

    least_kept: ClassVar[float] = 0.0

    noise: float = 0.0
    tolerance: float = 1e-6
    max_iterations: int = 5000
    batch_size: int = 256

    batch = OldName("batch_size")

    def __post_init__(self) -> None:
        check_not_negative("MixedLinear.noise", self.noise, "Zero adds none.")
        for name in ("tolerance", "max_iterations", "batch_size"):
            check_positive(f"MixedLinear.{name}", getattr(self, name))

    @property
    def is_noisy(self) -> bool:
        return self.noise > 0

    def cost(self, trained: Trained, split: Split) -> Work:
        if split.kept is not None and not len(split.kept):
            return Work(0, 0)
        sizes = Sizes.of(trained, split)
        n = len(split.retain)
        linear = trained.model.core_network() if isinstance(trained.model, UserNetwork) else trained
        each, product = sizes.gradient, sizes.product
        # Gradients before and after, and their norms.
        looks = Work(3 * n * each, 5 * n * each)
        if cheaper_form(linear, split.retain) == "dual":
            made = kernel_cost(Sizes.of(linear, split), n) + (n * sizes.C) ** 3 / 3
            return looks + Work.sure(n * (sizes.answer + sizes.C * each) + made + 8 * product * n)
        return looks + Work(2 * EXPECTED_ITERATIONS * product * n, PASSES * (1 + 2 * self.max_iterations) * product * n)

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        if not len(split.retain):
            notes.measure(MixedLinearFacts, residual=0.0, distance=0.0, zeroed=True)
            # No user row is left, so training on top of the core would end where it began.
            return trained.anchor
        settled = settle(
            trained,
            split.retain,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
            batch_size=self.batch_size,
        )
        notes.measure(
            MixedLinearFacts,
            residual=settled.residual,
            distance=settled.distance,
            products=settled.products,
            zeroed=False,
        )
        if settled.failure:
            notes.assume(
                settled.failure, "the residual is larger than asked for; the certificate states the larger one"
            )
        return settled.trained.weights

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        if not self.noise:
            return NoNoise.at(trained.weights)
        distance = notes.of(MixedLinearFacts).distance  # none where only the noise was asked for
        if distance is not None:
            # Two Gaussians with the same spherical noise, whose means are at most so far apart.
            notes.measure(MixedLinearFacts, nats=0.5 * (distance / self.noise) ** 2)
        return Diagonal(torch.full_like(trained.weights, self.noise**2))

    def check_needs(self, trained: Trained, split: Split) -> None:
        super().check_needs(trained, split)
        if split.kept is not None and len(split.kept):
            _check_linear(trained, split)

    def check_enough_is_kept(self, split: Split) -> None:
        """Nothing to check: with no row left, the user weights are zero."""


def epsilon_of_requests(scrubbed: Sequence[Gaussian], *, delta: float = 1e-5) -> float:
    r"""The $\varepsilon$ of all releases of a mixed-linear model together, at this $\delta$.

    The release after request $t$ is $N(h(u_t), \sigma_t^2 I)$, and retraining with the same noise is
    $N(u^*_t, \sigma_t^2 I)$ with $\|h(u_t) - u^*_t\| \le \|r_t\| / (N_t\mu)$, wherever the step began. So each is
    $\|r_t\| / (\sigma_t N_t \mu)$-GDP against retraining, and a sequence of requests, also of ones that were chosen
    after seeing earlier releases, is $\sqrt{\sum_t \mu_t^2}$-GDP: exactly $(\varepsilon, \delta(\varepsilon))$
    (Dong, Roth and Su 2022). It says that releases are as good as retrained and noised ones, not that these are private
    toward rows that stay.

    **Arguments:**

    - `scrubbed`: what `MixedLinear(noise=...)` gave for each request, the noise fresh and secret each time.
    """
    nats = [one.diagnostics.of(MixedLinearFacts).nats for one in scrubbed]
    known = [n for n in nats if n is not None]
    if len(known) < len(nats) or not known:
        raise NeedError("Every release needs the certificate of `MixedLinear` with noise. Give `noise=` above zero.")
    # KL = μ²/2 between Gaussians with one covariance, so the certified nats are the certified GDP.
    return epsilon_of([math.sqrt(2 * n) for n in known], 1.0, delta)


def _check_linear(trained: Trained, split: Split) -> None:
    """Outputs on a few rows must lie on the line through those at two other weights, and the loss be a parabola."""
    batch = next(iter(trained.batches(split.retain, 16)))
    w, a = trained.weights, trained.anchor
    away = w - a if (w - a).any() else torch.ones_like(w)
    with torch.no_grad():
        f = [trained.outputs(batch.x, a + s * away) for s in (0.0, 1.0, 2.0)]
        # The second difference of three points on a line is zero.
        bend, size = (f[2] - 2 * f[1] + f[0]).norm(), torch.stack(f).norm()
        v = torch.ones_like(f[0])
        H = [trained.loss.hessian_product(one, batch.y, v) for one in (f[0], f[2])]
    # Far above what rounding leaves of that difference, far below what a bent network gives.
    rounding = torch.finfo(trained.dtype).eps ** 0.5
    if not bend <= rounding * size or not torch.allclose(H[0], v) or not torch.allclose(H[1], v):
        raise SettingError(
            "`MixedLinear` needs a network linear in its weights with squared loss, but this one is not. Train user "
            "weights on top of it (`fit_mixed` or `fit_users`), or scrub with `NTK`."
        )
