"""What an NTK step takes, by count: its systems one after the other, each with the products that a trial met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spotlessnet.core.data import Data
from spotlessnet.core.scrub import Notes, Sizes, Work
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.cost import SCALES, TRIAL, TRIES, exact_cost, miniature, paced, solve_cost
from spotlessnet.operators.line_search import HALVINGS
from spotlessnet.operators.linear_response import EXPECTED_ITERATIONS, removal_gradient
from spotlessnet.operators.solvers import CG
from spotlessnet.operators.trust import RAISES
from spotlessnet.precomputed.step_cost import step_cost

if TYPE_CHECKING:
    from spotlessnet.methods.ntk.method import NTK


def ntk_cost(method: NTK, trained: Trained, split: Split, met: Sequence[float] = ()) -> Work:
    """The count, with the products that systems are expected to take where a trial has told."""
    sizes = Sizes.of(trained, split)
    if method.statistics is not None:
        return step_cost(method.statistics, sizes, RAISES if method.damping == "auto" else 1)
    D_r, D, n, k = split.retain, split.whole, sizes.n, sizes.k
    systems = Systems(method, trained, sizes, met)
    once = Work.sure((n + k) * sizes.gradient)
    if method.variant == "published":
        more = Work.sure(n * sizes.gradient)
        return once + more + systems.solve(D_r) + systems.solve(D)
    work = once
    if method.residual == "solve":
        work += Work.sure(n * sizes.gradient) + systems.solve(D_r) + systems.solve(D)
    elif method.is_trusted:
        work += systems.trusted(D_r)
    else:
        work += systems.solve(D_r)
    if method.linearised == "start":
        # Away from where it is linearised the network has another gradient: a product with the move tells it.
        work += Work.sure((n + k) * sizes.product)
    if method.calibrate == "holdout":
        held = 0 if split.validation is None else len(split.validation)
        return work + Work.sure(sizes.answer * (SCALES * k + held))
    if method.trapezium:
        work += once + systems.solve(D)
    if not method.search:
        return work
    height = n * sizes.answer
    return work + once + Work(2 * height, (2 + HALVINGS) * height)


def products_tried(method: NTK, trained: Trained, split: Split, solver: CG) -> list[float]:
    """Products of every system that will be solved, in order, from a trial on a few rows."""
    small = miniature(trained, split)
    n, k = len(small.retain), len(small.forget)
    fixed = 0.0 if method.damping == "auto" else float(method.damping)
    few = replace(solver, max_iterations=min(solver.max_iterations, TRIAL))
    output = "softmax" if method.output == "exact" else method.output
    linear = replace(method.linearisation(trained, output=output, damping=fixed), solver=few)
    if method.variant == "published":
        linear = method.linearisation(trained, output="identity", damping=0.0, linearised="end")
        linear = replace(linear, solver=few)
        for data in (small.retain, small.whole):
            linear.solve(data, linear.slope(data))
    elif method.residual == "solve":
        linear.end(small.retain)
        linear.end(small.whole)
    else:
        g_f, g_r = linear.slope(small.forget), linear.slope(small.retain)
        b = removal_gradient(g_f, g_f + g_r, k, n + k)
        if method.is_trusted:
            method.trusted(trained, small, b, linear, Notes())
        else:
            linear.response(small.retain, b)
        if method.trapezium:
            linear.end(small.whole)
    return [paced(answer.iterations, answer.residual, solver) for answer in linear.solved]


class Systems:
    """The cost of linear systems, one after the other, with as many products as a trial met, or as are usual."""

    def __init__(self, method: NTK, trained: Trained, sizes: Sizes, met: Sequence[float]) -> None:
        self.method, self.trained, self.sizes = method, trained, sizes
        self.tries = len(met) - method.trapezium or TRIES
        self.met = iter(met)

    def solve(self, data: Data, *, again: bool = False) -> Work:
        """One over these rows; `again` with another ridge, for which kernels and directions are known."""
        return self._solve(data, next(self.met, float(EXPECTED_ITERATIONS)), again=again)

    def _solve(self, data: Data, expected: float, *, again: bool) -> Work:
        method = self.method
        if method.output == "exact":
            linear = method.linearisation(self.trained, output="exact", damping=0.0)
            return exact_cost(linear.solver, linear.sizes(data), len(data), expected)
        columns = self.sizes.columns if method.output == "softmax" else self.sizes.C
        return solve_cost(
            method.solver, self.trained, self.sizes, data,
            columns=columns, batch_size=method.batch_size, again=again, expected=expected,
        )  # fmt: skip

    def trusted(self, data: Data) -> Work:
        """The tilt, its height, the curvature along the push; then a solve and a height for every damping."""
        height = self.sizes.n * self.sizes.answer
        work = Work.sure(self.sizes.n * (self.sizes.gradient + self.sizes.product) + 2 * height) + self.solve(data)
        for _ in range(self.tries - 1):
            work += self.solve(data, again=True) + Work.sure(height)
        # The others that there are, where none is trusted before the last.
        left = self._solve(data, 0.0, again=True).most + height
        return replace(work, most=work.most + max(0, RAISES + 1 - self.tries) * left)
