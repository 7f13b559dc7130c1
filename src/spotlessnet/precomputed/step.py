"""Serve a request from precomputed statistics: the rows that must go, and sums over the rest, are all it takes."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.covariance import LowRankPlusRidge
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError
from spotlessnet.core.gaussian import Measured
from spotlessnet.core.progress import MOST as MOST_FREE
from spotlessnet.core.progress import budget, free_bytes, holds
from spotlessnet.core.scrub import Notes
from spotlessnet.core.trained import Trained
from spotlessnet.operators.downdate import Removal, without_cohort
from spotlessnet.operators.fisher import fisher_diagonal, flat_loss
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.jacobian import Jacobian, jacobian_rows
from spotlessnet.operators.kernel import kernel
from spotlessnet.operators.linear_response import removal_gradient, respond
from spotlessnet.operators.low_rank import LowRank
from spotlessnet.operators.trust import dampings
from spotlessnet.precomputed.near_copies import ASKED, asked_for, labels_back
from spotlessnet.precomputed.others import CLOSE, ENOUGH, Others
from spotlessnet.precomputed.statistics import Statistics

WIDEST = 400
"""The most directions of the cohort's own curvature that are taken out."""

SEEN = 2000
"""Rows times outputs of the cohort that its curvature is taken from; of a larger cohort some rows stand for all."""

TOGETHER = 16
"""Rows of the cohort whose Jacobian is held at once, where memory holds it."""

TALL = 4
"""Vectors that each direction of a cohort becomes: in its root, beside the kept ones, joined, and turned."""

BENEATH = 0.1
"""A cohort's directions below this share of the mean curvature that the statistics left out are not looked at."""

FAITHFUL = 0.2
"""How far the network may depart from the linear picture, in units of what that picture says, before damping rises."""

MOST = 0.25
"""The share of the rows trained on that may go before the network must be retrained."""


@dataclass(frozen=True)
class StepFacts(Measured):
    """What statistics say of a step: how much of them is used, how far the network departs, and if they serve."""

    statistics_rank: int | None = None
    damped_directions: int | None = None
    dropped_curvature: float | None = None
    damping: float | None = None
    others_moved: float | None = None
    statistics_ridge: float | None = None
    drift: float | None = None
    gone: float | None = None
    retrain_now: bool | None = None


@dataclass(frozen=True, eq=False)
class Step:
    r"""What statistics say about the rest of the data once a cohort is out of it.

    **Arguments:**

    - `step`: $\delta = H_r^{-1}(g_f - \tfrac kN g_D)$, from the weights before the request to those after it.
    - `curvature`: $H_r$ plus its ridge, in low rank.
    - `gradient`: $g_f$, the cohort's own sum.
    """

    step: Float[Tensor, " P"]
    curvature: LowRankPlusRidge
    gradient: Float[Tensor, " P"]


def step_from_statistics(
    statistics: Statistics,
    trained: Trained,
    forget: Data,
    ridge: float,
    notes: Notes,
    *,
    retain: Data | None = None,
    seed: int = 0,
) -> Step:
    r"""The step that the retained data would ask for, from the statistics and $D_f$ alone.

    Gradient and curvature of the cohort are both taken out: leaving its curvature in makes the step useless. Only what
    this request asks for is solved for: what earlier ones did is in the weights, and is never asked for again. The
    notes say *retrain now* where the network does not follow the linear picture at this ridge, where a quarter of all
    rows is gone, and after the first request where the step may take back what earlier ones did (`Others`,
    `near_copies`).

    **Arguments:**

    - `ridge`: decay plus damping, **per row**; becomes $N_r$ times that.
    - `notes`: records how much of the curvature was approximated.
    - `retain`: rows that stay, or some of them. From the second request on they stand in for the rows of earlier ones,
      of which nothing is kept.
    """
    request = _Request.of(statistics, trained, forget, notes, seed)
    found = request.answer(ridge)
    return _judged(request, found, request.drift(found.step), _others_moved(request, found, retain), ridge, notes)


