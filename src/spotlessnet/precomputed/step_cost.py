"""What a step from statistics costs, and writing those that the next request finds, by count."""

from dataclasses import replace

from spotlessnet.core.scrub import Sizes, Work
from spotlessnet.operators.cost import EIGEN, PRODUCT, directions, noise
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.precomputed.step import SEEN, WIDEST
from spotlessnet.precomputed.written import Written


def step_cost(statistics: Statistics, sizes: Sizes, tries: int) -> Work:
    """The forgotten rows' gradient and kernel, and the algebra of the kept directions with their own.

    **Arguments:**

    - `tries`: dampings that are looked at.
    """
    P, rank = sizes.P, 0 if statistics.values is None else statistics.values.numel()
    # Of a large cohort some rows stand for all, as in the step itself.
    seen = max(1, min(sizes.k, SEEN // sizes.C))
    roots = seen * sizes.columns
    width = min(WIDEST, roots)
    algebra = (seen * sizes.C) ** 2 * P + 2 * P * seen * sizes.C * width + 4.0 * P * (rank + width) ** 2
    algebra += EIGEN * (roots**3 + (rank + width) ** 3)
    reads = 2 * seen * sizes.answer
    passes = sizes.k + 2 * seen * sizes.C + tries * PRODUCT * sizes.k
    return Work.sure(passes * sizes.gradient + reads + algebra, 3.0 * (rank + width) * P * sizes.bytes)


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
