"""What curvature costs, by count: products, directions, kernels and noise, in floating-point operations and bytes."""

import math

from torch import nn

from spotlessnet.core.data import Data, evenly
from spotlessnet.core.progress import budget
from spotlessnet.core.scrub import Sizes, Work
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.linear_response import EXPECTED_ITERATIONS, chosen
from spotlessnet.operators.solve import conjugate_gradient
from spotlessnet.operators.solvers import CG, Dual, LowRank, Solver

PRODUCT = 2
"""A curvature product in units of a gradient: 5/3 by count, two and a half by the clock on small networks."""

KRONECKER = 4
"""Factors in units of an exact diagonal: two sweeps, and as much again to multiply into the factors."""

EIGEN = 9
"""Operations of an eigendecomposition, over the cube of its size."""

TRIES = 3
"""How many dampings a step is usually tried with where none was given."""

NEWTON_STEPS = 4
"""Steps that the exact linearised problem usually takes, the first of them solved roughly; 50 at most."""

TRIED, LEAST_TRIED, TRIAL = 32, 8, 20
"""Rows of a trial solve, at most and at least, and its products: little beside the solve itself."""

SOLVER = 20.0
"""Vectors of all weights that conjugate gradients and what looks at their answer hold, copies in float64 among them."""

SCALES = 30
"""Lengths of the step at which forgotten rows are asked to match the held-out loss."""


def exact_cost(solver: Solver, sizes: Sizes, rows: int) -> Work:
    """The linearised problem with the loss as it is: through a network whose answers are products themselves."""
    step = 2.0 * PRODUCT * rows * sizes.gradient
    # Newton steps are solved roughly at first, so half of the usual products each.
    usual = NEWTON_STEPS * step * (1 + EXPECTED_ITERATIONS / 2)
    return Work(usual, 50 * step * (1 + solver.product_limit))


def products(sizes: Sizes, rows: int, most: int, expected: float = EXPECTED_ITERATIONS) -> Work:
    """Conjugate gradients; the true residual is looked at once more every fifty products, and at the end."""
    usual = min(expected, most)
    each = PRODUCT * rows * sizes.gradient
    return Work((1 + 1.02 * usual) * each, (2 + 1.1 * most) * each, SOLVER * sizes.P * sizes.bytes)


def expected_products(trained: Trained, split: Split, solver: CG, ridge: float) -> float:
    """Products that conjugate gradients will take, from a trial on a few rows: a mean over them has about the spread of
    curvatures that the mean over all has.

    Where the trial does not come to its end, the rest is taken to go on at its pace.

    **Arguments:**

    - `ridge`: beside the mean over rows.
    """
    rows = max(LEAST_TRIED, min(TRIED, len(split.retain) // TRIED))
    few = split.retain.select(evenly(len(split.retain), rows))
    b = gradient(trained, split.forget.select(evenly(len(split.forget), rows)))
    solved = conjugate_gradient(
        GaussNewton(trained, few, ridge=len(few) * ridge),
        b,
        tolerance=solver.tolerance,
        max_iterations=min(solver.max_iterations, TRIAL),
        on_failure="return",
        label="planning",
    )
    left = float(solved.residual)
    if bool(solved.converged) or not solved.iterations:
        return solved.iterations
    if not 0 < left < 1:
        return solver.max_iterations
    return min(solver.max_iterations, solved.iterations * math.log(solver.tolerance) / math.log(left))


def directions(sizes: Sizes, rows: int, rank: int) -> float:
    """The strongest directions of the curvature, from a Krylov space of twice as many."""
    # A Krylov space of the very rank would miss its weakest directions.
    width = 2.0 * min(rank, sizes.P)
    return width * PRODUCT * rows * sizes.gradient + 8.0 * sizes.P * width**2 + EIGEN * width**3


def kernel_entry(trained: Trained) -> float:
    """One entry of the kernel: gradients of a linear layer are outer products, others are written out."""
    layers = [m for m in trained.model.modules() if isinstance(m, nn.Linear) and m.weight.requires_grad]
    return trained.size + sum(2.0 * m.out_features - m.weight.numel() for m in layers)


def solve_cost(
    solver: Solver, trained: Trained, sizes: Sizes, data: Data, *, columns: int, batch_size: int, again: bool = False
) -> Work:
    """One linear system over these rows.

    **Arguments:**

    - `columns`: of a row's output Hessian root.
    - `again`: with another ridge, for which kernels and directions are known.
    """
    rows, solver = len(data), chosen(solver, trained, data)
    product = PRODUCT * rows * sizes.gradient
    if isinstance(solver, Dual):
        size = rows * sizes.C
        passes = 0.0 if again else rows * (sizes.answer + sizes.C * sizes.gradient)
        kernel = 0.0 if again else size**2 * (kernel_entry(trained) + 2.0 * columns)
        room = budget(trained.device, more_helps=True)
        held = 3 * 8.0 * size**2 + min(room, 2.0 * batch_size * sizes.C * sizes.P * sizes.bytes)
        return Work.sure(passes + kernel + (rows * columns) ** 3 / 3 + 4 * product, held)
    if isinstance(solver, LowRank):
        found = 0.0 if again else directions(sizes, rows, solver.rank)
        return Work.sure(found + product, 3.0 * solver.rank * sizes.P * sizes.bytes)
    assert isinstance(solver, CG)  # the last of the three
    first = 0.0 if again or not solver.precondition else directions(sizes, rows, solver.precondition)
    return Work.sure(first) + products(sizes, rows, solver.max_iterations)


def noise(sizes: Sizes, structure: str, kind: str = "exact") -> Work:
    """Noise shaped by the Fisher matrix of the retained rows."""
    if structure == "kronecker":
        once = sizes.diagonals(sizes.n, "exact" if kind == "exact" else "monte carlo")
        return Work(KRONECKER * once.usual, KRONECKER * once.most, once.bytes)
    return sizes.diagonals(sizes.n, kind)
