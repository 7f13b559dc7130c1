"""Noise by budget: say how many nats may leak or how much error is bearable, and the noise follows.

The Forgetting Lagrangian of Golatkar, Achille and Soatto (2020), *Eternal Sunshine of the Spotless Net*, solved for its
multiplier.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.covariance import Covariance
from spotlessnet.core.damping import ridge_of
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NumericsError, SettingError, check_positive
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.progress import track
from spotlessnet.core.scrub import Notes, Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.solve import conjugate_gradient

GRID = tuple(10.0 ** (e / 2) for e in range(-8, 9))
"""Noise levels of the reported curve, as multiples of the chosen one."""


@dataclass(frozen=True)
class WithinBudget(Scrub):
    r"""Another scrub with its noise rescaled to $\alpha\Sigma$ so that a budget is met.

    With the same covariance on both sides the white-box divergence is
    $KL = \frac{1}{2\alpha}\,\Delta^\top\Sigma^{-1}\Delta$, where $\Delta = h(w) - w_{D_r}$: it falls and the error
    rises with $\alpha$. The curve is reported; the point is the least noise within `max_nats`, or the most within
    `max_error_increase`.

    **Arguments:**

    - `scrub`: a scrub that adds noise.
    - `max_nats`: the divergence that may be left.
    - `max_error_increase`: how much the mean error on validation rows (retained rows where there are none) may rise, as
      a share: 0.01 is one point.
    - `reference`: $w_{D_r}$, weights retrained without the cohort. Without them $\Delta$ is estimated by one more
      Newton step on the retained rows, and the result says so: an estimate, not a bound.
    - `draws`: noise draws per level when errors are measured.
    - `seed`: of those draws; the noise that protects is drawn later, by the caller.
    """

    scrub: Scrub
    max_nats: float | None = None
    max_error_increase: float | None = None
    reference: Float[Tensor, " P"] | None = None
    draws: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_nats is None and self.max_error_increase is None:
            raise SettingError("`WithinBudget` needs `max_nats` or `max_error_increase`, but got neither.")
        for name in ("max_nats", "max_error_increase", "draws"):
            value = getattr(self, name)
            if value is not None:
                check_positive(f"WithinBudget.{name}", value)
        if not self.scrub.is_noisy:
            raise SettingError(
                f"A budget is met by noise, but {type(self.scrub).__name__} adds none. Give it a strength, or end a "
                "chain with Fisher()."
            )

    @property
    def is_noisy(self) -> bool:
        return True

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        return self.scrub.shift(trained, split, notes)

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        return self.scrub.spread(trained, split, notes)

    def __call__(self, trained: Trained, split: Split) -> Gaussian:
        """The scrub's own mean, with as much noise as the budget asks for."""
        scrubbed = self.scrub(trained, split)
        if not len(split.forget):
            return scrubbed
        notes = Notes()
        gap = self._gap(trained, split, scrubbed, notes)
        unit_nats = 0.5 * float((gap.double() * scrubbed.covariance.solve(gap).double()).sum())
        errors = _Errors(trained.at(scrubbed.mean), scrubbed, _judging_rows(split, notes), self.draws, self.seed)
        alpha = self._level(unit_nats, errors)
        notes.fact(
            noise_scale=alpha,
            nats=unit_nats / alpha,
            error_increase=errors.increase(alpha),
            trade_off=self._curve(unit_nats, errors, alpha),
        )
        return Gaussian(scrubbed.mean, scrubbed.covariance.scaled(alpha), _together(scrubbed.about, notes.about()))

    def _level(self, unit_nats: float, errors: "_Errors") -> float:
        least = unit_nats / self.max_nats if self.max_nats is not None else None
        if self.max_error_increase is None:
            # A gap of zero needs no noise at all; keep a trace so that the covariance stays a covariance.
            return max(least or 0.0, 1e-12)
        if least is not None:
            found = errors.increase(least)
            if found > self.max_error_increase:
                raise NumericsError(
                    f"Both budgets cannot be met: {self.max_nats:g} nats need noise that raises the error by "
                    f"{found:.2%}, more than {self.max_error_increase:.2%}. Relax one, or "
                    "use a scrub that shifts closer first."
                )
            return max(least, 1e-12)
        return errors.most_noise(self.max_error_increase)

    def _curve(self, unit_nats: float, errors: "_Errors", alpha: float) -> list[dict[str, float]]:
        levels = track([alpha * factor for factor in GRID], "trade-off curve")
        return [{"noise_scale": a, "nats": unit_nats / a, "error_increase": errors.increase(a)} for a in levels]

    def _gap(self, trained: Trained, split: Split, scrubbed: Gaussian, notes: Notes) -> Float[Tensor, " P"]:
        """`h(w) − w_{D_r}`, measured where a reference is given and estimated otherwise."""
        if self.reference is not None:
            return scrubbed.mean - trained.vector(self.reference)
        notes.assume(
            "no retrained weights were given; what the shift missed was estimated by one more Newton step",
            "the nats are an estimate, not a bound",
        )
        here, n, N = trained.at(scrubbed.mean), len(split.retain), len(split.whole)
        decay, ridge = trained.known_decay, ridge_of(trained, None, notes)
        left_undone = gradient(trained, split.whole, ridge=N * decay) * (n / N)
        slope = gradient(here, split.retain, ridge=n * decay) - left_undone
        curvature = GaussNewton(here, split.retain, ridge=n * ridge)
        solved = conjugate_gradient(curvature, slope, tolerance=1e-3, max_iterations=200, on_failure="return")
        notes.fact(gap_residual=float(solved.residual))
        return solved.x


@dataclass(frozen=True)
class _Errors:
    """The mean error at a noise level, always with the same draws, so that the curve is smooth."""

    network: Trained
    scrubbed: Gaussian
    rows: Data
    draws: int
    seed: int

    def increase(self, alpha: float) -> float:
        covariance = self.scrubbed.covariance.scaled(alpha)
        # Like the noise itself, on the CPU: a seed then means the same on every device.
        generator = torch.Generator().manual_seed(self.seed)
        noisy = [self._error(self.network.weights + covariance.draw(generator)) for _ in range(self.draws)]
        return sum(noisy) / len(noisy) - self._error(self.network.weights)

    def _error(self, weights: Float[Tensor, " P"]) -> float:
        network = self.network.at(weights)
        total = 0.0
        with torch.no_grad():
            for batch in network.batches(self.rows):
                total += float(network.loss.mistakes(network.outputs(batch.x), batch.y).sum())
        return total / len(self.rows)

    def most_noise(self, limit: float) -> float:
        """The largest level whose error increase stays within the limit, by doubling and bisection in the logarithm."""
        low, high = 1.0, 1.0
        while self.increase(low) > limit:
            low /= 4
            if low < 1e-30:
                raise NumericsError(
                    f"No noise level keeps the error increase within {limit:.2%}. Allow more, or check the data."
                )
        while self.increase(high) <= limit:
            high *= 4
            if high > 1e30:
                return high
        low, high = (low, high) if low < high else (high / 4, high)
        for _ in track(range(20), "finding the noise level"):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if self.increase(middle) <= limit else (low, middle)
        return low


def _judging_rows(split: Split, notes: Notes) -> Data:
    if split.validation is not None and len(split.validation):
        return split.validation
    notes.assume("no validation rows were given; errors were measured on retained rows", "they may be optimistic")
    return split.retain


def _together(first: Any, second: dict[str, Any]) -> dict[str, Any]:
    lists = {name: [*first.get(name, []), *second.get(name, [])] for name in ("assumed", "lost")}
    return {**first, **second, **lists}
