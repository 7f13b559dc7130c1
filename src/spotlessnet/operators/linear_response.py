"""How the weights of a linearised network answer when rows are removed: one linear system, solved in three ways.

Golatkar, Achille and Soatto (2020), *Forgetting Outside the Box*, Proposition 2, in the form that keeps the training
residual. Sums over rows throughout; the ridge is whatever the caller adds up (decay, damping), in sum form.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError
from spotlessnet.core.gaussian import Covariance
from spotlessnet.core.progress import budget
from spotlessnet.core.trained import Trained
from spotlessnet.operators.factor import factor
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.jacobian import Jacobian
from spotlessnet.operators.kernel import kernel
from spotlessnet.operators.low_rank import LowRank, low_rank
from spotlessnet.operators.output_roots import Output, between_roots, into_roots, out_of_roots, output_roots
from spotlessnet.operators.room import footprint
from spotlessnet.operators.solve import conjugate_gradient
from spotlessnet.operators.solvers import CG, Auto, Dual, Solver
from spotlessnet.operators.solvers import LowRank as LowRankSolver

Form = Literal["dual", "primal"]
Solved = Literal["dual", "primal", "low rank", "newton", "minimum norm"]

DENSE_LIMIT = 10_000
"""Rows times outputs beyond which a dense kernel is never formed by itself."""

REFINEMENTS = 4
"""How often a dual solution is improved on what it left."""

PLAIN = CG()
"""Products until the solution is good: what any system can be solved by."""

KERNELS = 3 * 8
"""Bytes for each entry of a kernel: itself, its roots and its factor in float64."""

EXPECTED_ITERATIONS = 50
"""How many products a conjugate-gradient solve is taken to need when the forms are compared."""


@dataclass(frozen=True, eq=False)
class Answer:
    """A solved system: the step, how it was found and how well it fits.

    **Arguments:**

    - `form`: how it was solved; `"newton"` where the problem was not linear and took several steps, `"minimum norm"`
      where nothing but the start decides about directions that no row sees.
    - `residual`: `‖b − H x‖ / ‖b‖`, recomputed from `x`; for `"minimum norm"` what retained rows see of the part that
      they should not see, as a share.
    - `error`: a limit of `‖x − x*‖ / ‖x‖`, from the residual and the ridge; NaN where none is known.
    - `failure`: why the residual is not below the tolerance; empty where it is.
    """

    x: Float[Tensor, " P"]
    form: Solved
    residual: float
    iterations: int = 0
    failure: str = ""
    error: float = math.nan


@dataclass(eq=False)
class Known:
    """What a system needs that does not depend on its ridge: found by the first solve, used again by the others."""

    theta: Float[Tensor, "K K"] | None = None
    strongest: LowRank | None = None


def removal_gradient(
    forget: Float[Tensor, " P"], whole: Float[Tensor, " P"], forgotten: int, total: int
) -> Float[Tensor, " P"]:
    r"""What pushes the weights when `D_f` goes: $b = g_f - \tfrac kN g_D$, with `g` the sums of loss gradients.

    The step $\delta = H_r^{-1} b$ solves $\nabla L_{D_r}(w + \delta) = \nabla L_D(w)$ in means, that is
    $G_r(w + \delta) = \tfrac{N_r}{N} G_D(w)$ in sums, to first order: what training had left undone stays undone. The
    decay cancels, so neither it nor the start need be known here. At a minimum it is
    $g_f + k\lambda(w - w_{start})$, the paper's right-hand side.

    **Arguments:**

    - `forget`, `whole`: $g_f$ over the forgotten rows and $g_D$ over all of them (from data, or from statistics).
    - `forgotten`, `total`: $k$ and $N$.
    """
    return forget - (forgotten / total) * whole


def respond(curvature: Covariance, b: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
    """`H⁻¹ b` for a curvature that came from elsewhere, such as statistics: the ridge is already in it."""
    return curvature.solve(b)


def solve_response(
    trained: Trained,
    data: Data,
    b: Float[Tensor, " P"],
    *,
    ridge: float,
    output: Output = "softmax",
    solver: Solver = PLAIN,
    seed: int = 0,
    batch_size: int = 256,
    known: Known | None = None,
) -> Answer:
    r"""Solve $(J^\top \Lambda J + \rho I)\,x = b$ with the Jacobian `J` of `trained` over `data`.

    **Arguments:**

    - `ridge`: $\rho$, the count of rows times decay and damping.
    - `output`: $\Lambda$, sample by sample: `"identity"`, or `"softmax"` for the loss's own Hessian in the outputs.
    - `solver`: how; `Auto` takes the cheaper of `Dual` and `CG`.
    - `known`: one and the same for several solves that differ in `b` and `ridge` alone.
    """
    known = Known() if known is None else known
    solver = chosen(solver, trained, data)
    curvature = GaussNewton(trained, data, output=_operator_name(output), batch_size=batch_size)
    draw = torch.Generator().manual_seed(seed)
    # Directions are found once per system: low rank needs them as the answer, CG as a preconditioner.
    width = 0
    if isinstance(solver, LowRankSolver):
        width = solver.rank
    elif isinstance(solver, CG):
        width = solver.precondition
    if width and known.strongest is None:
        known.strongest = low_rank(curvature, min(width, trained.size), generator=draw)
    strongest = known.strongest
    if isinstance(solver, CG):
        solved = conjugate_gradient(
            curvature,
            b,
            damping=ridge,
            preconditioner=strongest and strongest.preconditioner(ridge),
            tolerance=solver.tolerance,
            max_iterations=solver.max_iterations,
            enough=solver.enough,
            on_failure="return",
            label="linear response",
        )
        left = float(solved.residual)
        error = _error_at_most(left, b, solved.x, ridge)
        return Answer(solved.x, "primal", left, solved.iterations, solved.failure, error)
    # Checked after CG, which is the only one that also solves a system without a ridge.
    if ridge <= 0:
        raise SettingError(
            f"The solver {type(solver).__name__} divides by the ridge, which must be positive, but is {ridge:g}. Give "
            "a damping or a decay, or solve by `CG()`."
        )
    if isinstance(solver, LowRankSolver):
        assert strongest is not None  # a rank is at least one
        kept = strongest.plus_ridge(ridge)
        x = kept.solve(b)
        # Against the whole curvature: what the directions left out would still ask for is the error of this form.
        left = _relative(b - curvature.multiply(x) - ridge * x, b)
        return Answer(x, "low rank", left, kept.rank, error=_error_at_most(left, b, x, ridge))
    return _solve_dual(
        trained, data, b, curvature, known, ridge=ridge, output=output, solver=solver, batch_size=batch_size
    )


def _solve_dual(
    trained: Trained,
    data: Data,
    b: Float[Tensor, " P"],
    curvature: GaussNewton,
    known: Known,
    *,
    ridge: float,
    output: Output,
    solver: Solver,
    batch_size: int,
) -> Answer:
    r"""$x = \tfrac1\rho\big(b - J^\top S (S^\top J J^\top S + \rho I)^{-1} S^\top J b\big)$, $\Lambda = S S^\top$."""
    J = Jacobian(trained, data, batch_size)
    roots = output_roots(trained, data, output, batch_size)
    if known.theta is None:
        known.theta = between_roots(kernel(trained, data).double(), roots)
    tolerance = solver.tolerance
    # The ridge enters inside the factor, so that its jitter, if any, is the only other thing added.
    factored = factor(known.theta, ridge)
    x = torch.zeros_like(b)
    r = b
    # The difference above cancels when the ridge is small; each pass solves for what the last one left.
    passes = 0
    while passes < REFINEMENTS:
        passes += 1
        inner = factored.solve(into_roots(J.multiply(r).double(), roots).reshape(-1))
        back = out_of_roots(inner.reshape(len(data), -1), roots).to(b.dtype)
        x = x + (r - J.transpose_multiply(back)) / ridge
        r, before = b - curvature.multiply(x) - ridge * x, _relative(r, b)
        if _relative(r, b) <= tolerance or _relative(r, b) > 0.5 * before:
            break
    left = _relative(r, b)
    why = (
        f"The dual solution must leave at most {tolerance:g} of the right-hand side, but left {left:.2g}. Raise "
        "the damping, or work in float64."
    )
    return Answer(x, "dual", left, passes, why if left > tolerance else "", _error_at_most(left, b, x, ridge))


def chosen(solver: Solver, trained: Trained, data: Data) -> Solver:
    """The solver itself, or for `Auto` the one that is cheaper on these rows."""
    if not isinstance(solver, Auto):
        return solver
    if cheaper_form(trained, data) == "dual":
        return Dual(solver.tolerance)
    return CG(solver.tolerance, solver.max_iterations, solver.precondition, solver.enough)


def cheaper_form(trained: Trained, data: Data, iterations: int = EXPECTED_ITERATIONS) -> Form:
    r"""`"dual"` or `"primal"`, whichever takes fewer operations in the memory that there is.

    With `F` operations for one answer of the network, `C` outputs and `P` weights, the dense kernel takes
    $NF(2C + 1)$ for the Jacobian, $(NC)^2 P$ for the symmetric product and $(NC)^3/3$ for the factor; conjugate
    gradients take $6NF$ for each product, whatever `C` is. Where the budget holds few rows with what came back to every
    layer for each output, the Jacobian is found once for every pair of blocks. A kernel of more than `DENSE_LIMIT`
    rows, or one that the budget does not hold, is never formed.
    """
    batch = next(iter(trained.batches(data, 1)))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        outputs = trained.outputs(batch.x)
    # Networks of elementwise pieces count as nothing; every weight then takes part about once.
    F = max(counter.get_total_flops(), 2 * trained.size)
    N, C, P = len(data), outputs[0].numel(), trained.size
    room = budget(trained.device, more_helps=True)
    if N * C > DENSE_LIMIT or room < KERNELS * (N * C) ** 2:
        return "primal"
    # Half of what a pass makes comes back to layers; no more than whole gradients would take.
    held = C * min(footprint(trained, batch.x).graph / 2, P * trained.weights.element_size())
    blocks = max(1, math.ceil(2 * N * held / room)) if N * held > room else 1
    # As in the docstring; the halves of symmetric products are left out on both sides.
    dual = (blocks + 1) / 2 * N * F * (2 * C + 1) + (N * C) ** 2 * P + (N * C) ** 3 / 3
    return "dual" if dual < iterations * 6 * N * F else "primal"


def _operator_name(output: Output) -> Literal["identity", "loss"]:
    return "loss" if output == "softmax" else "identity"


def _error_at_most(left: float, b: Float[Tensor, " P"], x: Float[Tensor, " P"], ridge: float) -> float:
    r"""$\|x - x^*\| \le \|r\| / \rho$, as no curvature is below the ridge; as a share of $\|x\|$."""
    size = ridge * float(x.double().norm())
    if size:
        return left * float(b.double().norm()) / size
    return math.inf if left else 0.0


def _relative(r: Float[Tensor, " P"], b: Float[Tensor, " P"]) -> float:
    size = float(b.double().norm())
    return float(r.double().norm()) / size if size else 0.0
