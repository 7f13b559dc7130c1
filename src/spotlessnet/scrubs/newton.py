"""Newton scrubbing: step to where the retained data alone would have led.

Golatkar, Achille and Soatto (2020), *Eternal Sunshine of the Spotless Net*, Propositions 3 and 4, with the sign and the
root put right.
"""

from dataclasses import dataclass, field
from math import ceil
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.covariance import Covariance, Diagonal, LowRankPlusRidge, Still
from spotlessnet.core.damping import assume_anchor, ridge_of
from spotlessnet.core.errors import (
    NeedError,
    NumericsError,
    SettingError,
    check_choice,
    check_not_negative,
    check_positive,
)
from spotlessnet.core.memory import Memory
from spotlessnet.core.scrub import Notes, Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.dense import eigenbasis, symmetric_exp, undo_and_redo
from spotlessnet.operators.fisher import fisher_diagonal
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.hessian import Hessian, dense_hessian
from spotlessnet.operators.kronecker import kronecker
from spotlessnet.operators.line_search import backtrack
from spotlessnet.operators.solve import conjugate_gradient
from spotlessnet.training.schedule import rate_at

CONVERGED = 1e-3
"""Below this norm the mean gradient of the whole objective counts as zero."""


@dataclass(frozen=True)
class Newton(Scrub):
    r"""One Newton step on the retained risk, then noise along its flat directions.

    $$h(w) = w - B^{-1}\big(\nabla L_{D_r}(w) - \nabla L_D(w)\big), \qquad \Sigma = \sqrt{s}\, B^{-1/2}, \qquad
      B = \nabla^2 L_{D_r}(w) + \gamma I$$

    What training on $D$ had left undone, $\nabla L_D(w)$, stays undone; `keep_residual=False` leaves it out, which is the
    papers' form and the same at a minimum. Where $L$ is quadratic and $w$ its minimum on $D$ the step lands on the
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
    - `dense_up_to`: the most weights for which $B$ is written out.
    - `memory`: works from $D_f$ alone, with the sums and the low-rank curvature that `remember` kept.
    """

    curvature: Literal["auto", "hessian", "gauss-newton"] = "auto"
    damping: float | None = None
    keep_residual: bool = True
    time: float | Literal["recipe"] | None = None
    clamp: bool = True
    search: bool = True
    strength: float = 0.0
    structure: Literal["diagonal", "kronecker", "dense"] = "diagonal"
    dense_up_to: int = 1000
    tolerance: float = 1e-6
    max_iterations: int = 500
    memory: Memory | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_choice("Newton.curvature", self.curvature, ("auto", "hessian", "gauss-newton"))
        check_choice("Newton.structure", self.structure, ("diagonal", "kronecker", "dense"))
        check_not_negative("Newton.strength", self.strength, "Smaller adds less noise.")
        check_not_negative("Newton.dense_up_to", self.dense_up_to)
        check_positive("Newton.tolerance", self.tolerance)
        check_positive("Newton.max_iterations", self.max_iterations)
        if self.damping is not None:
            check_not_negative("Newton.damping", self.damping, "Start from the weight decay.")
        if isinstance(self.time, str):
            check_choice("Newton.time", self.time, ("recipe",))
        elif self.time is not None:
            check_positive("Newton.time", self.time, "None means trained to the end.")

    @property
    def is_noisy(self) -> bool:
        return self.strength > 0

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        ridge = ridge_of(trained, self.damping, notes)
        assume_anchor(trained, notes)
        n, k = len(split.retain), len(split.forget)
        g_r = gradient(trained, split.retain, ridge=n * trained.known_decay).double() / n
        g_f = gradient(trained, split.forget, ridge=k * trained.known_decay).double() / k
        g = (n * g_r + k * g_f) / (n + k)
        self._look_at_convergence(g, notes)
        if self.time is not None:
            return trained.weights + self._flow(trained, split, g, g_r, ridge, notes).to(trained.dtype)
        target = g if self.keep_residual else torch.zeros_like(g)
        step = -self._solve(trained, split, (g_r - target).to(trained.dtype), ridge, notes)
        scale = self._scale(trained, split, step, g_r, target, notes) if self.search else 1.0
        notes.fact(scale=scale, step=scale * float(step.double().norm()))
        return trained.weights + scale * step

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        if not self.is_noisy:
            return Still.at(trained.weights)
        ridge, n = ridge_of(trained, self.damping, notes), len(split.retain)
        if self.structure == "diagonal":
            B: Covariance = Diagonal(fisher_diagonal(trained, split.retain) / n + ridge)
        elif self.structure == "kronecker":
            B = kronecker(trained, split.retain).map(lambda e: e.clamp(min=0) / n + ridge)
        else:
            B = LowRankPlusRidge.dense(self._dense(trained, split, ridge, notes).to(trained.dtype))
        return B.map(lambda e: (self.strength / e.clamp(min=ridge)).sqrt())
