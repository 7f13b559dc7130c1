"""Serve a request from a memory: the rows that must go, and sums over the rest, are all it takes."""

from dataclasses import dataclass, replace

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
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.jacobian import Jacobian, jacobian_rows
from spotlessnet.operators.kernel import kernel
from spotlessnet.operators.linear_response import respond
from spotlessnet.operators.low_rank import LowRank, Removal, without_cohort
from spotlessnet.operators.trust import dampings

WIDEST = 400
"""The most directions of the cohort's own curvature that are taken out."""

SEEN = 2000
"""Rows times outputs of the cohort that its curvature is taken from; of a larger cohort some rows stand for all."""

TOGETHER = 16
"""Rows of the cohort whose Jacobian is held at once."""

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
    # Directions far weaker than what the memory left out are beneath its resolution, and cost as much as strong ones.
    root, dropped = own_root(then, fresh, WIDEST, beneath=BENEATH * memory.outside, seed=seed)
    return replace(without_cohort(kept, root, ridge=nothing), dropped=dropped)


def own_root(
    then: Trained, rows: Data, most: int, *, beneath: float = 0.0, seed: int = 0
) -> tuple[Float[Tensor, "P m"], float]:
    r"""The strongest columns of $R$ with $R R^\top = H_f$, and the share of the trace that the others had.

    With $S S^\top$ the output Hessians and $\Theta$ the kernel, $S^\top \Theta S = Y \Lambda Y^\top$ and
    $R = J^\top S Y$: a pass through the network for the kernel and one for the columns, a few rows at a time. Products
    alone would take one pass for every direction looked for.

    **Arguments:**

    - `most`: columns at most; the strongest, and at least one.
    - `beneath`: columns with a curvature no larger than this are left out.
    """
    outputs = then.predict(rows.pick([0]))[0]
    few = max(1, SEEN // outputs.numel())
    drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:few].sort().values
    seen, scale = rows.pick(drawn), (len(rows) / len(drawn)) ** 0.5
    loss = flat_loss(then.loss, outputs.shape)
    with torch.no_grad():
        S = [scale * loss.hessian_root(then.outputs(one.x).flatten(1), one.y) for one in then.batches(seen)]
    roots = torch.cat(S)
    n, C, r = roots.shape
    theta = kernel(then, seen).reshape(n, C, n, C)
    half = torch.einsum("ncmd,mds->ncms", theta, roots)
    gram = torch.einsum("ncr,ncms->nrms", roots, half).reshape(n * r, n * r)
    values, Y = torch.linalg.eigh(gram.double())
    values, Y = values.flip(0).clamp(min=0), Y.flip(1)
    columns = max(1, min(most, int((values > beneath).sum())))
    u = torch.einsum("ncr,nrm->ncm", roots, Y[:, :columns].to(roots).reshape(n, r, columns))
    root = torch.zeros(then.size, columns, dtype=then.dtype, device=then.device)
    for one, part in zip(then.batches(seen, TOGETHER), u.split(TOGETHER), strict=True):
        root.addmm_(jacobian_rows(then, one.x).detach().flatten(0, 1).T, part.flatten(0, 1))
    return root, float(values[columns:].sum() / values.sum().clamp(min=1e-30))


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
