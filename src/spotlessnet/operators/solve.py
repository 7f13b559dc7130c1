"""Solve `(A + damping I) x = b` by conjugate gradients, from products with `A` alone.

Why not a library's: `linear_operator.utils.linear_cg` stops on the mean of residuals it never recomputes (by default
at tolerance one), steps over negative curvature in silence and only warns when it fails; here the true residual of
each right-hand side decides, and a failure says why.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from spotlessnet.core.errors import (
    MismatchError,
    SettingError,
    SolveError,
    check_choice,
    check_finite,
    check_not_negative,
    check_positive,
)
from spotlessnet.core.progress import track

Product = Callable[[Tensor], Tensor]

FEWEST = 10
"""Products that are looked back on at least before it is said that they brought nothing."""


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solve gave.

    **Arguments:**

    - `x`: the solution, shaped like the right-hand side.
    - `iterations`: products with the matrix along search directions; checks of the true residual come on top.
    - `residual`: `‖b − A x‖ / ‖b‖`, recomputed from `x`, one for each right-hand side.
    - `converged`: which of them reached the tolerance.
    - `failure`: why the others did not; empty where all did.
    """

    x: Float[Tensor, "*K P"]
    iterations: int
    residual: Float[Tensor, "*K"]
    converged: Bool[Tensor, "*K"]
    failure: str = ""


def conjugate_gradient(
    multiply: Any,
    b: Float[Tensor, "*K P"],
    *,
    preconditioner: Any = None,
    start: Float[Tensor, "*J Q"] | None = None,
    damping: float = 0.0,
    tolerance: float = 1e-6,
    max_iterations: int = 500,
    recheck: int = 50,
    enough: float = 0.0,
    on_failure: str = "raise",
    label: str = "solving",
) -> Solution:
    r"""Solve $(A + \mu I)\,x = b$ for a positive definite matrix known by its products.

    Equivalent to `scipy.sparse.linalg.cg(..., atol=0)` on each row of `b`, except that convergence is granted only on
    $\|b - (A + \mu I) x\| \le \text{tolerance} \cdot \|b\|$ recomputed from `x`. Each right-hand side has its own step
    lengths and leaves the products when it is done. Inner products are summed in float64 whatever the number format.

    **Arguments:**

    - `multiply`: `A`, a function of rows of vectors or an object with `.multiply`; for a single vector `b` it is
      given single vectors.
    - `preconditioner`: an object with `.solve` (any `Covariance`: `Diagonal`, `Kronecker`, `LowRankPlusRidge`), or a
      function that multiplies by an approximate inverse.
    - `start`: a first guess.
    - `damping`: $\mu$, added to the matrix as it is; never raised behind the caller's back.
    - `recheck`: after how many iterations the recurrence is replaced by the true residual.
    - `enough`: stop where a product of late lowered $\tfrac12 x^\top (A + \mu I)\,x - b^\top x$ by less than this share
      of all that was gained, on average over the last tenth of them and ten at least (Martens 2010, *Deep learning via
      Hessian-free optimization*). `failure` then says so, and nothing is raised. Zero never stops for that.
    - `on_failure`: `"raise"` a `SolveError`, or `"return"` what was reached, with the reason in `failure`.
    """
    check_choice("on_failure", on_failure, ("raise", "return"))
    check_not_negative("damping", damping)
    check_not_negative("enough", enough)
    check_positive("tolerance", tolerance)
    if max_iterations < 1 or recheck < 1:
        raise SettingError(
            f"`max_iterations` and `recheck` must be at least 1, but got {max_iterations} and {recheck}."
        )
    check_finite("The right-hand side", b, "Check the gradient it came from.")
    if start is not None and (start.shape != b.shape or start.device != b.device):
        raise MismatchError(
            f"The first guess must lie beside the right-hand side, {tuple(b.shape)} on {b.device}, "
            f"but is {tuple(start.shape)} on {start.device}."
        )
    run = _Run(
        apply=_damped(getattr(multiply, "multiply", multiply), damping, single=b.ndim == 1),
        precondition=_rows_of(getattr(preconditioner, "solve", preconditioner), single=b.ndim == 1),
        b=b.reshape(-1, b.shape[-1]),
        x=torch.zeros_like(b).reshape(-1, b.shape[-1]) if start is None else start.reshape(-1, b.shape[-1]).clone(),
        damping=damping,
        tolerance=tolerance,
        recheck=recheck,
        enough=enough,
        patient=on_failure == "return",
    )
    with torch.no_grad():
        run.begin(fresh=start is None)
        for _ in track(range(max_iterations), label):
            if not run.active.any():
                break
            run.step()
        run.finish()
    shape = b.shape[:-1]
    done = (run.residual <= tolerance).reshape(shape)
    return Solution(run.x.reshape(b.shape), run.iterations, run.residual.reshape(shape), done, run.failure)


