"""Respond and fine-tune: a short solve on a coreset, then a short training on the retained rows."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.damping import assume_anchor, ridge_of
from spotlessnet.core.data import Data
from spotlessnet.core.deprecated import OldName
from spotlessnet.core.errors import check_not_negative, check_positive
from spotlessnet.core.gaussian import Measured
from spotlessnet.core.scrub import METHODS, Notes, Sizes, Work
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.cost import expected_products, products
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.linear_response import removal_gradient
from spotlessnet.operators.solve import conjugate_gradient
from spotlessnet.operators.solvers import CG
from spotlessnet.training.fit import fit
from spotlessnet.training.tuning import Tuning

FEW = 10
"""Products that are nearly always all taken, so that no trial is needed."""


@dataclass(frozen=True)
class ResponseFacts(Measured):
    """The short solve on the coreset."""

    coreset: int | None = None
    residual: float | None = None
    step: float | None = None


@METHODS.register(
    "respond-and-finetune",
    paper="this package",
    needs=("retained data",),
    reads=("init", "recipe"),
    guarantee="none",
)
@dataclass(frozen=True)
class RespondAndFinetune(Tuning):
    r"""Move the weights as the retained data would ask for, then let a few epochs settle them.

    $$w' = w_{start} + \rho\,(w + s\,\delta - w_{start}), \qquad H_c\,\delta = g_f - \tfrac kN g_D$$

    with the Gauss-Newton matrix $H_c$ of a coreset, scaled up to $N_r$ rows, so that the cohort's own curvature is out.
    A handful of conjugate-gradient steps is enough: they find the directions that the cohort shaped most, and stopping
    early keeps saturated directions from running away. Then `epochs` of training on $D_r$ by the network's own recipe,
    with the rate times `lr_scale`, falling to zero.

    **Arguments** beside those of `Tuning`:

    - `coreset`: retained rows that stand for all of them in the solve; `seed` chooses them.
    - `iterations`: of conjugate gradients; zero leaves the step out.
    - `length`: $s$, a factor of the step.
    - `rewind`: $\rho$, how much of the way from the start is kept; one keeps all, zero begins anew.
    - `lr_scale`: the first rate of the fine-tuning, in units of the training's.
    - `epoch_fraction`: its epochs as a share of the training's; `epochs` counts where the recipe is not known.
    """

    epochs: int = 4
    coreset: int = 200
    iterations: int = 5
    length: float = 1.0
    rewind: float = 1.0
    lr_scale: float = 2.0
    epoch_fraction: float = 0.2

    speed = OldName("lr_scale")
    effort = OldName("epoch_fraction")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("RespondAndFinetune.coreset", self.coreset)
        check_positive("RespondAndFinetune.lr_scale", self.lr_scale)
        check_positive("RespondAndFinetune.epoch_fraction", self.epoch_fraction)
        for name in ("iterations", "length", "rewind"):
            check_not_negative(f"RespondAndFinetune.{name}", getattr(self, name))

    def foreseen(self, trained: Trained, split: Split) -> Work:
        if self.iterations <= FEW:
            return self.cost(trained, split)
        ridge = ridge_of(trained, None, Notes())
        return self.cost(trained, split, expected_products(trained, split, self._solver, ridge))

    def cost(self, trained: Trained, split: Split, expected: float | None = None) -> Work:
        sizes = Sizes.of(trained, split)
        tuned = Work.sure(self._epochs(trained) * len(split.retain) * sizes.gradient)
        if not self.iterations:
            return tuned
        coreset = min(self.coreset, len(split.retain))
        passing = min(min(coreset, 256) * sizes.row.each(1), sizes.room)
        slopes = Work.sure((len(split.forget) + coreset) * sizes.gradient, passing)
        solved = products(sizes, coreset, self.iterations, self.iterations if expected is None else expected)
        return tuned + slopes + replace(solved, bytes=0.0)

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        w = trained.weights
        if self.iterations:
            w = w + self.length * self._step(trained, split, notes)
        if self.rewind != 1:
            assume_anchor(trained, notes)
            start = trained.anchor if trained.init is None else trained.init
            # Toward the start, which knew nothing of any row: the fine-tuning then has less to undo.
            w = start + self.rewind * (w - start)
        recipe = self.recipe(trained, notes, split.retain, self.lr_scale)
        # Down to zero, so that a few epochs end at rest.
        recipe = recipe.but(schedule="cosine", epochs=self._epochs(trained))
        moved = replace(trained.at(w), init=trained.weights if trained.init is None else trained.init)
        return fit(moved, split.retain, recipe, seed=self.seed, label="fine-tuning").weights

    @property
    def _solver(self) -> CG:
        return CG(tolerance=1e-3, max_iterations=self.iterations)

    def _epochs(self, trained: Trained) -> int:
        """Of the fine-tuning: a share of the recipe's, and the method's own only where there is no recipe."""
        return self.epochs if trained.recipe is None else max(1, round(self.epoch_fraction * trained.recipe.epochs))

    def _step(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        n, k = len(split.retain), len(split.forget)
        rows = self._chosen(split.retain)
        # Sums over the coreset stand for those over all retained rows.
        scale = n / len(rows)
        g_f = gradient(trained, split.forget)
        g_r = scale * gradient(trained, rows)
        # g_D is g_f plus the coreset's share of g_r: exact where the coreset is all of D_r.
        b = removal_gradient(g_f, g_f + g_r, k, n + k)
        every = torch.full((len(rows),), scale, dtype=trained.dtype, device=trained.device)
        H = GaussNewton(trained, rows, sample_weights=every, ridge=n * ridge_of(trained, None, notes))
        # Few iterations on purpose: stopping early is what damps saturated directions.
        solved = conjugate_gradient(
            H, b, tolerance=self._solver.tolerance, max_iterations=self.iterations, on_failure="return"
        )
        step = solved.x
        notes.measure(
            ResponseFacts, coreset=len(rows), residual=float(solved.residual), step=float(step.double().norm())
        )
        return step

    def _chosen(self, retain: Data) -> Data:
        if self.coreset >= len(retain):
            return retain
        draw = torch.Generator().manual_seed(self.seed)
        return retain.select(torch.randperm(len(retain), generator=draw)[: self.coreset].sort().values)
