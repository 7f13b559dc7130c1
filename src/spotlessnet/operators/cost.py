"""What curvature costs, by count: products, directions, kernels and noise, in floating-point operations and bytes."""

import math
from dataclasses import replace

import torch

from spotlessnet.core.data import Data
from spotlessnet.core.progress import budget
from spotlessnet.core.scrub import Sizes, Work
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.gauss_newton import TOGETHER, GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.kernel import LEAST, STRIPES
from spotlessnet.operators.line_search import HALVINGS
from spotlessnet.operators.linear_response import EXPECTED_ITERATIONS, REFINEMENTS, chosen
from spotlessnet.operators.low_rank import BLOCK, PROBES, Layout, usual_extra
from spotlessnet.operators.newton_cg import MOST, rough
from spotlessnet.operators.per_sample import plan
from spotlessnet.operators.solve import conjugate_gradient
from spotlessnet.operators.solvers import CG, Dual, LowRank, Solver

EIGEN = 9
"""Operations of an eigendecomposition, over the cube of its size."""

TRIES = 3
"""How many dampings a step is usually tried with where none was given."""

TRIED, LEAST_TRIED, TRIAL = 64, 8, 40
"""Rows of a trial solve, at most and at least, and its products."""

QUICKENING = 0.75
"""Products of conjugate gradients grow like this power of the digits: later ones come quicker, as strong directions are
done with. Read off two networks (1, 1.7, 2.4 and 5.4 digits in 7, 9, 12 and 24 products, and in 8, 10, 16 and 28)."""

SHARE, AT_ONCE = 8, 1e10
"""A trial reads one of so many rows, or more where its products take no more operations than these."""

SOLVER = 20.0
"""Vectors of all weights that conjugate gradients and what looks at their answer hold, copies in float64 among them."""

SCALES = 30
"""Lengths of the step at which forgotten rows are asked to match the held-out loss."""


def exact_cost(solver: Solver, sizes: Sizes, rows: int, expected: float = EXPECTED_ITERATIONS) -> Work:
    """The linearised problem with the loss as it is, by Newton steps that are solved the better the nearer they come.

    **Arguments:**

    - `sizes`: of the linearised network, whose answers are products themselves.
    - `expected`: products of one solve to the tolerance; a rougher one takes more than its share (`QUICKENING`).
    """
    left, steps, solves = 1.0, 0, 0.0
    while left > solver.tolerance:
        digits = math.log(rough(left)) / math.log(solver.tolerance)
        steps, solves, left = steps + 1, solves + min(1.0, digits) ** QUICKENING, left * rough(left)
    usual = steps + solves * min(expected, solver.product_limit)
    step = sizes.gradient + 2 * sizes.answer
    most = step + HALVINGS * sizes.answer + (1 + 2 * solver.product_limit) * sizes.product
    return Work(rows * (usual * sizes.product + steps * step), rows * MOST * most)


def product_of(sizes: Sizes, vectors: int) -> float:
    """One row's part in each of so many products: vectors that go together share its answers."""
    if vectors == 1:
        return sizes.product
    return 2 * (sizes.gradient - sizes.answer) + 2 * sizes.answer / min(vectors, TOGETHER)


def hessian_product_of(sizes: Sizes, vectors: int) -> float:
    """The same of the Hessian: the gradient's tangents, of which each product on the way back has two."""
    tangents = 3 * (sizes.gradient - sizes.answer)
    return tangents + sizes.gradient / (1 if vectors == 1 else min(vectors, TOGETHER) / 2)


def products(sizes: Sizes, rows: int, most: int, expected: float = EXPECTED_ITERATIONS) -> Work:
    """Conjugate gradients; the true residual is looked at once more every fifty products, and at the end.

    Where rounding takes over it may be looked at after every product.
    """
    usual = min(expected, most)
    each = rows * sizes.product
    return Work((1 + 1.02 * usual) * each, (1 + 2 * most) * each, SOLVER * sizes.P * sizes.bytes)