@dataclass
class _Run:
    """The state of a solve: the letters of the textbook, one row for each right-hand side."""

    apply: Product
    precondition: Product | None
    b: Tensor
    x: Tensor
    damping: float
    tolerance: float
    recheck: int
    enough: float
    patient: bool
    iterations: int = 0
    failure: str = ""
    active: Tensor = field(init=False)
    residual: Tensor = field(init=False)
    norm: Tensor = field(init=False)
    rounded: Tensor = field(init=False)
    r: Tensor = field(init=False)
    p: Tensor = field(init=False)
    heights: list[Tensor] = field(default_factory=list)

    def begin(self, fresh: bool) -> None:
        self.norm = _dot(self.b, self.b).sqrt()
        # The solution for a zero right-hand side is zero whatever the guess was, and dividing by its norm would give
        # NaN.
        self.x[self.norm == 0] = 0
        self.r = self.b.clone() if fresh else self.b - self.apply(self.x)
        self.r[self.norm == 0] = 0
        self.residual = _dot(self.r, self.r).sqrt() / self.norm.clamp(min=torch.finfo(torch.float64).tiny)
        # Not `>`: NaN must count as not converged.
        self.active = ~(self.residual <= self.tolerance)
        self.rounded = torch.full_like(self.residual, torch.inf)
        self.p = torch.zeros_like(self.b)
        self.heights.append(self.height())
        if self.active.any():
            rows = self.active.nonzero().squeeze(1)
            self.turn(rows, torch.zeros_like(self.r[rows]), torch.ones_like(self.residual[rows]))

    def step(self) -> None:
        self.iterations += 1
        rows = self.active.nonzero().squeeze(1)
        p = self.p if self.active.all() else self.p[rows]  # a copy is as long as the weights
        Ap = self.apply(p)
        curvature = _dot(p, Ap)
        # Again so that NaN is caught: along such a direction there is no minimum to step to.
        bad = ~(curvature > 0) | curvature.isinf()
        if bad.any():
            self.fail(rows[bad], self.why_bad(curvature[bad], _dot(p, p)[bad]))
        rows, p, Ap, curvature = rows[~bad], p[~bad], Ap[~bad], curvature[~bad]
        if not len(rows):
            return
        # Not rᵀz / pᵀAp: after the recurrence was replaced by the true residual only pᵀr still minimises along p.
        alpha = (_dot(p, self.r[rows]) / curvature).to(p.dtype).unsqueeze(1)
        self.x[rows] += alpha * p
        self.r[rows] -= alpha * Ap
        size = _dot(self.r[rows], self.r[rows]).sqrt() / self.norm[rows]
        # The recurrence drifts from the true residual in float32, so it may suggest convergence but never grant it.
        due = (size <= self.tolerance) | (self.iterations % self.recheck == 0)
        restart = torch.zeros_like(due)
        if due.any():
            restart[due] = self.look(rows[due])
            self.judge(rows[restart])
            self.active[rows[due]] &= ~(self.residual[rows[due]] <= self.tolerance)
        if self.enough:
            self.look_back()
        going = self.active[rows]
        if going.any():
            # A zero product makes β zero: the direction starts anew from the residual just recomputed.
            Ap = torch.where(restart.unsqueeze(1), 0.0, Ap)
            self.turn(rows[going], Ap[going], curvature[going])

    def height(self) -> Tensor:
        """`½xᵀAx − bᵀx` without another product: `Ax` is `b` less the residual."""
        return -0.5 * _dot(self.x, self.b + self.r)

    def look_back(self) -> None:
        """Let go of those for which the last products brought next to nothing."""
        self.heights.append(self.height())
        back = max(FEWEST, self.iterations // 10)
        if self.iterations <= back:
            return
        gained = self.heights[-1 - back] - self.heights[-1]
        done = self.active & (gained <= self.enough * back * (self.heights[0] - self.heights[-1]))
        if done.any():
            self.look(done.nonzero().squeeze(1))
            self.active &= ~done
            worst = float(self.residual[done].max())
            self.failure = self.failure or (
                f"Products were stopped after {self.iterations}: the last {back} brought less than "
                f"{self.enough * back:.2g} of what all of them did, and left {worst:.2g} of the right-hand side. Lower "
                "`enough` for more."
            )

    def look(self, rows: Tensor) -> Tensor:
        """Replace the recurrence by the true residual; where did rounding make up most of that, above the tolerance?"""
        r = self.b[rows] - self.apply(self.x[rows])
        drift = _dot(r - self.r[rows], r - self.r[rows]).sqrt() / self.norm[rows]
        self.r[rows] = r
        self.residual[rows] = _dot(r, r).sqrt() / self.norm[rows]
        return ~(self.residual[rows] <= self.tolerance) & (drift > 0.5 * self.residual[rows])

    def judge(self, rows: Tensor) -> None:
        """Rounding has taken over: start anew from the true residual, and give up if the last time was no help."""
        # Half: a restart that gains less than a bit gains nothing that rounding does not take back.
        stuck = rows[~(self.residual[rows] < 0.5 * self.rounded[rows])]
        self.rounded[rows] = self.residual[rows]
        if len(stuck):
            self.fail(
                stuck,
                f"The residual must fall to {self.tolerance:g} of the right-hand side, but the true one stays at "
                f"{float(self.residual[stuck].max()):.2g}: {str(self.b.dtype).removeprefix('torch.')} gives no more. "
                f"Loosen `tolerance`, solve in float64, or raise the damping (now {self.damping:g}).",
            )

    def turn(self, rows: Tensor, Ap: Tensor, curvature: Tensor) -> None:
        """The next search direction, `p ← z + β p` with `z = M⁻¹ r` and `β = −zᵀAp / pᵀAp`; zero `Ap` starts anew."""
        r = self.r[rows]
        z = r if self.precondition is None else self.precondition(r)
        if z.shape != r.shape:
            raise MismatchError(f"The preconditioner must return {tuple(r.shape)}, but gave {tuple(z.shape)}.")
        rz = _dot(r, z)
        beta = -_dot(z, Ap) / curvature
        self.p[rows] = z + beta.to(z.dtype).unsqueeze(1) * self.p[rows]
        bad = ~(rz > 0)
        if bad.any():
            self.fail(
                rows[bad],
                f"The preconditioner must be positive definite, but rᵀM⁻¹r = {float(rz[bad].min()):.3g} after "
                f"{self.iterations} iterations. Raise its ridge, or solve without it.",
            )

    def why_bad(self, curvature: Tensor, length: Tensor) -> str:
        if not curvature.isfinite().all():
            return (
                f"The product with the matrix must be finite, but was not after {self.iterations} iterations. "
                "Check the weights and the data for NaN, or raise the damping."
            )
        least = float((curvature / length).min())
        return (
            f"The matrix must be positive definite, but after {self.iterations} iterations a direction has curvature "
            f"{least:.3g}. Raise the damping (now {self.damping:g}) by more than {max(0.0, -least):.3g}, "
            "or use a curvature that cannot be negative, such as Gauss-Newton."
        )

    def fail(self, rows: Tensor, why: str) -> None:
        if not self.patient:
            raise SolveError(why)
        self.failure = self.failure or why
        self.active[rows] = False
        self.residual[rows] = torch.inf  # until `finish` looks

    def finish(self) -> None:
        open_rows = (self.active | self.residual.isinf()).nonzero().squeeze(1)
        if not len(open_rows):
            return
        self.look(open_rows)
        late = self.active & ~(self.residual <= self.tolerance)
        if late.any():
            worst = float(self.residual[late].max())
            self.fail(
                late.nonzero().squeeze(1)[:0],
                f"The residual must fall to {self.tolerance:g} of the right-hand side, but is {worst:.2g} after "
                f"{self.iterations} iterations. Allow more (`max_iterations`), give a preconditioner, or raise the "
                f"damping (now {self.damping:g}).",
            )


def _dot(a: Float[Tensor, "K P"], b: Float[Tensor, "K P"]) -> Float[Tensor, " K"]:
    return (a * b).sum(dim=1, dtype=torch.float64)


def _rows_of(function: Product | None, *, single: bool) -> Product | None:
    """A function of one vector as a function of rows with one row."""
    if function is None or not single:
        return function
    return lambda v: function(v[0]).unsqueeze(0)


def _damped(multiply: Product, damping: float, *, single: bool) -> Product:
    product = _rows_of(multiply, single=single) or multiply

    def apply(v: Tensor) -> Tensor:
        Av = product(v)
        if Av.shape != v.shape:
            raise MismatchError(f"The product with {tuple(v.shape)} must keep that shape, but gave {tuple(Av.shape)}.")
        return Av + damping * v if damping else Av

    return apply
