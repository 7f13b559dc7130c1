"""Noise by budget: say how many nats may leak or how much error is bearable, and the noise follows.

The Forgetting Lagrangian of Golatkar, Achille and Soatto (2020), *Eternal Sunshine of the Spotless Net*, solved for its
multiplier.
"""

import math
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
from spotlessnet.methods.within_budget.levels import (
    FURTHEST,
    PROBES,
    SOLVED,
    TOLERANCE,
    USUAL,
    Levels,
    expected_nats,
    level_of,
    nats_of,
    scale_of,
)
from spotlessnet.methods.within_budget.noise_cost import CONFIRMING, LOOKS, Cost, NoiseCost
from spotlessnet.operators.cost import expected_products, product_of
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.linear_response import EXPECTED_ITERATIONS
from spotlessnet.operators.solve import conjugate_gradient
from spotlessnet.operators.solvers import CG

LEAST_NATS, MOST_NATS = 1e-9, 1e6
"""Budgets whose levels of noise single precision can tell apart."""

GRID = range(-8, 9)
"""Noise levels of the reported curve, counted from the chosen one."""

ESTIMATE_RANGE = (0.1, 250.0)
"""Where the nats may lie, in units of an estimate made without retrained weights: the trials of
`tests/methods/test_budget_trials.py`, their extremes rounded outward. Half of them lie between 0.7 and 5, nineteen in
twenty below 25. No theorem: networks unlike those may be further off."""

LEAST_MISSED = 0.25
"""Share of the original's nats that every step is taken to have missed. Without it a Newton step that is checked by
another Newton step seems to have missed nothing, though two trainings never differ by a Newton step alone."""

GAP = CG(tolerance=1e-3, max_iterations=200)
"""How the estimate of what the step has missed is solved for."""


