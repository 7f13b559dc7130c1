"""Training of the linearised network, as a value: where it ends, how it is pulled, how it answers to a change."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.scrub import Sizes
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.line_search import summed_objective
from spotlessnet.operators.linear_response import Answer, Known, solve_response
from spotlessnet.operators.linearised import Linearised
from spotlessnet.operators.minimum_norm import nearest
from spotlessnet.operators.newton_cg import minimise
from spotlessnet.operators.output_roots import Output
from spotlessnet.operators.solvers import AUTO, Solver


@dataclass(frozen=True, eq=False)
class LinearTraining:
    r"""The network $f_{\bar w}(x) + J(x)(\theta - \bar w)$ and its objective on any rows `S`, in sum form.

    $$\Phi_S(\theta) = \sum_{i \in S} \ell_i(\theta) + \tfrac{|S|\lambda}{2}\|\theta - w_{start}\|^2
      \quad\text{damped by}\quad \tfrac{|S|\gamma}{2}\|\theta - w\|^2$$

    With `output` other than `"exact"` the loss is replaced by its expansion at $f_{\bar w}$ with curvature $\Lambda$.

    **Arguments:**

    - `trained`: $w$, the weights that training reached.
    - `point`: $\bar w$, where the network is linearised.
    - `minimum_norm`: there is no decay, and more weights than equations: of all solutions take the one nearest to the
      start, as training from there would.
    - `answers`: every system that was solved, in order: for the record.
    - `solved`: those of every damping; `damped` shares it.
    - `known`: what was found on the way for some rows and holds for every damping; `damped` shares it.
    """

    trained: Trained
    point: Float[Tensor, " P"]
    output: Literal["identity", "softmax", "exact"] = "softmax"
    damping: float = 0.0
    solver: Solver = AUTO
    seed: int = 0
    batch_size: int = 256
    minimum_norm: bool = False
    answers: list[Answer] = field(default_factory=list)
    solved: list[Answer] = field(default_factory=list, repr=False)
    known: list[tuple[Data, Known]] = field(default_factory=list, repr=False)

    def damped(self, damping: float) -> "LinearTraining":
        """The same with another damping; kernels and eigenvectors are not found anew."""
        return replace(self, damping=damping, answers=[])

    def slope(self, data: Data) -> Float[Tensor, " P"]:
        """The sum of the linearised network's loss gradients at the trained weights, without decay."""
        if self.output == "exact":
            return gradient(self._linear, data, batch_size=self.batch_size)
        g = gradient(self._base, data, batch_size=self.batch_size)
        # Away from where it is linearised the network has another gradient: g + Jᵀ Λ J (w − w̄).
        moved = self.trained.weights - self.point
        return (
            g + GaussNewton(self._base, data, self._curvature, batch_size=self.batch_size).multiply(moved)
            if moved.any()
            else g
        )

    def response(self, data: Data, b: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        r"""$\delta$ with $\nabla\Phi_S(w + \delta) - \nabla\Phi_S(w) = b$: how the weights give way to a push."""
        if self.output != "exact":
            return self._solve(data, b)
        return self._minimum(data, self._full_slope(data) + b) - self.trained.weights

    def promise(self, data: Data, b: Float[Tensor, " P"], step: Float[Tensor, " P"]) -> float:
        r"""How far $\Phi_S(\theta) - (\nabla\Phi_S(w) + b)^\top\theta$, undamped, falls over a step of `response`."""
        if self.output != "exact":
            # H δ = b − |S|γ δ, so bᵀδ − ½δᵀHδ needs no product.
            length = float(step.double() @ step.double())
            return 0.5 * (float(b.double() @ step.double()) + len(data) * self.damping * length)
        tilt, ridge = self._full_slope(data) + b, len(data) * self.trained.known_weight_decay
        before, after = (
            summed_objective(self._linear, data, at, ridge=ridge, tilt=tilt, batch_size=self.batch_size)
            for at in (self.trained.weights, self.trained.weights + step)
        )
        return before - after

    def curvature_along(self, data: Data, v: Float[Tensor, " P"]) -> float:
        r"""$v^\top J_S^\top\Lambda J_S v / (|S|\,\|v\|^2)$, in units of the decay."""
        Hv = GaussNewton(self._base, data, self._curvature, batch_size=self.batch_size).multiply(v)
        length = float(v.double() @ v.double())
        return float(v.double() @ Hv.double()) / (len(data) * length) if length else 0.0

    def end(self, data: Data) -> Float[Tensor, " P"]:
        r"""Where linearised training on these rows ends: $\arg\min \Phi_S$."""
        if self.output != "exact":
            return self.trained.weights + self._solve(data, -self._full_slope(data))
        return self._minimum(data, torch.zeros_like(self.point))

    def solve(self, data: Data, b: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        r"""$(J_S^\top\Lambda J_S + |S|(\lambda + \gamma) I)^{-1} b$, whatever `b` means."""
        return self._solve(data, b)

    def sizes(self, data: Data) -> Sizes:
        """What a row costs in the linearised network, whose answers are products themselves."""
        return Sizes.of(self._linear, Split(data))

    def _full_slope(self, data: Data) -> Float[Tensor, " P"]:
        ridge = len(data) * self.trained.known_weight_decay
        return self.slope(data) + ridge * (self.trained.weights - self.trained.anchor)

    def _solve(self, data: Data, b: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        output: Output = "identity" if self.output == "identity" else "softmax"
        if self.minimum_norm:
            away = self.trained.weights - self.trained.anchor
            return self._noted(nearest(self._base, data, b, away, output=output, batch_size=self.batch_size)).x
        answer = solve_response(
            self._base,
            data,
            b,
            ridge=self._ridge(data),
            output=output,
            solver=self.solver,
            seed=self.seed,
            batch_size=self.batch_size,
            known=self._known(data),
        )
        return self._noted(answer).x

    def _noted(self, answer: Answer) -> Answer:
        self.answers.append(answer)
        self.solved.append(answer)
        return answer

    def _known(self, data: Data) -> Known:
        for rows, known in self.known:
            if rows is data:
                return known
        self.known[:] = [(data, Known())]  # one at a time: a kernel is large
        return self.known[0][1]

    def _minimum(self, data: Data, tilt: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        # The damping pulls to w, the decay to the anchor: both are one ridge to the anchor and a tilt.
        pull = len(data) * self.damping * (self.trained.weights - self.trained.anchor)
        found = minimise(
            self._linear,
            data,
            ridge=self._ridge(data),
            tilt=tilt + pull,
            tolerance=self.solver.tolerance,
            max_iterations=self.solver.product_limit,
            batch_size=self.batch_size,
        )
        self._noted(Answer(found.weights, "newton", found.residual, found.steps, found.failure))
        return found.weights

    def _ridge(self, data: Data) -> float:
        return len(data) * (self.trained.known_weight_decay + self.damping)

    @property
    def _curvature(self) -> str:
        return "identity" if self.output == "identity" else "loss"

    @cached_property
    def _base(self) -> Trained:
        return self.trained.at(self.point)

    @cached_property
    def _linear(self) -> Trained:
        module = Linearised(self._base).as_module(self.trained.weights)
        return Trained.of(module, self.trained.loss, weight_decay=self.trained.weight_decay, init=self.trained.anchor)