def faithful_step(
    statistics: Statistics,
    trained: Trained,
    forget: Data,
    weight_decay: float,
    notes: Notes,
    *,
    retain: Data | None = None,
    seed: int = 0,
) -> Step:
    """`step_from_statistics` with the least damping at which the network follows the linear picture on the rows that
    must go, and at which others stay near enough for earlier requests to keep what they did.

    The forgotten rows are moved furthest, so they depart first. The notes say *retrain now* where no damping is enough
    that leaves half of what the first faithful step does to them, and where a quarter of all rows is gone.
    """
    request = _Request.of(statistics, trained, forget, notes, seed)
    # Rounded, so that what is kept of it tells next to nothing of the rows.
    first = 4.0 ** math.ceil(math.log(max(weight_decay, 1e-3 * request.curvature_along(), 1e-12), 4))
    ridges = [weight_decay + d for d in dampings(first)]
    for ridge in (r for r in ridges if r > 0):
        found = request.answer(ridge)
        error = request.drift(found.step)
        if error <= FAITHFUL:
            break
    others = _others_moved(request, found, retain)
    own = request.own_movement(found.step)
    first_found = (found, error, others, ridge)
    for more in ridges[ridges.index(ridge) + 1 :]:
        if others is None or (_is_near(others, error) and error <= FAITHFUL and not request.undoes(found.step)):
            break
        found = request.answer(more)
        ridge = more
        error = request.drift(found.step)
        others = _others_moved(request, found, retain)
        if request.own_movement(found.step) < ENOUGH * own:
            found, error, others, ridge = first_found  # refused, and told as it was
            break
    notes.measure(StepFacts, damping=ridge - weight_decay)
    return _judged(request, found, error, others, ridge, notes)


def _others_moved(request: "_Request", found: Step, retain: Data | None) -> float | None:
    """How far rows that stand in for those of earlier requests move, in units of the limit: without end if nobody can
    see. `None` for a first request, which has nothing to take back.
    """
    if not request.statistics.after_requests:
        return None
    if retain is None or not len(retain):
        return math.inf
    others = Others.of(request.trained, retain)
    effects = request.statistics.effects
    return others.moved(found.step) if effects is None else others.taken_back(found.step, effects)


def _is_near(others: float, error: float) -> bool:
    """Whether others stay within the limit, or are moved by a step that moves them as retraining would."""
    return others <= 1 or (others < math.inf and error <= CLOSE)


def _judged(request: "_Request", found: Step, error: float, others: float | None, ridge: float, notes: Notes) -> Step:
    """The step, and in the notes whether it may be taken. Every step from statistics comes through here."""
    gone = request.statistics.forgotten(len(request.rows))
    why = []
    if others == math.inf:
        why.append("no retained row is at hand to see whether the step takes back what earlier requests did")
    elif others is not None:
        if request.statistics.effects is None:  # else it would tell of an earlier request's rows, when theirs is purged
            notes.measure(StepFacts, others_moved=others)
        if not _is_near(others, error):
            why.append("the step moves other rows further than earlier requests are safe from")
    if others is not None and request.undoes(found.step):
        why.append(
            "the step makes other labels of its own rows likely, and the rows that stay do not ask for it: what such "
            "a row nearly copies could come back"
        )
    if not error <= FAITHFUL:  # what is not a number is not faithful
        why.append(f"the network departs by {error:.0%} from the linear picture of the statistics")
    if gone > MOST:
        why.append(f"{gone:.0%} of the rows that the network was trained on are gone")
    notes.measure(StepFacts, statistics_ridge=ridge, drift=error, gone=gone, retrain_now=bool(why))
    if why:
        lost = "retrain now and precompute new statistics; how much this request forgot is not known"
        notes.assume("; ".join(why), lost)
    return found