@dataclass(frozen=True)
class BudgetFacts(Measured):
    """The level of noise that was chosen, what it leaves, and what it costs.

    `nats` are those that were asked for, or those that were counted where none were. `nats_counted` are what the
    weights and the choice of the level tell, `level_nats` the latter.
    """

    noise_scale: float | None = None
    level_nats: float | None = None
    nats_counted: float | None = None
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
    r"""Another scrub with its noise rescaled to $4^i\Sigma$ so that a budget is met.

    With the same covariance on both sides the white-box divergence is
    $KL_i = \frac{1}{2 \cdot 4^i}\,\Delta^\top\Sigma^{-1}\Delta$, where $\Delta = h(w) - w_{D_r}$: it falls and the
    error rises with the level $i$. The level is chosen on the request, and both it and the size of the noise tell of
    that. So it comes from a grid whose weights $p_i$ are fixed by retained data, the number of rows and the budget, and
    costs $\log 1/p_i$ nats, which are counted (`within_budget/levels.py` has the derivation):

    - within `max_nats`, the least noise with $KL_i + \log 1/p_i$ no larger; refused where no level has;
    - within `max_error_increase` alone, the level of the fewest nats that keeps it.

    A small budget leaves no choice: at 1 nat the expected level costs 0.13 nats and its neighbours 2.9, so rows that
    moved the network further than rows of their number do are refused. At 8 nats a level further costs 0.7.

    Given $w_{D_r}$, the noise is shaped there and by retained rows alone, so that both sides share it and the nats are
    those that `compare` and an audit read. Without it the noise is shaped at $h(w)$ and the nats are an **estimate**,
    with `nats_range` around it (see `ESTIMATE_RANGE`): what was asked for is then a guess, not a promise.

    A budget stands around a whole chain, never inside one: `chain` refuses it there. Nats of several networks that were
    released for the same rows add up; a later request for other rows, which starts from what was released and reads
    retained rows only, adds none.

    **Arguments:**

    - `scrub`: a scrub that adds noise.
    - `max_nats`: the divergence that may be left, the choice of the level included.
    - `max_error_increase`: how much the error on validation rows (retained rows where there are none) may rise, as a
      share: 0.01 is one point. Chosen on half of the rows and confirmed on the other half with fresh noise and room for
      the chance of the rows (`noise_cost.py`).
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
        if self.max_nats is not None and not LEAST_NATS <= self.max_nats <= MOST_NATS:
            raise SettingError(
                f"`WithinBudget.max_nats` must lie between {LEAST_NATS:g} and {MOST_NATS:g}, where levels of noise can "
                f"be told apart, but got {self.max_nats:g}."
            )
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

    def foreseen(self, trained: Trained, split: Split) -> Work:
        ridge = ridge_of(trained, None, Notes())
        levels = expected_products(trained, split, CG(tolerance=TOLERANCE, max_iterations=SOLVED), ridge)
        missed = 0.0 if self.reference is not None else expected_products(trained, split, GAP, ridge)
        # What the count takes of the scrub inside is replaced by what that foresees.
        own = self.cost(trained, split, levels, missed)
        inside = self.scrub.cost(trained, split)
        seen = self.scrub.foreseen(trained, split)
        return replace(own, usual=own.usual - inside.usual + seen.usual)

    def cost(self, trained: Trained, split: Split, levels: float = USUAL, missed: float = EXPECTED_ITERATIONS) -> Work:
        sizes = Sizes.of(trained, split)
        n = len(split.retain)
        N = len(split.whole)
        rows = n if split.validation is None else len(split.validation)
        # The curve, on all rows; on half of them each, levels that are tried, and fresh draws that confirm.
        curve, confirmed = len(GRID) * (self.draws + 1), (CONFIRMING + 1) / 2
        looks = 0 if self.max_nats is not None else LOOKS
        attempts = 2 * FURTHEST + 1 if looks else 1
        tried = looks * (self.draws + 1) / 2
        errors = Work(
            (curve + tried + confirmed) * rows * sizes.answer,
            (curve + tried + confirmed * attempts) * rows * sizes.answer,
        )
        gap = Work(0, 0)
        if trained.statistics_moved:
            # At every draw BatchNorm's statistics are estimated anew, from retained rows and not from those judged.
            drawn = self.draws * (len(GRID) + looks)
            anew = min(n, MOST) * sizes.answer
            errors += Work((drawn + CONFIRMING) * anew, (drawn + CONFIRMING * attempts) * anew)
        # Halvings of the stand-ins, and a solve for each, for the expected level.
        halving, product = PROBES * rows * sizes.gradient, PROBES * n * product_of(sizes, PROBES)
        errors += Work(halving + (1 + levels) * product, halving + (1 + 2 * SOLVED) * product)
        if self.reference is None:
            # One more Newton step where the scrub ends, and another where it began if that is elsewhere.
            steps = 1 if stays(self.scrub) else 2
            fixed = (N + steps * n) * sizes.gradient
            usual, most = (steps * n * sizes.product * (1 + count) for count in (missed, 2.0 * GAP.max_iterations))
            gap = Work(fixed + usual, fixed + most)
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
        """The scrub's own at the level that was chosen, as a part of all levels: its price is in every divergence."""
        plain = self.scrub.reference_for(scrubbed, retrained, split)
        if plain.is_noiseless:
            return plain
        scale = scrubbed.diagnostics.of(BudgetFacts).noise_scale
        assert scale is not None  # this method's own noise has one
        network = retrained.at(retrained.weights, plain.buffers)
        price = self._levels(network, plain.covariance, split).price(level_of(scale))
        return replace(plain, covariance=plain.covariance.scaled(scale), price=price)

    def _levels(self, network: Trained, covariance: Covariance, split: Split) -> Levels:
        """The grid and its weights; `split` is asked for retained rows and for how many must go, and no more."""
        unit_nats = expected_nats(network, covariance, split.unasked, len(split.forget))
        return Levels.around(unit_nats * (1.0 if stays(self.scrub) else LEAST_MISSED), self.max_nats)

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
            levels = self._levels(shifted, covariance, split)
            unit_nats = _estimated_nats(trained, split, mean, covariance, notes)
            low, high = ESTIMATE_RANGE
        else:
            goal = trained.vector(self.reference)
            retrained = with_statistics(trained.at(goal), split.unasked, Notes())
            # One noise on both sides, made from retained rows alone: the divergence is that of the means.
            covariance = self.scrub.reference_spread(retrained, split, notes)
            levels = self._levels(retrained, covariance, split)
            unit_nats = nats_of(mean - goal, covariance)
            low = high = 1.0
        norms_from = None if notes.buffers is None else split.kept
        costs = NoiseCost(shifted, covariance, _judging_rows(split, notes), self.draws, self.seed, norms_from)
        level, cost = self._level(unit_nats, levels, costs)
        price = levels.price(level)
        scale = scale_of(level)
        # ½ Δᵀ (αΣ)⁻¹ Δ is one αth of ½ Δᵀ Σ⁻¹ Δ.
        counted = unit_nats / scale + price
        promised = counted if self.max_nats is None else self.max_nats
        _rescale_certificates(notes, scale, price)
        notes.measure(
            BudgetFacts,
            noise_scale=scale,
            level_nats=price,
            nats_counted=counted,
            nats=promised,
            nats_range=[low * promised, high * promised],
            error_increase=cost.mean,
            error_increase_limit=cost.limit,
            trade_off=_curve(unit_nats, levels, costs, level),
        )
        return Gaussian(mean, covariance.scaled(scale), notes.diagnostics(), notes.buffers)

    def _level(self, unit_nats: float, levels: Levels, costs: NoiseCost) -> tuple[int, Cost]:
        if self.max_nats is None:
            assert self.max_error_increase is not None  # one of the two is there
            return costs.best(levels, unit_nats, self.max_error_increase)
        level = levels.quietest(unit_nats, self.max_nats)
        if level is None:
            raise NumericsError(_too_far(self.max_nats, unit_nats, levels))
        cost = costs.confirmed(scale_of(level))
        if self.max_error_increase is not None and cost.limit > self.max_error_increase:
            raise NumericsError(
                f"Both budgets cannot be met: {self.max_nats:g} nats need noise that raises the error by "
                f"{cost.mean:.2%}, with chance up to {cost.limit:.2%}, more than {self.max_error_increase:.2%}. Relax "
                "one, or use a scrub that shifts closer first."
            )
        return level, cost