def expected_products(trained: Trained, split: Split, solver: CG, ridge: float) -> float:
    """Products that conjugate gradients will take, from a trial on a few rows: a mean over them has about the spread of
    curvatures that the mean over all has.

    Where the trial does not come to its end, the rest is taken to go on at its pace.

    **Arguments:**

    - `ridge`: beside the mean over rows.
    """
    few = miniature(trained, split)
    solved = conjugate_gradient(
        GaussNewton(trained, few.retain, ridge=len(few.retain) * ridge),
        gradient(trained, few.forget),
        tolerance=solver.tolerance,
        max_iterations=min(solver.max_iterations, TRIAL),
        on_failure="return",
        label="planning",
    )
    return paced(solved.iterations, float(solved.residual), solver)


def miniature(trained: Trained, split: Split) -> Split:
    """The request on a few rows, as many of them to go as of all: little beside the request itself."""
    n, k = len(split.retain), len(split.forget)
    swift = AT_ONCE / (TRIAL * Sizes.of(trained, split).product)
    rows = min(n, max(LEAST_TRIED, min(TRIED, max(n // SHARE, int(swift)))))
    # Drawn, not evenly spaced: labels that take turns would all be the same.
    draw = torch.Generator().manual_seed(0)
    gone = max(1, round(k * rows / n))
    stay, go = (torch.randperm(count, generator=draw)[:few].sort().values for count, few in ((n, rows), (k, gone)))
    return Split(split.forget.select(go), split.retain.select(stay))


def paced(iterations: int, left: float, solver: CG) -> float:
    """Products to the tolerance, if a solve that was stopped goes on at the pace that it had."""
    if left <= solver.tolerance or not iterations:
        return iterations
    if not 0 < left < 1:
        return solver.max_iterations
    return min(solver.max_iterations, iterations * math.log(solver.tolerance) / math.log(left))


def directions(sizes: Sizes, rows: int, rank: int) -> float:
    """The strongest directions of the curvature, by block Lanczos."""
    rank = min(rank, sizes.P)
    width = Layout.of(rank, usual_extra(rank), BLOCK, sizes.P).width
    probes = min(PROBES, sizes.P - width)
    # A product with two matrices takes what was found before out of each block, four times; then it is made orthonormal
    # twice, and all of it is turned once.
    apart = 8.0 * width * (width + BLOCK) + 20.0 * width * BLOCK + 2.0 * width * (rank + 2 * probes)
    small = EIGEN * (width**3 + width * BLOCK**2)
    return (width + probes) * rows * product_of(sizes, BLOCK) + apart * sizes.P + small


def kernel_cost(sizes: Sizes, rows: int) -> float:
    """The kernel of so many rows, which have passed.

    Gradients of a linear layer that is fed one vector a row are outer products; others are written out, and of their
    products what lies above the diagonal stripes is left out.
    """
    size = rows * sizes.C
    stripe = max(LEAST, -(-size // STRIPES))
    outer = sum(2.0 * (leave * size**2 + enter * rows**2) for leave, enter, positions in sizes.layers if positions == 1)
    return outer + max(0, sizes.P - sizes.flat) * size * (size + min(stripe, size))


def with_slow(trained: Trained, split: Split) -> Sizes:
    """`Sizes`, and of how many weights the gradients of single rows have no closed form: two rows are tried."""
    sizes = Sizes.of(trained, split)
    rows = split.forget if len(split.forget) else split.whole
    work = plan(trained, trained.fetch(rows, rows.rows[:2]).x)
    known = dict(zip(trained.names, trained.shapes, strict=True))
    return replace(sizes, slow=sum(known[name].numel() for name in work.rest))


def solve_cost(
    solver: Solver, trained: Trained, sizes: Sizes, data: Data, *, columns: int, batch_size: int, again: bool = False,
    expected: float = EXPECTED_ITERATIONS,
) -> Work:  # fmt: skip
    """One linear system over these rows.

    **Arguments:**

    - `columns`: of a row's output Hessian root.
    - `again`: with another ridge, for which kernels and directions are known.
    - `expected`: products of conjugate gradients.
    """
    rows, solver = len(data), chosen(solver, trained, data)
    product = rows * sizes.product
    if isinstance(solver, Dual):
        size = rows * sizes.C
        passes = 0.0 if again else rows * (sizes.answer + sizes.C * sizes.gradient) + sizes.closed_forms
        turned = 2.0 * columns * (size**2 + size * rows * columns) + rows * sizes.answer
        kernel = 0.0 if again else kernel_cost(sizes, rows) + turned
        room = budget(trained.device, more_helps=True)
        held = 3 * 8.0 * size**2 + min(room, 2.0 * batch_size * sizes.C * sizes.P * sizes.bytes)
        fixed = passes + kernel + (rows * columns) ** 3 / 3
        # Solved twice as a rule: products there, back, and for what is left; and the factor's own.
        each = 2 * product + 4.0 * (rows * columns) ** 2
        return Work(fixed + 2 * each, fixed + REFINEMENTS * each, held)
    if isinstance(solver, LowRank):
        found = 0.0 if again else directions(sizes, rows, solver.rank)
        return Work.sure(found + product, 3.0 * solver.rank * sizes.P * sizes.bytes)
    assert isinstance(solver, CG)  # the last of the three
    first = 0.0 if again or not solver.precondition else directions(sizes, rows, solver.precondition)
    return Work.sure(first) + products(sizes, rows, solver.max_iterations, expected)


def noise(sizes: Sizes, structure: str, kind: str = "exact") -> Work:
    """Noise shaped by the Fisher matrix of the retained rows."""
    return factors(sizes, kind) if structure == "kronecker" else sizes.diagonals(sizes.n, kind)


def factors(sizes: Sizes, kind: str = "exact") -> Work:
    """Kronecker factors of every layer, and the matrix itself along their eigenvectors: two sweeps over the rows."""
    kind = "monte carlo" if kind == "monte carlo" else "exact"
    columns = sizes.columns if kind == "exact" else 1
    once = each = eigen = covered = 0.0
    for leave, enter, positions in sizes.layers:
        once += 2.0 * positions * enter**2
        # A factor of what came back, and what came back along its eigenvectors, for weights and for the bias.
        each += 3 * 2.0 * positions * leave**2 + _along(leave, enter, positions)
        # At last the diagonal is looked at, before and after a cap: each block is turned back twice.
        eigen += EIGEN * float(leave**3 + enter**3) + 4.0 * leave * enter * (leave + enter)
        covered += leave * enter + leave
    whitened = 2.0 * sizes.C * sizes.columns
    passing = sizes.answer + whitened + columns * (sizes.gradient - sizes.answer + whitened)
    work = Work.sure(sizes.n * (2 * passing + once + columns * each) + eigen, sizes.diagonals(sizes.n, kind).bytes)
    # Scales and shifts between the layers have no factors, but the exact diagonal.
    between = max(0.0, sizes.P - covered)
    beside = sizes.n * (passing + columns * 2.0 * between) + sizes.closed_forms if between else 0.0
    return work + Work.sure(beside)


def _along(leave: int, enter: int, positions: int) -> float:
    """A column's gradients of one layer along the eigenvectors, squared, the cheaper way in memory, as curvlinops does.

    Either what entered and what came back is turned and multiplied position by position, or the gradient is written out
    and turned.
    """
    if positions**2 * (leave + enter) < leave * enter:
        return 2.0 * (positions * enter**2 + positions**2 * (leave + enter + leave * enter))
    turned = min(positions * (leave**2 + enter**2), leave * enter * (leave + enter))
    return 2.0 * (positions * leave * enter + turned + leave * enter)
