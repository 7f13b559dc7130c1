"""What a step from statistics costs, and writing those that the next request finds, by count."""

from dataclasses import replace

from spotlessnet.core.scrub import Sizes, Work
from spotlessnet.operators.cost import EIGEN, TRIES, directions, kernel_cost, noise
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.precomputed.step import SEEN, WIDEST
from spotlessnet.precomputed.written import Written


def step_cost(statistics: Statistics, sizes: Sizes, tries: int) -> Work:
    """The forgotten rows' gradient and kernel, and the algebra of the kept directions with their own.

    **Arguments:**

    - `tries`: dampings that are looked at.
    """
    rank = 0 if statistics.values is None else statistics.values.numel()
    # Of a large cohort some rows stand for all, as in the step itself.
    seen = max(1, min(sizes.k, SEEN // sizes.C))
    roots = seen * sizes.columns
    # About half of the cohort's directions are stronger than what the statistics left out.
    usual, most = (_directions_cost(sizes, rank, min(WIDEST, wide), seen) for wide in (-(-roots // 2), roots))
    # For the gradients: the kernel's, and those that the directions are mixed from.
    passes = sizes.k * sizes.gradient + 2 * seen * (sizes.answer + sizes.C * sizes.gradient) + sizes.closed_forms
    fixed = passes + 2 * seen * sizes.answer + kernel_cost(sizes, seen) + EIGEN * float(roots**3)
    # A step, its drift on the forgotten rows, and what they move.
    each = sizes.k * (sizes.product + 2 * sizes.answer) + 4.0 * sizes.P * (rank + min(WIDEST, roots))
    held = 3.0 * (rank + min(WIDEST, roots)) * sizes.P * sizes.bytes
    return Work(fixed + usual + min(tries, TRIES) * each, fixed + most + 2 * (1 + tries) * each, held)


def _directions_cost(sizes: Sizes, rank: int, width: int, seen: int) -> float:
    """So many of the cohort's directions are mixed from its gradients and joined with the kept ones.

    Before that they are made orthogonal to those and to each other, three times.
    """
    both = rank + width
    long = 2.0 * seen * sizes.C * width + 12.0 * width * both + 2.0 * both * (width + both)
    return sizes.P * long + EIGEN * float(rank**3 + both**3 + 4 * width**3)


def writing_cost(written: Written, sizes: Sizes) -> Work:
    """Statistics written anew from the retained rows, which takes as long as writing the first ones."""
    seen = sizes.n if written.sample is None else min(sizes.n, written.sample)
    work = Work.sure(sizes.n * sizes.gradient)
    if written.rank:
        held = 3.0 * min(written.rank, sizes.P) * sizes.P * sizes.bytes
        work += Work.sure(directions(sizes, seen, written.rank), held)
    if written.diagonal is not None:
        work += sizes.diagonals(seen, written.diagonal)
    if written.kronecker:
        work += noise(replace(sizes, n=seen), "kronecker")
    return work