@dataclass(frozen=True, eq=False)
class _Request:
    """Statistics with a cohort taken out of them."""

    statistics: Statistics
    trained: Trained
    rows: Data
    gradient: Float[Tensor, " P"]
    removal: Removal

    @staticmethod
    def of(statistics: Statistics, trained: Trained, forget: Data, notes: Notes, seed: int) -> "_Request":
        statistics.check_belongs_to(trained)
        statistics.check_holds(forget)
        if not 1 <= len(forget) < statistics.count:
            raise DataError(
                f"The statistics hold {statistics.count} rows and the request removes {len(forget)}: "
                f"{'nothing would stay' if len(forget) else 'there is nothing to forget'}."
            )
        g_f = gradient(trained, forget)
        removal = _removal(statistics, trained, forget, seed)
        notes.measure(
            StepFacts,
            statistics_rank=statistics.need("values").numel(),
            damped_directions=removal.damped,
            dropped_curvature=removal.dropped,
        )
        return _Request(statistics, trained, forget, g_f, removal)

    @property
    def left(self) -> int:
        return self.statistics.count - len(self.rows)

    @property
    def b(self) -> Float[Tensor, " P"]:
        r"""What training had left undone on all rows stays undone on the retained ones."""
        g_f = self.gradient
        return removal_gradient(g_f, self.statistics.gradient.to(g_f), len(self.rows), self.statistics.count)

    def answer(self, ridge: float) -> Step:
        found = self.removal.curvature
        # Beyond the kept span, the mean of what was left out stands in, so no step runs away.
        H_r = LowRankPlusRidge(found.basis, found.values, self.left * ridge + self.statistics.outside)
        return Step(respond(H_r, self.b.to(found.basis)).to(self.gradient), H_r, self.gradient)

    def curvature_along(self) -> float:
        """The mean curvature of one retained row along what pulls."""
        b = self.b.to(self.removal.curvature.basis)
        return float((b @ self.removal.curvature.multiply(b)) / (b @ b).clamp(min=1e-30)) / self.left

    def own_movement(self, step: Float[Tensor, " P"]) -> float:
        """How far the outputs of the rows that must go move, in the root mean square."""
        moved = self.trained.at(self.trained.weights + step).predict(self.rows) - self.trained.predict(self.rows)
        return float(moved.flatten(1).norm(dim=1).square().mean().sqrt())

    def undoes(self, step: Float[Tensor, " P"]) -> bool:
        """Whether a step may bring back what its rows nearly copy, if earlier requests did anything (`near_copies`)."""
        if self.statistics.effects == () or not bool(labels_back(self.trained, step, self.rows).any()):
            return False
        decay = self.left * self.statistics.weight_decay * (self.trained.weights - self.trained.anchor)
        stays = self.statistics.gradient.to(self.gradient) - self.gradient + decay
        return asked_for(stays, self.b, step) < ASKED

    def drift(self, step: Float[Tensor, " P"]) -> float:
        r"""$\|f_{w+\delta} - f_w - J\delta\| / \|J\delta\|$ on the rows that must go."""
        linear = Jacobian(self.trained, self.rows).multiply(step)
        now = self.trained.predict(self.rows)
        moved = self.trained.at(self.trained.weights + step).predict(self.rows) - now
        return float((moved - linear).norm() / linear.norm().clamp(min=1e-30))


