"""Serve a request from a memory: the rows that must go, and sums over the rest, are all it takes."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.covariance import LowRankPlusRidge
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError
from spotlessnet.core.memory import Memory
from spotlessnet.core.scrub import Notes
from spotlessnet.core.trained import Trained
from spotlessnet.operators.fisher import fisher_diagonal
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.linear_response import removal_gradient, respond
from spotlessnet.operators.low_rank import LowRank, Removal, low_rank, without_cohort

WIDEST = 400
"""Directions of the cohort's own curvature that are looked at; a cohort has at most rows times outputs."""


@dataclass(frozen=True, eq=False)
class Recalled:
    r"""What a memory says about the rest of the data once a cohort is out of it.

    **Arguments:**

    - `step`: $\delta = H_r^{-1}(g_f - \tfrac kN g_D)$.
    - `curvature`: $H_r$ plus its ridge, in low rank.
    - `gradient`: $g_f$, the cohort's own sum.
    - `rows`: how many rows of the request were new to the memory.
    """

    step: Float[Tensor, " P"]
    curvature: LowRankPlusRidge
    gradient: Float[Tensor, " P"]
    rows: Data


def recall(memory: Memory, trained: Trained, forget: Data, ridge: float, notes: Notes, *, seed: int = 0) -> Recalled:
    r"""The step that the retained data would ask for, from the memory and $D_f$ alone.

    Gradient and curvature of the cohort are both taken out: leaving its curvature in makes the step useless.

    **Arguments:**

    - `ridge`: decay plus damping, **per row**; becomes $N_r$ times that.
    - `notes`: records how much of the curvature was approximated.
    """
    memory.check_belongs_to(trained)
    fresh = memory.fresh(forget)
    left = memory.count - len(fresh)
    if left < 1:
        raise DataError(
            f"The memory holds {memory.count} rows and the request removes {len(fresh)}: nothing would stay."
        )
    g_f = gradient(trained, fresh) if len(fresh) else torch.zeros_like(trained.weights)
    removal = _removal(memory, trained, fresh, left * ridge, seed)
    b = removal_gradient(g_f, memory.gradient.to(g_f), len(fresh), memory.count)
    notes.fact(
        memory_rank=memory.need("values").numel(),
        damped_directions=removal.damped,
        dropped_curvature=removal.dropped,
        already_forgotten=len(forget) - len(fresh),
    )
    return Recalled(respond(removal.curvature, b), removal.curvature, g_f, fresh)


def _removal(memory: Memory, trained: Trained, fresh: Data, ridge: float, seed: int) -> Removal:
    """`H_r` plus ridge in the kept span; beyond it, the mean of what was left out stands in, so no step runs away."""
    basis, values = memory.need("basis").to(trained.weights), memory.need("values").to(trained.weights)
    ridge += memory.outside
    kept = LowRank(
        basis=basis,
        values=(values - memory.outside).clamp(min=0),
        residuals=torch.zeros_like(values),
        error=max(0.0, memory.error - memory.outside),
        remainder=0.0,
        products=0,
    )
    if not len(fresh):
        return Removal(kept.plus_ridge(ridge), least=0.0, damped=0, dropped=0.0)
    H_f = GaussNewton(trained, fresh)
    outputs = trained.predict(fresh.pick([0]))[0].numel()
    rank = min(len(fresh) * outputs, WIDEST, trained.size)
    own = low_rank(H_f, rank, generator=torch.Generator().manual_seed(seed))
    return without_cohort(kept, own.root, ridge=ridge)


def fisher_after(memory: Memory, trained: Trained, forget: Data) -> Float[Tensor, " P"]:
    """The Fisher diagonal of the retained rows, as a sum: the memory's own less that of the cohort."""
    fresh = memory.fresh(forget)
    own = fisher_diagonal(trained, fresh) if len(fresh) else torch.zeros_like(trained.weights)
    # A memory from Monte Carlo may hold less than the cohort's exact share; a sum of squares is never negative.
    return (memory.need("diagonal").to(own) - own).clamp(min=0)


def after_request(
    memory: Memory, trained: Trained, forget: Data, weights: Float[Tensor, " P"], *, ridge: float, seed: int = 0
) -> Memory:
    r"""The memory that the next request finds, at the weights that this one led to.

    The cohort's sums are out, and the gradient is carried along by the curvature,
    $g_r(w') = g_D(w) - g_f(w) + H_r (w' - w)$, exact where the loss is quadratic. The kept rank stays what it was.

    **Arguments:**

    - `trained`: the network **before** the request, where the memory was taken.
    - `weights`: the network after it, noise included.
    - `ridge`: as in `recall`.
    """
    found = recall(memory, trained, forget, ridge, Notes(), seed=seed)
    moved = weights.to(trained.weights) - trained.weights
    H_r = found.curvature
    left = memory.count - len(found.rows)
    carried = memory.gradient.to(moved) - found.gradient + H_r.multiply(moved) - left * ridge * moved
    strongest = H_r.values.argsort(descending=True)[: memory.need("values").numel()]
    return memory.without(
        found.rows.rows,
        weights=weights.clone(),
        gradient=carried,
        count=left,
        basis=H_r.basis[:, strongest],
        values=H_r.values[strongest] + memory.outside,
        diagonal=None if memory.diagonal is None else fisher_after(memory, trained, forget),
        # Factors cannot be subtracted; fewer rows of the same kind is the best that is known.
        kronecker=None if memory.kronecker is None else memory.kronecker.scaled(left / memory.count),
    )