def stays(scrub: Scrub) -> bool:
    """Whether a scrub leaves the mean where it was, and so all that the rows did to it."""
    return all(link.stays for link in getattr(scrub, "links", (scrub,)))


def _curve(unit_nats: float, levels: Levels, costs: NoiseCost, level: int) -> list[dict[str, float]]:
    around = track([level + away for away in GRID], "trade-off curve")
    return [
        {
            "noise_scale": scale_of(i),
            "level_nats": levels.price(i),
            "nats": unit_nats / scale_of(i) + levels.price(i),
            "error_increase": costs.rise(scale_of(i)),
        }
        for i in around
    ]


def _too_far(max_nats: float, unit_nats: float, levels: Levels) -> str:
    """Why no level keeps a budget, and about which budget one would keep: the number itself would tell of the rows."""
    least = min(unit_nats / scale_of(i) + levels.price(i) for i in levels.choices)
    coarse = 2.0 ** math.ceil(math.log2(least))
    return (
        f"No level of noise keeps {max_nats:g} nats: these rows moved the network further than as many rows do on "
        f"average, and louder noise would tell so. The fewest that can be kept here are at most {coarse:g} nats. Allow "
        "more, which is then a choice made on these rows, or use a scrub that shifts closer first."
    )


def _rescale_certificates(notes: Notes, scale: float, price: float) -> None:
    """Nats that a method certified are of its own noise: of `α Σ` they are one `α`th, and what the choice tells."""
    for kind, found in list(notes.measured.items()):
        certified = found.known().get("nats")
        if certified is not None:
            notes.measure(kind, nats=certified / scale + price)


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
        solved = conjugate_gradient(
            curvature, slope, tolerance=GAP.tolerance, max_iterations=GAP.max_iterations, on_failure="return"
        )
        return nats_of(solved.x, covariance), float(solved.residual)

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