def _removal(statistics: Statistics, trained: Trained, forget: Data, seed: int) -> Removal:
    """`H_r` in the span of the kept directions and of the cohort's own; its ridge is not in it yet."""
    outputs = trained.predict(forget.select([0])).numel()
    home, most = _place(trained, statistics.need("basis").shape[1], min(WIDEST, len(forget) * outputs))
    basis, values = (statistics.need(name).to(home, trained.dtype) for name in ("basis", "values"))
    kept = LowRank(
        basis=basis,
        values=(values - statistics.outside).clamp(min=0),
        residuals=torch.zeros_like(values),
        error=max(0.0, statistics.error - statistics.outside),
        remainder=0.0,
        products=0,
    )
    nothing = 1.0  # a ridge that `_Request.answer` replaces
    # Directions far weaker than what the statistics left out are beneath their resolution, and cost as much as others.
    root, dropped = own_root(trained, forget, most, beneath=BENEATH * statistics.outside, seed=seed, home=home)
    return replace(without_cohort(kept, root, ridge=nothing), dropped=dropped)


def _place(trained: Trained, kept: int, wanted: int) -> tuple[torch.device, int]:
    """Where the directions of a request are held, and how many of the cohort's own there is room for, at least one.

    On the network's device if that may hold them, else in the main memory: they are used a few times only.
    """
    each = trained.size * trained.weights.element_size()
    if holds(trained.device, (2 * kept + TALL * wanted) * each):
        return trained.device, wanted
    room = MOST_FREE * free_bytes() / each
    return torch.device("cpu"), max(1, min(wanted, int((room - 2 * kept) / TALL)))


def own_root(
    then: Trained,
    rows: Data,
    most: int,
    *,
    beneath: float = 0.0,
    seed: int = 0,
    home: torch.device | None = None,
) -> tuple[Float[Tensor, "P m"], float]:
    r"""The strongest columns of $R$ with $R R^\top = H_f$, and the share of the trace that the others had.

    With $S S^\top$ the output Hessians and $\Theta$ the kernel, $S^\top \Theta S = Y \Lambda Y^\top$ and
    $R = J^\top S Y$: a pass through the network for the kernel and one for the columns, a few rows at a time. Products
    alone would take one pass for every direction looked for.

    **Arguments:**

    - `most`: columns at most; the strongest, and at least one.
    - `beneath`: columns with a curvature no larger than this are left out.
    - `home`: where the columns shall lie; with the network unless said.
    """
    outputs = then.predict(rows.select([0]))[0]
    few = max(1, SEEN // outputs.numel())
    drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:few].sort().values
    seen = rows.select(drawn)
    scale = (len(rows) / len(drawn)) ** 0.5
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
    root = _pulled_back(then, seen, u, then.device if home is None else home)
    return root, float(values[columns:].sum() / values.sum().clamp(min=1e-30))


def _pulled_back(then: Trained, rows: Data, u: Float[Tensor, "n C m"], home: torch.device) -> Float[Tensor, "P m"]:
    r"""$J^\top u$: from Jacobians of a few rows, or column by column where not even one of them fits."""
    _, C, m = u.shape
    root = torch.zeros(m, then.size, dtype=then.dtype, device=home).T  # a column lies in one piece
    together = min(TOGETHER, int(budget(then.device) / (3 * C * then.size * then.weights.element_size())))
    if not together or home != then.device:
        J = Jacobian(then, rows)
        for column in range(m):
            root[:, column] = J.transpose_multiply(u[:, :, column].contiguous())
        return root
    for one, part in zip(then.batches(rows, together), u.split(together), strict=True):
        root.addmm_(jacobian_rows(then, one.x).detach().flatten(0, 1).T, part.flatten(0, 1))
    return root


def fisher_after(statistics: Statistics, trained: Trained, forget: Data) -> Float[Tensor, " P"]:
    """The Fisher diagonal of the retained rows, as a sum: the kept one less that of the cohort."""
    statistics.check_holds(forget)
    whole = statistics.need("diagonal").to(trained.weights)
    here = trained.at(statistics.weights.to(trained.weights))
    kind: Literal["exact", "empirical"] = "empirical" if statistics.written.diagonal == "empirical" else "exact"
    # Statistics from Monte Carlo may hold less than the cohort's exact share; a sum of squares is never negative.
    return (whole - fisher_diagonal(here, forget, kind=kind)).clamp(min=0)
