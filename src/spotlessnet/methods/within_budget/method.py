"""Noise by budget: say how many nats may leak or how much error is bearable, and the noise follows.

The Forgetting Lagrangian of Golatkar, Achille and Soatto (2020), *Eternal Sunshine of the Spotless Net*, solved for its
multiplier.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from spotlessnet.core.buffers import MOST
from spotlessnet.core.damping import ridge_of
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NumericsError, SettingError, check_positive
from spotlessnet.core.gaussian import Covariance, Gaussian, Measured
from spotlessnet.core.progress import track
from spotlessnet.core.scrub import METHODS, Notes, Scrub, Sizes, Work, with_statistics
from spotlessnet.core.split import Split, as_split
from spotlessnet.core.trained import Trained, as_trained
from spotlessnet.methods.within_budget.noise_cost import ATTEMPTS, CONFIRMING, Cost, NoiseCost
from spotlessnet.operators.cost import PRODUCT
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.linear_response import EXPECTED_ITERATIONS
from spotlessnet.operators.solve import conjugate_gradient

GRID = tuple(10.0 ** (e / 2) for e in range(-8, 9))
"""Noise levels of the reported curve, as multiples of the chosen one."""

ESTIMATE_RANGE = (0.1, 250.0)
"""Where the nats may lie, in units of an estimate made without retrained weights: the trials of
`tests/methods/test_budget_trials.py`, their extremes rounded outward. Half of them lie between 0.7 and 5, nineteen in
twenty below 25. No theorem: networks unlike those may be further off."""

LEAST_MISSED = 0.25
"""Share of the original's nats that every step is taken to have missed. Without it a Newton step that is checked by
another Newton step seems to have missed nothing, though two trainings never differ by a Newton step alone."""

MISSED = 200
"""Curvature products that the estimate of what the step has missed may take."""

BISECTIONS = 25
"""Noise levels that are looked at for the most noise within an error."""


@dataclass(frozen=True)
class BudgetFacts(Measured):
    """The level of noise that was chosen, what it leaves, and what it costs."""

    noise_scale: float | None = None
    nats: float | None = None
    nats_range: list[float] | None = None
    error_increase: float | None = None
    error_increase_limit: float | None = None
    trade_off: list[dict[str, float]] | None = None
    gap_residual: float | None = None


@METHODS.register(
    "within-budget",
    summary="Another scrub with its noise rescaled so that a budget is met.",
    paper="Golatkar, Achille and Soatto (2020), Eternal Sunshine of the Spotless Net",
    needs=("retained data", "a method that adds noise"),
    guarantee="the nats asked for, given retrained weights; else an estimate",
)
@dataclass(frozen=True)
class WithinBudget(Scrub):
    r"""Another scrub with its noise rescaled to $\alpha\Sigma$ so that a budget is met.

    With the same covariance on both sides the white-box divergence is
    $KL = \frac{1}{2\alpha}\,\Delta^\top\Sigma^{-1}\Delta$, where $\Delta = h(w) - w_{D_r}$: it falls and the error
    rises with $\alpha$. The curve is reported; the point is the least noise within `max_nats`, or the most within
    `max_error_increase`.

    Given $w_{D_r}$, the noise is shaped there and by retained rows alone, so that both sides share it and the nats are
    those that `compare` and an audit read. Without it the noise is shaped at $h(w)$ and the nats are an **estimate**,
    with `nats_range` around it (see `ESTIMATE_RANGE`): what was asked for is then a guess, not a promise.

    The level $\alpha$ itself is fitted to the request, and both sides are given it. Whoever can tell it, from the size
    of the noise in many weights, learns how far the step ended from $w_{D_r}$: the nats do not count that.

    A budget stands around a whole chain, never inside one: `chain` refuses it there.

    **Arguments:**

    - `scrub`: a scrub that adds noise.
    - `max_nats`: the divergence that may be left.
    - `max_error_increase`: how much the error on validation rows (retained rows where there are none) may rise, as a
      share: 0.01 is one point. Chosen on half of the rows and confirmed on the other half with fresh noise: a network
      drawn later exceeds it with a chance of about one in twenty.
    - `reference`: $w_{D_r}$, weights retrained without the cohort. Without them $\Delta$ is estimated by one more
      Newton step on the retained rows, and the result says so: an estimate, not a bound.
    - `draws`: noise draws per level when a level is chosen and the curve is drawn.
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
        if self.scrub.budget:
            raise SettingError(
                f"One budget goes around one scrub, but this one is around another ({self.scrub.budget}), whose noise "
                "it would rescale. Give both limits to one `WithinBudget`."
            )
        if not self.scrub.is_noisy:
            raise SettingError(
                f"A budget is met by noise, but {type(self.scrub).__name__} adds none. Give it a strength, or end a "
                "chain with Fisher()."
            )
        if self.scrub.is_certified:
            raise SettingError(
                f"The noise of {type(self.scrub).__name__} is what its certificate rests on, and a budget would "
                "rescale it: the certificate would be told and not hold. Use the one or the other."
            )

    def check_needs(self, trained: Trained, split: Split) -> None:
        self.scrub.check_needs(trained, split)

    @property
    def is_noisy(self) -> bool:
        return True

    @property
    def budget(self) -> str:
        limits = {"max_nats": self.max_nats, "max_error_increase": self.max_error_increase}
        return ", ".join(f"{name}={value:g}" for name, value in limits.items() if value is not None)

    def reseeded(self, by: int) -> Scrub:
        return replace(self, scrub=self.scrub.reseeded(by), seed=self.seed + by)

    def cost(self, trained: Trained, split: Split) -> Work:
        sizes = Sizes.of(trained, split)
        n = len(split.retain)
        N = len(split.whole)
        rows = n if split.validation is None else len(split.validation)
        # The curve, on all rows; on half of them each, levels that are tried, and fresh draws that confirm.
        curve, confirmed = len(GRID) * (self.draws + 1), (CONFIRMING + 1) / 2
        tried = 0.0 if self.max_nats is not None else BISECTIONS * (self.draws + 1) / 2
        errors = Work(
            (curve + tried + confirmed) * rows * sizes.answer,
            (curve + tried + confirmed * (ATTEMPTS if tried else 1)) * rows * sizes.answer,
        )
        gap = Work(0, 0)
        if trained.statistics_moved:
            # At every draw BatchNorm's statistics are estimated anew, from retained rows and not from those judged.
            drawn = self.draws * (len(GRID) + (BISECTIONS if tried else 0))
            anew = min(n, MOST) * sizes.answer
            errors += Work((drawn + CONFIRMING) * anew, (drawn + CONFIRMING * (ATTEMPTS if tried else 1)) * anew)
        if self.reference is None:
            # One more Newton step where the scrub ends, and another where it began if that is elsewhere.
            usual, most = EXPECTED_ITERATIONS * PRODUCT * n, 2 * 1.1 * MISSED * PRODUCT * n
            gap = Work((N + n + usual) * sizes.gradient, (N + 2 * n + most) * sizes.gradient)
        return self.scrub.cost(trained, split) + errors + gap

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        return self.scrub.shift(trained, split, notes)

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        """Refused: how much noise a budget needs depends on the step before it, which is not told here."""
        raise SettingError(
            f"The noise of a budget ({self.budget}) is fitted to the whole of what its scrub does and cannot be had by "
            "itself. Call the `WithinBudget` itself, and put it around everything else."
        )

    def reference_for(self, scrubbed: Gaussian, retrained: Trained, split: Split) -> Gaussian:
        """The scrub's own, with the level of noise that was chosen: that one number depends on the forgotten rows."""
        plain = self.scrub.reference_for(scrubbed, retrained, split)
        if plain.is_noiseless:
            return plain
        level = scrubbed.diagnostics.of(BudgetFacts).noise_scale
        assert level is not None  # this method's own noise has one
        return replace(plain, covariance=plain.covariance.scaled(level))

    def __call__(self, trained: Trained | nn.Module, split: Split) -> Gaussian:
        """The scrub's own mean, with as much noise as the budget asks for."""
        trained, split = as_trained(trained), as_split(split)
        if not len(split.forget):
            return self.scrub(trained, split)
        self.scrub.check_enough_is_kept(split)
        notes = Notes()
        mean = self.scrub.shift(trained, split, notes).detach().clone()
        shifted = with_statistics(trained.at(mean), split, notes)
        if self.reference is None:
            covariance = self.scrub.spread(shifted, split, notes)
            unit_nats = _estimated_nats(trained, split, mean, covariance, notes)
            low, high = ESTIMATE_RANGE
        else:
            goal = trained.vector(self.reference)
            # One noise on both sides, made from retained rows alone: the divergence is that of the means.
            covariance = self.scrub.reference_spread(
                with_statistics(trained.at(goal), split.unasked, Notes()), split, notes
            )
            unit_nats = _nats(mean - goal, covariance)
            low = 1.0
            high = 1.0
        norms_from = None if notes.buffers is None else split.kept
        costs = NoiseCost(shifted, covariance, _judging_rows(split, notes), self.draws, self.seed, norms_from)
        alpha, cost = self._level(unit_nats, costs)
        # ½ Δᵀ (αΣ)⁻¹ Δ is one αth of ½ Δᵀ Σ⁻¹ Δ.
        nats = unit_nats / alpha
        _rescale_certificates(notes, alpha)
        notes.measure(
            BudgetFacts,
            noise_scale=alpha,
            nats=nats,
            nats_range=[low * nats, high * nats],
            error_increase=cost.mean,
            error_increase_limit=cost.limit,
            trade_off=self._curve(unit_nats, costs, alpha),
        )
        return Gaussian(mean, covariance.scaled(alpha), notes.diagnostics(), notes.buffers)

    def _level(self, unit_nats: float, costs: NoiseCost) -> tuple[float, Cost]:
        if self.max_nats is None:
            assert self.max_error_increase is not None  # one of the two is there
            return costs.most_noise(self.max_error_increase)
        # A gap of zero needs no noise at all; keep a trace so that the covariance stays a covariance.
        alpha = max(unit_nats / self.max_nats, 1e-12)
        cost = costs.confirmed(alpha)
        if self.max_error_increase is not None and cost.limit > self.max_error_increase:
            raise NumericsError(
                f"Both budgets cannot be met: {self.max_nats:g} nats need noise that raises the error by "
                f"{cost.mean:.2%}, with chance up to {cost.limit:.2%}, more than {self.max_error_increase:.2%}. Relax "
                "one, or use a scrub that shifts closer first."
            )
        return alpha, cost

    def _curve(self, unit_nats: float, costs: NoiseCost, alpha: float) -> list[dict[str, float]]:
        levels = track([alpha * factor for factor in GRID], "trade-off curve")
        return [{"noise_scale": a, "nats": unit_nats / a, "error_increase": costs.rise(a)} for a in levels]


