"""Newton scrubbing: step to where the retained data alone would have led.

Golatkar, Achille and Soatto (2020), *Eternal Sunshine of the Spotless Net*, Propositions 3 and 4, with the sign and the
root put right.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.covariance import LowRankPlusRidge
from spotlessnet.core.damping import Damped, assume_anchor, ridge_of
from spotlessnet.core.deprecated import OldName, OldPart
from spotlessnet.core.errors import (
    NeedError,
    NumericsError,
    SettingError,
    check_choice,
    check_not_negative,
    check_positive,
)
from spotlessnet.core.gaussian import Covariance, Diagonal, Measured, NoNoise
from spotlessnet.core.scrub import METHODS, Notes, Scrub, Sizes, Work
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.backward_flow import check_reach, check_rounding
from spotlessnet.operators.best_noise import best_noise
from spotlessnet.operators.cost import (
    EIGEN,
    expected_products,
    hessian_product_of,
    noise,
    product_of,
    products,
    with_slow,
)
from spotlessnet.operators.dense import clamped_off, divide, eigenbasis, symmetric_exp, undo_and_redo
from spotlessnet.operators.fisher import fisher_diagonal
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.hessian import Hessian, dense_hessian
from spotlessnet.operators.kronecker import kronecker
from spotlessnet.operators.line_search import HALVINGS, backtrack
from spotlessnet.operators.linear_response import EXPECTED_ITERATIONS
from spotlessnet.operators.solve import conjugate_gradient
from spotlessnet.operators.solvers import CG, solver_of
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.precomputed.step import fisher_after, step_from_statistics
from spotlessnet.precomputed.step_cost import step_cost
from spotlessnet.training.optimiser import lr_at

NOTICEABLE = 0.1
"""A gradient left over from training is noted when it exceeds this share of what the forgotten rows pull."""

ROUGH = CG(tolerance=1e-4)
"""The solver where none is named: line search and damping matter more than further digits."""


@dataclass(frozen=True)
class NewtonFacts(Measured):
    """How the step was found, and how far training was from its end."""

    gradient_norm: float | None = None
    curvature: str | None = None
    least_eigenvalue: float | None = None
    extra_damping: float | None = None
    iterations: int | None = None
    residual: float | None = None
    scale: float | None = None
    step: float | None = None
    time: float | None = None


@METHODS.register(
    "newton",
    paper="Golatkar, Achille and Soatto (2020), Eternal Sunshine of the Spotless Net",
    needs=("retained data or statistics",),
    reads=("statistics", "init", "recipe"),
    guarantee="exact where the loss is quadratic; its noise bounds the nats that are left",
)
@dataclass(frozen=True)
class Newton(Scrub):
    r"""One Newton step on the retained risk, then noise along its flat directions.

    $$h(w) = w - B^{-1}\big(\nabla L_{D_r}(w) - \nabla L_D(w)\big), \qquad \Sigma = \sqrt{s}\, B^{-1/2}, \qquad
      B = \nabla^2 L_{D_r}(w) + \gamma I$$

    What training on $D$ had left undone, $\nabla L_D(w)$, stays undone; `keep_residual=False` leaves it out, which is
    the papers' form and the same at a minimum. Where $L$ is quadratic and $w$ its minimum on $D$ the step lands on the
    retrained weights. With `time` the training is taken as gradient flow that stopped at $t$,

    $$h_t(w) = w + e^{-Bt}e^{At} d + e^{-Bt}(d_r - d) - d_r, \qquad d = A^{-1}\nabla L_D(w),\;
      d_r = B^{-1}\nabla L_{D_r}(w),\; A = \nabla^2 L_D(w) + \gamma I$$

    **Arguments:**

    - `curvature`: `"hessian"` is exact; `"gauss-newton"` is never negative and solved by conjugate gradients for large
      networks; `"auto"` takes the Hessian for small networks where it is positive definite.
    - `damping`: $\gamma$, beside the decay; `None` is zero for a known positive decay and 1e-3 otherwise. An indefinite
      Hessian that was asked for is damped further, until its least eigenvalue is $\lambda + \gamma$.
    - `keep_residual`: as above; has no meaning with `time`, which accounts for it.
    - `time`: $t$, `"recipe"` for that of the recipe, `None` for the end of time. Small networks only.
    - `clamp`: replace $e^{-Bt}e^{At}$ by $\exp(\mathrm{clamp}(A - B, 1/t)\,t)$, which cannot explode where the flow was
      not quite quadratic; exact only where the two commute.
    - `search`: halve the step until the network itself has less of what the step was to lower.
    - `strength`: $s = \lambda\sigma_h^2$, noise against accuracy; zero adds none.
    - `structure`: of $B$ in the noise: `"diagonal"`, `"kronecker"` or `"dense"`.
    - `error`: $\Sigma_h$, how the step's error is thought to be spread, for `structure="dense"`; the noise is then the
      one with $\Sigma B \Sigma = \lambda\Sigma_h$, with `strength` for $\lambda$. Equal in all directions unless given.
    - `dense_up_to`: the most weights for which $B$ is written out.
    - `solver`: how the step of a larger network is found.
    - `statistics`: the sums that `precompute` kept; only $D_f$ is then read, $B$ is Gauss-Newton in low rank, and there
      is no search and no time.
    """

    curvature: Literal["auto", "hessian", "gauss-newton"] = "auto"
    damping: float | None = None
    keep_residual: bool = True
    time: float | Literal["recipe"] | None = None
    clamp: bool = True
    search: bool = True
    strength: float = 0.0
    structure: Literal["diagonal", "kronecker", "dense"] = "diagonal"
    error: Float[Tensor, "P P"] | None = field(default=None, repr=False)
    dense_up_to: int = 1000
    solver: CG = ROUGH
    statistics: Statistics | None = field(default=None, repr=False)

    memory = OldName("statistics")
    tolerance = OldPart("solver", solver_of)
    max_iterations = OldPart("solver", solver_of)

    def __post_init__(self) -> None:
        check_choice("Newton.curvature", self.curvature, ("auto", "hessian", "gauss-newton"))
        check_choice("Newton.structure", self.structure, ("diagonal", "kronecker", "dense"))
        check_not_negative("Newton.strength", self.strength, "Smaller adds less noise.")
        check_not_negative("Newton.dense_up_to", self.dense_up_to)
        if self.statistics is not None and (self.time is not None or not self.keep_residual):
            raise SettingError("`Newton.statistics` know neither `time` nor `keep_residual=False`. Leave them out.")
        if self.solver.precondition:
            raise SettingError("`Newton` takes products as they are. Leave `precondition` out, or use `NTK`.")
        if self.error is not None and self.structure != "dense":
            raise SettingError(f'`Newton.error` needs `structure="dense"`, but it is {self.structure!r}.')
        if self.damping is not None:
            check_not_negative("Newton.damping", self.damping, "Start from the weight decay.")
        if isinstance(self.time, str):
            check_choice("Newton.time", self.time, ("recipe",))
        elif self.time is not None:
            check_positive("Newton.time", self.time, "None means trained to the end.")

    @property
    def is_noisy(self) -> bool:
        return self.strength > 0

    def foreseen(self, trained: Trained, split: Split) -> Work:
        if self.statistics is not None or self.time is not None or trained.size <= self.dense_up_to:
            return self.cost(trained, split)
        ridge = ridge_of(trained, self.damping, Notes())
        return self.cost(trained, split, expected_products(trained, split, self.solver, ridge))

    def cost(self, trained: Trained, split: Split, expected: float = EXPECTED_ITERATIONS) -> Work:
        sizes = with_slow(trained, split) if self.is_noisy else Sizes.of(trained, split)
        if self.statistics is not None:
            noisy = sizes.diagonals(sizes.k) if self.is_noisy else Work(0, 0)
            return step_cost(self.statistics, sizes, tries=1) + noisy
        cube = float(sizes.P) ** 3
        written = self._written(sizes)
        if self.time is not None:
            step = written + Work.sure((6 * EIGEN + 6) * cube)
        elif self.dense_up_to >= sizes.P:
            step = written + Work.sure(2 * EIGEN * cube)
        else:
            step = products(sizes, sizes.n, self.solver.max_iterations, expected)
            if self.curvature == "hessian":
                more = hessian_product_of(sizes, 1) / sizes.product
                step = replace(step, usual=more * step.usual, most=more * step.most)
        searched = sizes.answer * sizes.n if self.search and self.time is None else 0.0
        search = Work(2 * searched, (2 + HALVINGS) * searched)
        noisy = Work(0, 0)
        if self.is_noisy:
            dense = written + Work.sure(2 * EIGEN * cube)
            noisy = dense if self.structure == "dense" else noise(sizes, self.structure)
        return Work.sure((sizes.n + sizes.k) * sizes.gradient) + step + search + noisy

    def _written(self, sizes: Sizes) -> Work:
        """Both curvatures written out, column by column; an indefinite Hessian is given up for Gauss-Newton."""
        gauss_newton = product_of(sizes, sizes.P)
        hessian = hessian_product_of(sizes, sizes.P)
        first = gauss_newton if self.curvature == "gauss-newton" else hessian
        most = first + (gauss_newton if self.curvature == "auto" else 0.0)
        columns = sizes.P * (sizes.n + sizes.k)
        return Work(columns * first, columns * most, 4 * 8.0 * sizes.P**2)

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        ridge = ridge_of(trained, self.damping, notes)
        if self.statistics is not None:
            found = step_from_statistics(self.statistics, trained, split.forget, ridge, notes, retain=split.kept)
            return trained.weights + found.step
        assume_anchor(trained, notes)
        n, k = len(split.retain), len(split.forget)
        # Means in float64: where few rows go, the two that are subtracted below are nearly equal.
        g_r = gradient(trained, split.retain, ridge=n * trained.known_weight_decay).double() / n
        g_f = gradient(trained, split.forget, ridge=k * trained.known_weight_decay).double() / k
        g = (n * g_r + k * g_f) / (n + k)
        self._look_at_convergence(g, g_r, notes)
        if self.time is not None:
            return trained.weights + self._flow(trained, split, g, g_r, ridge, notes).to(trained.dtype)
        # ES Prop. 3 has no target: at a minimum on D it is zero. Trainings stop before that, on D_r as early as on D.
        target = g if self.keep_residual else torch.zeros_like(g)
        step = -self._solve(trained, split, (g_r - target).to(trained.dtype), ridge, notes)
        scale = self._scale(trained, split, step, g_r, target, notes) if self.search else 1.0
        notes.measure(NewtonFacts, scale=scale, step=scale * float(step.double().norm()))
        return trained.weights + scale * step

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        if not self.is_noisy:
            return NoNoise.at(trained.weights)
        ridge = ridge_of(trained, self.damping, notes)
        if self.statistics is not None:
            left = self.statistics.count - len(split.forget)
            # Kept are sums; means over the rows that stay take the same ridge as in the other cases.
            F = Diagonal(fisher_after(self.statistics, trained, split.forget) / left + ridge)
            return F.map(lambda e: (self.strength / e).sqrt())
        n = len(split.retain)
        check_positive("Newton.damping plus the decay", ridge, "The noise divides by it in flat directions.")
        if self.structure == "diagonal":
            B: Covariance = Diagonal(fisher_diagonal(trained, split.retain) / n + ridge)
        elif self.structure == "kronecker":
            B = kronecker(trained, split.retain).map(lambda e: e.clamp(min=0) / n + ridge)
        else:
            dense = self._dense(trained, split, ridge, notes)[1]
            if self.error is not None:
                noise = best_noise(dense, self.error.to(dense), self.strength)
                return LowRankPlusRidge.dense(noise.to(trained.dtype))
            B = LowRankPlusRidge.dense(dense.to(trained.dtype))
        # ES Prop. 4 with its root, for an error of the step that is the same in all directions.
        return B.map(lambda e: (self.strength / e).sqrt())

    def _solve(
        self, trained: Trained, split: Split, b: Float[Tensor, " P"], ridge: float, notes: Notes
    ) -> Float[Tensor, " P"]:
        """`B⁻¹ b`."""
        if trained.size <= self.dense_up_to:
            return divide(b.double(), self._dense(trained, split, ridge, notes)[1]).to(b.dtype)
        n, retain = len(split.retain), split.retain
        exact = self.curvature == "hessian"
        B = Hessian(trained, retain, ridge=n * ridge) if exact else GaussNewton(trained, retain, ridge=n * ridge)
        # Products are sums over rows, so the right-hand side is one too.
        solved = conjugate_gradient(
            B,
            n * b,
            tolerance=self.solver.tolerance,
            max_iterations=self.solver.max_iterations,
            enough=self.solver.enough,
            label="Newton step",
        )
        if solved.failure:
            notes.assume(solved.failure, f"the step solves its system only up to {float(solved.residual):.2g}")
        notes.measure(
            NewtonFacts,
            curvature="hessian" if exact else "gauss-newton",
            iterations=solved.iterations,
            residual=float(solved.residual),
        )
        return solved.x

    def _flow(
        self,
        trained: Trained,
        split: Split,
        g: Float[Tensor, " P"],
        g_r: Float[Tensor, " P"],
        ridge: float,
        notes: Notes,
    ) -> Float[Tensor, " P"]:
        if trained.size > self.dense_up_to:
            raise SettingError(
                f"`Newton.time` needs matrices of {trained.size} rows written out, more than `dense_up_to` "
                f"({self.dense_up_to}). Raise that, or leave `time` out."
            )
        t = self._duration(trained, split, notes)
        A, B = self._dense(trained, split, ridge, notes)
        # How far w still is from the optimum on D, and from that on D_r.
        d, d_r = divide(g, A), divide(g_r, B)
        if not self.clamp:
            check_rounding(A, B, t, torch.finfo(trained.dtype).eps)
        step = undo_and_redo(A, B, t, clamp=self.clamp) @ d + symmetric_exp(B, -t) @ (d_r - d) - d_r
        if self.clamp and (off := clamped_off(A, B, t)) > NOTICEABLE:
            clamped = f"the backward flow was clamped, which over a time of {t:.3g} may miss it {1 + off:.2g} times"
            notes.assume(clamped, "the step is only near that of the stopped training; leave out so long a `time`")
        check_reach(trained, step, d_r, t)
        return step

    def _duration(self, trained: Trained, split: Split, notes: Notes) -> float:
        r"""$t = \sum_j \eta_j / (1 - m)$ over the updates of the recipe."""
        t = self.time
        if not isinstance(t, str):
            assert t is not None  # `shift` asks only then
            return float(t)
        recipe = trained.recipe
        if recipe is None:
            raise NeedError(
                '`Newton(time="recipe")` needs the recipe of the training. Give `Trained.of(..., recipe=...)`.'
            )
        if recipe.optimizer != "sgd":
            raise NeedError(
                f'`Newton(time="recipe")` follows the flow of SGD, but the optimizer is {recipe.optimizer!r}. '
                "Leave out `time`."
            )
        if recipe.patience is not None:
            notes.assume(
                "training was taken to have run for all epochs of the recipe, though it may have stopped early",
                "the time of the flow, and with it the step, may be too long",
            )
        steps = recipe.epochs * math.ceil((len(split.retain) + len(split.forget)) / recipe.batch_size)
        # ES §3: with momentum m every gradient counts 1 + m + m² + … times.
        t = sum(lr_at(recipe, step, steps) for step in range(steps)) / (1 - recipe.momentum)
        notes.measure(NewtonFacts, time=t)
        return t

    def _dense(
        self, trained: Trained, split: Split, ridge: float, notes: Notes
    ) -> tuple[Float[Tensor, "P P"], Float[Tensor, "P P"]]:
        """`A` and `B`, means over rows with the ridge, in float64 and positive definite where that can be had."""
        n, k = len(split.retain), len(split.forget)
        eye = torch.eye(trained.size, dtype=torch.float64, device=trained.device)
        if self.curvature != "gauss-newton":
            H_r, H_f = (dense_hessian(trained, data).double() for data in (split.retain, split.forget))
            B = H_r / n + ridge * eye
            # Away from a minimum the Hessian may be indefinite, and a step along its negative directions climbs.
            least = float(eigenbasis(B)[0][0])
            extra = 0.0 if least > 0 else ridge - least
            if least > 0 or self.curvature == "hessian":
                notes.measure(NewtonFacts, curvature="hessian", least_eigenvalue=least, extra_damping=extra)
                return (H_r + H_f) / (n + k) + (ridge + extra) * eye, B + extra * eye
        G_r, G_f = (GaussNewton(trained, data).multiply(eye.to(trained.dtype)) for data in (split.retain, split.forget))
        # Each column is a product of its own: rounding leaves the matrix a little uneven.
        G_r, G_f = (0.5 * (G + G.T).double() for G in (G_r, G_f))
        notes.measure(NewtonFacts, curvature="gauss-newton")
        return (G_r + G_f) / (n + k) + ridge * eye, G_r / n + ridge * eye

    def _scale(
        self,
        trained: Trained,
        split: Split,
        step: Float[Tensor, " P"],
        g_r: Float[Tensor, " P"],
        target: Float[Tensor, " P"],
        notes: Notes,
    ) -> float:
        r"""By line search on $N_r (L_{D_r}(\theta) - g^\top\theta)$, whose minimum the step aims at."""
        n = len(split.retain)
        # In sums as the objective is, so that Armijo's condition compares like with like.
        slope = n * float((g_r - target) @ step.double())
        found = backtrack(
            trained,
            split.retain,
            step,
            slope,
            ridge=n * trained.known_weight_decay,
            tilt=(n * target).to(trained.dtype),
        )
        if not found.accepted:
            raise NumericsError(
                "The step must bring the network closer to where the retained rows lead, but no length of it does. "
                f"Raise `Newton.damping` (now {notes.of(Damped).damping:g})."
            )
        return found.scale

    def _look_at_convergence(self, g: Float[Tensor, " P"], g_r: Float[Tensor, " P"], notes: Notes) -> None:
        left, pull = float(g.norm()), float((g_r - g).norm())
        notes.measure(NewtonFacts, gradient_norm=left)
        if left > NOTICEABLE * pull:
            notes.assume(
                f"training had not converged: its gradient has norm {left:.3g}, the forgotten rows' pull {pull:.3g}",
                "the step compares two trainings that stop equally early, not their optima",
            )
