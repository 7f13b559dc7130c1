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
from spotlessnet.operators.fisher import fisher_diagonal, flat_loss
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.jacobian import Jacobian, jacobian_rows
from spotlessnet.operators.linear_response import respond
from spotlessnet.operators.low_rank import LowRank, Removal, low_rank, without_cohort
from spotlessnet.operators.trust import dampings

WIDEST = 400
"""Directions of the cohort's own curvature that are looked at; a cohort has at most rows times outputs."""

BENEATH = 0.1
"""A cohort's directions below this share of the mean curvature that the memory left out are not looked at."""

FAITHFUL = 0.2
"""How far the network may depart from the linear picture, in units of what that picture says, before damping rises."""

WORN = 10.0
"""How often the first request's ridge a later one may need before the memory no longer serves."""


@dataclass(frozen=True, eq=False)
class Recalled:
    r"""What a memory says about the rest of the data once a cohort is out of it.

    **Arguments:**

    - `step`: from the weights before the request to those after it.
    - `total`: $\delta = H_r^{-1}(N_r \bar g - g_r)$ from where the memory was written, for all requests so far.
    - `curvature`: $H_r$ plus its ridge, in low rank.
    - `gradient`: $g_f$, the cohort's own sum.
    - `rows`: the rows of the request that were new to the memory.
    """

    step: Float[Tensor, " P"]
    total: Float[Tensor, " P"]
    curvature: LowRankPlusRidge
    gradient: Float[Tensor, " P"]
    rows: Data


def recall(memory: Memory, trained: Trained, forget: Data, ridge: float, notes: Notes, *, seed: int = 0) -> Recalled:
    r"""The step that the retained data would ask for, from the memory and $D_f$ alone.

    Gradient and curvature of the cohort are both taken out: leaving its curvature in makes the step useless. What all
    requests so far ask for together is solved for at the weights where the memory was written; the step is what this
    one adds to it.

    **Arguments:**

    - `ridge`: decay plus damping, **per row**; becomes $N_r$ times that.
    - `notes`: records how much of the curvature was approximated.
    """
    notes.fact(memory_ridge=ridge)
    return _Request.of(memory, trained, forget, notes, seed).answer(ridge)


def recall_faithfully(
    memory: Memory, trained: Trained, forget: Data, decay: float, notes: Notes, *, seed: int = 0
) -> Recalled:
    """`recall` with the least damping at which the network follows the linear picture on the rows that must go.

    No retained row is at hand to tell a wrecked network from a good one; the forgotten rows are moved furthest, so they
    depart first. A damping once needed stays, and when the ridge has grown tenfold the notes say: retrain now.
    """
    request = _Request.of(memory, trained, forget, notes, seed)
    least = max(decay, memory.ridge)
    higher = [decay + d for d in dampings(max(decay, 1e-3 * request.curvature_along()))]
    ridges = [r for r in (least, *higher) if r >= least and r > 0]
    for ridge in ridges:
        found = request.answer(ridge)
        error = request.departure(found.total)
        if error <= FAITHFUL:
            break
    wear = ridge / (memory.first or ridge)
    worn = error > FAITHFUL or wear > WORN
    notes.fact(memory_ridge=ridge, damping=ridge - decay, departure=error, wear=wear, retrain_now=worn)
    if worn:
        notes.assume(
            f"the network departs by {error:.0%} from the linear picture of the memory, which needs {wear:.3g} times "
            "the ridge of the first request",
            "retrain now and write a new memory; how much this request forgot is not known",
        )
    return found


@dataclass(frozen=True, eq=False)
class _Request:
    """A memory with a cohort taken out of it, where the memory was written."""

    memory: Memory
    then: Trained
    rows: Data
    gradient: Float[Tensor, " P"]
    removal: Removal

    @staticmethod
    def of(memory: Memory, trained: Trained, forget: Data, notes: Notes, seed: int) -> "_Request":
        memory.check_belongs_to(trained)
        fresh = memory.fresh(forget)
        left = memory.count - len(fresh)
        if left < 1:
            raise DataError(
                f"The memory holds {memory.count} rows and the request removes {len(fresh)}: nothing would stay."
            )
        then = trained.at(memory.taken_at.to(trained.weights))
        g_f = gradient(then, fresh) if len(fresh) else torch.zeros_like(then.weights)
        removal = _removal(memory, then, fresh, seed)
        notes.fact(
            memory_rank=memory.need("values").numel(),
            damped_directions=removal.damped,
            dropped_curvature=removal.dropped,
            already_forgotten=len(forget) - len(fresh),
        )
        return _Request(memory, then, fresh, g_f, removal)

    @property
    def left(self) -> int:
        return self.memory.count - len(self.rows)

    @property
    def b(self) -> Float[Tensor, " P"]:
        r"""$N_r \bar g - g_r$: the retained rows' gradient must become what training had left undone on all rows."""
        memory, g_f = self.memory, self.gradient
        return self.left * memory.left_undone.to(g_f) - (memory.gradient.to(g_f) - g_f)

    def answer(self, ridge: float) -> Recalled:
        found = self.removal.curvature
        # Beyond the kept span, the mean of what was left out stands in, so no step runs away.
        H_r = LowRankPlusRidge(found.basis, found.values, self.left * ridge + self.memory.outside)
        total = respond(H_r, self.b)
        before = self.memory.moved
        return Recalled(total if before is None else total - before.to(total), total, H_r, self.gradient, self.rows)

    def curvature_along(self) -> float:
        """The mean curvature of one retained row along what pulls."""
        b = self.b
        return float((b @ self.removal.curvature.multiply(b)) / (b @ b).clamp(min=1e-30)) / self.left

    def departure(self, total: Float[Tensor, " P"]) -> float:
        r"""$\|f_{w+\delta} - f_w - J\delta\| / \|J\delta\|$ on the rows that must go."""
        if not len(self.rows):
            return 0.0
        linear = Jacobian(self.then, self.rows).multiply(total)
        moved = self.then.at(self.then.weights + total).predict(self.rows) - self.then.predict(self.rows)
        return float((moved - linear).norm() / linear.norm().clamp(min=1e-30))


