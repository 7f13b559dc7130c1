"""NTK scrubbing: linearise the network, solve for what training without the forgotten rows would have given.

Golatkar, Achille and Soatto (2020), *Forgetting Outside the Box*, with the signs and the residual put right.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.damping import ridge_of
from spotlessnet.core.deprecated import OldName, OldPart
from spotlessnet.core.errors import (
    NeedError,
    NumericsError,
    SettingError,
    check_choice,
    check_not_negative,
    check_positive,
)
from spotlessnet.core.scrub import METHODS, Notes, Scrub, Work
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods.ntk.cost import ntk_cost, products_tried
from spotlessnet.methods.ntk.facts import NTKFacts, is_nearest, look_at_departure, record_solutions
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.holdout_scale import check_holdout_can_match, holdout_scale
from spotlessnet.operators.line_search import backtrack, summed_objective
from spotlessnet.operators.linear_response import chosen, removal_gradient
from spotlessnet.operators.linear_training import LinearTraining
from spotlessnet.operators.solvers import AUTO, CG, S, Solver, solver_of
from spotlessnet.operators.trapezium import published_scale, trapezium_scale
from spotlessnet.operators.trust import dampings, least_trusted
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.precomputed.step import faithful_step, step_from_statistics

ROUNDING = 32
"""A solution is not asked for more digits than so many units in the last place."""


@METHODS.register(
    "ntk",
    paper="Golatkar, Achille and Soatto (2020), Forgetting Outside the Box",
    needs=("retained data or statistics",),
    reads=("statistics", "init"),
    guarantee="exact for networks linear in their weights with squared loss",
)
@dataclass(frozen=True)
class NTK(Scrub):
    r"""The step from the end of linearised training on $D$ to the end of linearised training on $D_r$.

    $$H_r\,\delta = g_f - \tfrac kN g_D, \qquad H_r = J_r^\top \Lambda_r J_r + N_r(\lambda + \gamma) I$$

    with sums $g$ of loss gradients at $w$: $D_f$'s gradient **and** curvature go, and what training had left undone on
    $D$ stays undone on $D_r$. For a network linear in its weights, squared loss, $\gamma = 0$ and $w$ the optimum on
    $D$, $w + \delta$ is the retrained network. Without decay, and with more weights than equations, the limit of little
    decay is taken for squared loss, $\delta = H_r^+ b - (I - H_r^+ H_r)(w - w_{start})$: what training has written
    where no retained row looks goes. Adds no noise; `chain(NTK(), Finetune(epochs=3), Fisher())` does.

    **Arguments:**

    - `output`: $\Lambda$: `"softmax"` is the loss's own Hessian in the outputs, `"identity"` what the paper preferred;
      `"exact"` solves the linearised problem with the loss as it is, by Newton steps.
    - `linearised`: at the trained weights (`"end"`) or where training began (`"start"`).
    - `residual`: `"keep"` as above; `"solve"` solves for the ends of linearised training on $D$ and on $D_r$ and takes
      their difference, which is the same only where $w$ is the first of the two.
    - `solver`: `Dual()`, `CG(tolerance=..., max_iterations=...)`, `LowRank(rank=...)`, or `Auto()` for the cheaper of
      the first two by operation count. The facts say how far the step can at most be from the true one,
      `error_at_most`, for the ridge limits that.
    - `damping`: $\gamma$, in units of the decay. `"auto"` begins with none and raises it until the network delivers
      half of the decrease that the linear model promised: none for strong decay, much where the decay is weak and the
      softmax saturated, where the undamped step would wreck the network.
    - `search`: halve the step until the network itself has less of what the step was to lower.
    - `trapezium`: lengthen the step by the supplement's trapezium, held within a factor of four.
    - `calibrate`: `"holdout"` chooses the length at which forgotten and held-out rows have the same loss.
    - `variant`: `"published"` follows the published code, for comparison only: identity, at the end, without the term
      $J(w_{start} - w)$, with its own trapezium; the settings above do not apply then, save `solver`.
    - `statistics`: the sums that `precompute` kept; only $D_f$ is then read, and the kept directions stand for $H_D$.
      The automatic damping is then the least at which the network follows the linear model on $D_f$. From the second
      request on $D_r$ is read too, to see that the step takes nothing back.
    """

    output: Literal["identity", "softmax", "exact"] = "softmax"
    linearised: Literal["end", "start"] = "end"
    residual: Literal["keep", "solve"] = "keep"
    solver: Solver = AUTO
    damping: float | Literal["auto"] = "auto"
    search: bool = True
    trapezium: bool = False
    calibrate: Literal["none", "holdout"] = "none"
    variant: Literal["corrected", "published"] = "corrected"
    seed: int = 0
    batch_size: int = 256
    statistics: Statistics | None = field(default=None, repr=False)

    batch = OldName("batch_size")
    memory = OldName("statistics")
    solution = OldPart("solver", solver_of, lambda solver: solver.word)
    rank = OldPart("solver", solver_of)
    precondition = OldPart("solver", solver_of)
    tolerance = OldPart("solver", solver_of)
    max_iterations = OldPart("solver", solver_of)

    def __post_init__(self) -> None:
        check_choice("NTK.output", self.output, ("identity", "softmax", "exact"))
        check_choice("NTK.linearised", self.linearised, ("end", "start"))
        check_choice("NTK.residual", self.residual, ("keep", "solve"))
        check_choice("NTK.calibrate", self.calibrate, ("none", "holdout"))
        check_choice("NTK.variant", self.variant, ("corrected", "published"))
        if self.damping != "auto":
            check_not_negative("NTK.damping", float(self.damping), 'Start from the weight decay, or say "auto".')
        asked = (self.output, self.variant, self.linearised)
        if self.statistics is not None and asked != ("softmax", "corrected", "end"):
            raise SettingError(
                "`NTK.statistics` hold the loss's own curvature at the trained weights; `output`, `linearised` and "
                "`variant` must keep their defaults."
            )
        check_positive("NTK.batch_size", self.batch_size)
        if self.trapezium and self.calibrate != "none":
            raise SettingError(
                "`NTK.trapezium` and `NTK.calibrate` both choose the length of the step, but both were asked for. "
                "Leave one out."
            )

    def cost(self, trained: Trained, split: Split) -> Work:
        return ntk_cost(self, trained, split)

    def foreseen(self, trained: Trained, split: Split) -> Work:
        if self.statistics is not None:
            return self.cost(trained, split)
        solver = chosen(self.solver, trained, split.retain)
        if self.output == "exact" and self.variant == "corrected":
            # The exact problem is one such system after another, whatever solver is named.
            solver = CG(self.solver.tolerance, self.solver.product_limit)
        if not isinstance(solver, CG):
            return self.cost(trained, split)
        return ntk_cost(self, trained, split, products_tried(self, trained, split, self._precise(solver, trained)))

    @property
    def is_trusted(self) -> bool:
        """Whether the damping is looked for."""
        return self.damping == "auto" and self.linearised == "end"

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        if self.statistics is not None:
            return self._from_statistics(self.statistics, trained, split, notes)
        if self.calibrate == "holdout":
            check_holdout_can_match(trained, split)  # before any work
        self._say_what_is_assumed(trained, notes)
        # A chain may hold the method twice: what an earlier one measured is not this one's.
        notes.measured[NTKFacts] = NTKFacts(variant=self.variant)
        if self.variant == "published":
            step, scale = self._published(trained, split, notes)
        else:
            step = self._step(trained, split, notes)
            scale = self._scale(trained, split, step, notes)
        notes.measure(NTKFacts, scale=scale, step=scale * float(step.double().norm()))
        return trained.weights + scale * step

    def _from_statistics(
        self, statistics: Statistics, trained: Trained, split: Split, notes: Notes
    ) -> Float[Tensor, " P"]:
        """The same system in the low rank that was kept; trust is measured on the rows that must go."""
        if self.damping == "auto":
            weight_decay = ridge_of(trained, 0.0, notes)
            found = faithful_step(
                statistics, trained, split.forget, weight_decay, notes, retain=split.kept, seed=self.seed
            )
        else:
            ridge = ridge_of(trained, float(self.damping), notes)
            found = step_from_statistics(
                statistics, trained, split.forget, ridge, notes, retain=split.kept, seed=self.seed
            )
        notes.measure(NTKFacts, variant="from statistics", step=float(found.step.double().norm()))
        return trained.weights + found.step

    def _precise(self, solver: S, trained: Trained) -> S:
        """No digits are asked for that the number format does not have."""
        return solver.no_finer_than(ROUNDING * torch.finfo(trained.dtype).eps)

    def _step(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        fixed = 0.0 if self.damping == "auto" else float(self.damping)
        linear = self.linearisation(trained, output=self.output, damping=fixed)
        linear = replace(linear, minimum_norm=self._is_minimum_norm(trained, split, notes))
        if self.residual == "solve":
            step = linear.end(split.retain) - linear.end(split.whole)
        else:
            N, k = len(split.retain) + len(split.forget), len(split.forget)
            g_f, g_r = linear.slope(split.forget), linear.slope(split.retain)
            # OB Prop. 2 with its signs put right: see docs/papers.md.
            b = removal_gradient(g_f, g_f + g_r, k, N)
            del g_f, g_r  # as long as the weights, each
            if self.is_trusted and not linear.minimum_norm:
                step, linear = self.trusted(trained, split, b, linear, notes)
                if trained.weight_decay == 0:
                    # In units of the decay, which is the mean loss's: so are the curvatures that are left short.
                    notes.assume(
                        f"training had no decay; a damping of {linear.damping:.2g} keeps the step finite",
                        "along directions of less curvature than that the step is shorter than the linear model's",
                    )
            else:
                step = linear.response(split.retain, b)
            if linear.minimum_norm:
                # What training wrote where no row looks at all, removing nothing would take out too: it stays.
                step = step - linear.response(split.whole, torch.zeros_like(b))
        notes.measure(NTKFacts, damping=linear.damping)
        record_solutions(linear, notes)
        if linear.minimum_norm:
            look_at_departure(trained, split.forget, step, notes)
        return step

    def _is_minimum_norm(self, trained: Trained, split: Split, notes: Notes) -> bool:
        """Whether nothing but the start holds some of the weights, and it is known where that was."""
        batch = next(iter(trained.batches(split.retain, 8)))
        f = trained.outputs(batch.x).detach()
        equations = len(split.retain) * f[0].numel()
        if trained.known_weight_decay or self.damping not in ("auto", 0.0) or equations >= trained.size:
            return False
        v = torch.ones_like(f)
        # A quadratic loss has the same Hessian everywhere; two points tell.
        H = (trained.loss.hessian_product(at, batch.y, v) for at in (f, f + 1))
        quadratic = self.output == "identity" or all(torch.allclose(Hv, v) for Hv in H)
        if trained.weight_decay is None or not quadratic:
            notes.assume(
                f"there is no decay that is known, and {equations} equations leave the other of {trained.size} weights "
                "free; the step leaves them as they are",
                "what the forgotten rows wrote where no retained row looks stays there",
            )
            return False
        if trained.init is None or self.output == "exact":
            lacking = "`start`" if trained.init is None else 'an `output` other than "exact"'
            raise NeedError(
                f"Without decay, {equations} equations for {trained.size} weights have a solution only as the one "
                f"nearest to where training began, which needs {lacking}. Give that, or a decay."
            )
        return True

    def trusted(
        self, trained: Trained, split: Split, b: Float[Tensor, " P"], linear: LinearTraining, notes: Notes
    ) -> tuple[Float[Tensor, " P"], LinearTraining]:
        """The least damping at which the network follows the linear model on the retained rows."""
        D_r, w, made = split.retain, trained.weights, {0.0: linear}
        ridge = len(D_r) * trained.known_weight_decay
        # The network's own objective on D_r, tilted so that it falls along b at w: what the step is to lower.
        tilt = gradient(trained, D_r, ridge=ridge, batch_size=self.batch_size) + b

        def height(at: Float[Tensor, " P"]) -> float:
            return summed_objective(trained, D_r, at, ridge=ridge, tilt=tilt, batch_size=self.batch_size)

        def step_at(damping: float) -> Float[Tensor, " P"]:
            made.setdefault(damping, linear.damped(damping))
            return made[damping].response(D_r, b)

        begin = height(w)
        # Small beside the curvature that the push meets, so that the first damping is hardly felt.
        first = max(trained.known_weight_decay, 1e-3 * linear.curvature_along(D_r, b))
        found = least_trusted(
            step_at,
            lambda step, damping: made[damping].promise(D_r, b, step),
            lambda step: begin - height(w + step),
            # Without any decay the undamped system may be singular, so it is not tried.
            dampings(first) if trained.known_weight_decay else dampings(first)[1:],
        )
        notes.measure(NTKFacts, trust=found.ratio)
        return found.step, made[found.damping]

    def _published(self, trained: Trained, split: Split, notes: Notes) -> tuple[Float[Tensor, " P"], float]:
        r"""$u(S) = -(J_S^\top J_S + |S|\lambda)^{-1} g_S$: without the decay's gradient, hence far too short."""
        notes.assume(
            "the published code's formula was followed, for comparison only",
            "the step is not the retrained one even for a linear network",
        )
        linear = self.linearisation(trained, output="identity", damping=0.0, linearised="end")
        # The code's own slope, without J(w₀ − w), which is why this comes out far too short.
        u_r, u = (-linear.solve(data, linear.slope(data)) for data in (split.retain, split.whole))
        record_solutions(linear, notes)
        return u_r - u, published_scale(u_r - u, trained.weights - trained.anchor - u_r)

    def linearisation(
        self,
        trained: Trained,
        *,
        output: Literal["identity", "softmax", "exact"],
        damping: float,
        linearised: Literal["end", "start"] | None = None,
    ) -> LinearTraining:
        """The linearised training that these settings ask for."""
        at_start = (linearised or self.linearised) == "start"
        if at_start and trained.init is None:
            raise NeedError(
                '`NTK(linearised="start")` needs the weights training began with, but they are not known. Give '
                "`start`, or linearise at the end."
            )
        return LinearTraining(
            trained,
            trained.anchor if at_start else trained.weights,
            output=output,
            damping=damping,
            solver=self._precise(self.solver, trained),
            seed=self.seed,
            batch_size=self.batch_size,
        )

    def _scale(self, trained: Trained, split: Split, step: Float[Tensor, " P"], notes: Notes) -> float:
        if self.calibrate == "holdout":
            match = holdout_scale(trained, split, step)
            notes.measure(NTKFacts, forget_loss=match.forget_loss, holdout_loss=match.holdout_loss, matched=match.meets)
            if not match.meets:
                notes.assume(
                    "no length of the step between a quarter and twice met the held-out loss; it was left as it is",
                    "the length of the step is that of the linear model",
                )
            return match.scale
        scale = 1.0
        if self.trapezium:
            linear = self.linearisation(trained, output=self.output, damping=notes.of(NTKFacts).damping or 0.0)
            linear = replace(linear, minimum_norm=is_nearest(notes))
            found = trapezium_scale(step, trained.weights - linear.end(split.whole))
            notes.measure(NTKFacts, trapezium=found.used, trapezium_unguarded=found.raw)
            scale = found.used
        return scale * self._searched(trained, split, scale * step, notes) if self.search else scale

    def _searched(self, trained: Trained, split: Split, step: Float[Tensor, " P"], notes: Notes) -> float:
        r"""On $N_r L_{D_r}(\theta) - \tfrac{N_r}{N} G_D(w)^\top\theta$, whose minimum the step aims at."""
        n, N = len(split.retain), len(split.retain) + len(split.forget)
        ridge = n * trained.known_weight_decay
        G_r = gradient(trained, split.retain, ridge=ridge, batch_size=self.batch_size)
        G_D = G_r + gradient(
            trained, split.forget, ridge=(N - n) * trained.known_weight_decay, batch_size=self.batch_size
        )
        slope = float((G_r - (n / N) * G_D).double() @ step.double())
        notes.measure(NTKFacts, training_gradient=float(G_D.double().norm()) / N)
        if slope >= 0 or is_nearest(notes):
            # Not a way down at w, as may be when linearised elsewhere, or where retained rows see nothing of it.
            notes.measure(NTKFacts, searched=False)
            return 1.0
        found = backtrack(
            trained, split.retain, step, slope, ridge=ridge, tilt=(n / N) * G_D, batch_size=self.batch_size
        )
        if not found.accepted:
            raise NumericsError(
                "The step must bring the network closer to where the retained rows lead, but no length of it does. "
                f"Raise `NTK.damping` (now {self.damping})."
            )
        notes.measure(NTKFacts, searched=True)
        return found.scale

    def _say_what_is_assumed(self, trained: Trained, notes: Notes) -> None:
        if trained.weight_decay is None:
            notes.assume(
                "the decay is not known and was taken as zero; the damping stands in for it",
                "the step is that of a network trained with the damping as its decay",
            )
        uses_anchor = self.residual == "solve" or self.trapezium or self.variant == "published"
        if trained.init is None and trained.known_weight_decay and (uses_anchor or self.search):
            notes.assume(
                "the start is not known; the decay was taken to pull to zero",
                "the length of the step rests on that guess",
            )