def _nats(gap: Float[Tensor, " P"], covariance: Covariance) -> float:
    """`½ Δᵀ Σ⁻¹ Δ`."""
    return 0.5 * float((gap.double() * covariance.double().solve(gap.double())).sum())


def _rescale_certificates(notes: Notes, alpha: float) -> None:
    """Nats that a method certified are of its own noise: of `α Σ` they are one `α`th."""
    for kind, found in list(notes.measured.items()):
        certified = found.known().get("nats")
        if certified is not None:
            notes.measure(kind, nats=certified / alpha)


def _estimated_nats(
    trained: Trained, split: Split, mean: Float[Tensor, " P"], covariance: Covariance, notes: Notes
) -> float:
    """The nats of `h(w) − w_{D_r}` without knowing `w_{D_r}`: by one more Newton step, and never less than a share."""
    low, high = ESTIMATE_RANGE
    notes.assume(
        "no retrained weights were given; what the shift missed was estimated by one more Newton step",
        f"the nats are an estimate, not a bound: in trials they were {low:g} to {high:g} times as many",
    )
    n, N = len(split.retain), len(split.whole)
    weight_decay = trained.known_weight_decay
    ridge = ridge_of(trained, None, notes)
    # What training left undone on D stays undone on D_r, row for row, as in `removal_gradient`.
    left_undone = gradient(trained, split.whole, ridge=N * weight_decay) * (n / N)

    def missed(weights: Tensor) -> tuple[float, float]:
        here = trained.at(weights)
        slope = gradient(here, split.retain, ridge=n * weight_decay) - left_undone
        curvature = GaussNewton(here, split.retain, ridge=n * ridge)
        solved = conjugate_gradient(curvature, slope, tolerance=1e-3, max_iterations=MISSED, on_failure="return")
        return _nats(solved.x, covariance), float(solved.residual)

    after, residual = missed(mean)
    before, _ = (after, residual) if torch.equal(mean, trained.weights) else missed(trained.weights)
    notes.measure(BudgetFacts, gap_residual=residual)
    # A Newton step does not see its own error: after a scrub that is one, the estimate alone would be zero.
    return max(after, LEAST_MISSED * before)


def _judging_rows(split: Split, notes: Notes) -> Data:
    if split.validation is not None and len(split.validation):
        return split.validation
    notes.assume("no validation rows were given; errors were measured on retained rows", "they may be optimistic")
    return split.retain