def _removal(memory: Memory, then: Trained, fresh: Data, seed: int) -> Removal:
    """`H_r` in the span of the kept directions and of the cohort's own; its ridge is not in it yet."""
    basis, values = memory.need("basis").to(then.weights), memory.need("values").to(then.weights)
    kept = LowRank(
        basis=basis,
        values=(values - memory.outside).clamp(min=0),
        residuals=torch.zeros_like(values),
        error=max(0.0, memory.error - memory.outside),
        remainder=0.0,
        products=0,
    )
    nothing = 1.0  # a ridge that `_Request.answer` replaces
    if not len(fresh):
        return Removal(kept.plus_ridge(nothing), least=0.0, damped=0, dropped=0.0)
    root = _own_root(then, fresh, seed)
    # Directions far weaker than what the memory left out are beneath its resolution, and cost as much as strong ones.
    columns = int((torch.linalg.eigvalsh((root.T @ root).double()) > BENEATH * memory.outside).sum())
    return without_cohort(kept, root, ridge=nothing, columns=max(1, columns))


def _own_root(then: Trained, fresh: Data, seed: int) -> Float[Tensor, "P m"]:
    """`R` with `R Rᵀ = H_f`: row by row where that is few columns, the strongest directions otherwise."""
    outputs = then.predict(fresh.pick([0]))[0]
    width = len(fresh) * outputs.numel()
    if width > WIDEST:
        own = low_rank(GaussNewton(then, fresh), min(WIDEST, then.size), generator=torch.Generator().manual_seed(seed))
        return own.root
    loss, columns = flat_loss(then.loss, outputs.shape), []
    for one in then.batches(fresh, 16):
        S = loss.hessian_root(then.outputs(one.x).detach().flatten(1), one.y)
        columns.append(torch.einsum("ncp,ncr->pnr", jacobian_rows(then, one.x), S).flatten(1))
    return torch.cat(columns, dim=1).detach()


def fisher_after(memory: Memory, trained: Trained, forget: Data) -> Float[Tensor, " P"]:
    """The Fisher diagonal of the retained rows, as a sum: the memory's own less that of the cohort."""
    fresh, then = memory.fresh(forget), trained.at(memory.taken_at.to(trained.weights))
    own = fisher_diagonal(then, fresh) if len(fresh) else torch.zeros_like(trained.weights)
    # A memory from Monte Carlo may hold less than the cohort's exact share; a sum of squares is never negative.
    return (memory.need("diagonal").to(own) - own).clamp(min=0)


def after_request(
    memory: Memory,
    trained: Trained,
    forget: Data,
    weights: Float[Tensor, " P"],
    *,
    ridge: float | None = None,
    seed: int = 0,
) -> Memory:
    r"""The memory that the next request finds, for the weights that this one led to.

    The cohort's sums are out; all others stay those at the weights where the memory was written. The kept rank stays
    what it was.

    **Arguments:**

    - `trained`: the network **before** the request.
    - `weights`: the network after it, noise included.
    - `ridge`: what the step was found with, as in `recall`; scrubs note it as `memory_ridge`. `None` where the request
      made no step, only noise: what it asked for is then made up for by the next step.
    """
    request = _Request.of(memory, trained, forget, Notes(), seed)
    H_r = request.removal.curvature
    strongest = H_r.values.argsort(descending=True)[: memory.need("values").numel()]
    known = memory.ridge if ridge is None else ridge
    return memory.without(
        request.rows.rows,
        weights=weights.clone(),
        origin=memory.taken_at,
        undone=memory.left_undone,
        gradient=memory.gradient.to(request.gradient) - request.gradient,
        count=request.left,
        basis=H_r.basis[:, strongest],
        values=H_r.values[strongest] + memory.outside,
        diagonal=None if memory.diagonal is None else fisher_after(memory, trained, forget),
        # Factors cannot be subtracted; fewer rows of the same kind is the best that is known.
        kronecker=None if memory.kronecker is None else memory.kronecker.scaled(request.left / memory.count),
        moved=memory.moved if ridge is None else request.answer(ridge).total,
        ridge=known,
        first=memory.first or known,
    )
