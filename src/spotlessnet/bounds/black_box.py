"""Black box: how much someone who only sees some outputs can still learn."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.bounds.dense_kl import DenseKL, dense_kl
from spotlessnet.core.bound import BOUNDS, Bound
from spotlessnet.core.data import Data
from spotlessnet.core.errors import check_choice, check_positive
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.progress import budget, track
from spotlessnet.core.readout import Reading
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.jacobian import jacobian_rows
from spotlessnet.operators.precision import in_format

ENTRIES = 2**27
"""Entries of a Jacobian held at once where memory holds them; more queries are worked off in blocks."""

ANSWERS_ERR = 16 * torch.finfo(torch.float64).eps
"""Relative error of answers computed in float64: a few roundings per layer."""


@BOUNDS.register(
    "black-box",
    paper="Golatkar, Achille and Soatto (2020), Forgetting Outside the Box: equation 7",
    guarantee="exact for linear networks, an estimate for others; never above the white box",
)
@dataclass(frozen=True)
class BlackBox(Bound):
    r"""The divergence of the joint logits of `queries` inputs, with the network linearised around both means.

    $$KL\big(N(f_{h(w)}(x),\, J\Sigma J^\top) \,\|\, N(f_{w_r}(x),\, J_0\Sigma_0 J_0^\top)\big)$$

    `J` is taken at $h(w)$, `J_0` at the retrained weights, both in float64 whatever the network computes in: directions
    with little noise carry most of the nats, and float32 loses them. The noise is shared by all queries, so the
    covariance is joint, $qC \times qC$: summing single queries would be wrong.

    No answer tells more than the weights it is computed from, so the number is **capped at the white box**: where the
    network is not linear, the linearised divergence may be larger, even infinite. Below the cap it is exact for linear
    networks, where it never falls when queries are added, and an estimate for others; `bounds.linearisation` says how
    good. Where a level of noise was chosen on the request, answers can tell which: its price is in the number.

    **Arguments:**

    - `queries`: how many inputs are asked; the first of a shuffled order, so that more queries contain fewer.
    - `on`: from which data they come.
    - `seed`: of the shuffle.
    """

    queries: int = 16
    on: str = "forget"
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("BlackBox.queries", self.queries)
        check_choice("BlackBox.on", self.on, ("forget", "retain", "test"))

    @property
    def name(self) -> str:
        """What the column is called."""
        return f"BlackBox({self.queries} on {self.on})"

    def __call__(self, scrubbed: Gaussian, reference: Gaussian, trained: Trained, split: Split) -> Reading:
        """Nats over the joint logits of the queries."""
        data = chosen(data_of(split, self.on), self.queries, self.seed)
        exact = in_format(trained, torch.float64)
        here, there = exact.at(scrubbed.mean, scrubbed.buffers), exact.at(reference.mean, reference.buffers)
        # OB eq. 7. Each mean in its own network: linearising both at one of them would mistake curvature for shift.
        answers = here.predict(data).flatten(), there.predict(data).flatten()
        gap = answers[0] - answers[1]
        if scrubbed.is_noiseless or reference.is_noiseless:
            # Before any covariance is formed: without noise the divergence is zero or infinite, and nothing can be
            # inverted.
            still = scrubbed.is_noiseless and reference.is_noiseless and not bool(gap.any())
            return Reading(0.0 if still else math.inf, note=f"{len(data)} queries, logits; no noise")
        S, S0 = output_covariance(scrubbed, here, data), output_covariance(reference, there, data)
        found = dense_kl(gap, S, S0, gap_error=gap_error(*answers))
        if found.rank < found.size:
            found = unless_noise_was_left_out(found, _roots([(scrubbed, here), (reference, there)], data))
        most = white_box_nats(scrubbed, reference)
        nats = found.nats + reference.price
        capped = "" if nats <= most else f"; capped at the white box, {most:.3g}: no answer tells more"
        return Reading(min(nats, most), note=f"{len(data)} queries, logits, linearised; {found.note}{capped}")


def white_box_nats(scrubbed: Gaussian, reference: Gaussian) -> float:
    """The divergence over the weights themselves: no function of them has a larger one."""
    return max(0.0, scrubbed.kl(reference))


def unless_noise_was_left_out(found: DenseKL, roots: Sequence[Float[Tensor, "M P"]] | None) -> DenseKL:
    r"""The same, unsure where either noise has more directions than its covariance could tell from none.

    The singular values of a root $J \Sigma^{1/2}$ are roots of variances, so what is below rounding in a covariance is
    far above it there.

    **Arguments:**

    - `roots`: of both sides; `None` where they are too large to be looked at.
    """
    if math.isinf(found.nats) or (roots is not None and directions(roots) <= found.rank):
        return found
    return replace(found, is_unsure=True)


def directions(roots: Sequence[Float[Tensor, "M P"]]) -> int:
    """Along how many directions of the answers the noises of these roots reach, taken together."""
    R = torch.cat(tuple(roots), dim=1)
    # Rows of one length: an answer with little noise is one all the same.
    R = R / R.norm(dim=1, keepdim=True).clamp(min=torch.finfo(R.dtype).tiny)
    return int(torch.linalg.matrix_rank(torch.linalg.qr(R.T, mode="r")[1], rtol=ANSWERS_ERR * len(R)))


def _roots(sides: list[tuple[Gaussian, Trained]], data: Data) -> list[Float[Tensor, "M P"]] | None:
    """Of each side, or nothing where its Jacobian is worked off in blocks."""
    trained = sides[0][1]
    outputs = trained.predict(data.select([0])).numel()
    if len(data) * outputs * trained.size > entries_held(trained):
        return None
    return [root_of(gaussian, jacobian_of(at, data)) for gaussian, at in sides]


def root_of(gaussian: Gaussian, J: Float[Tensor, "M P"]) -> Float[Tensor, "M P"]:
    r"""$J \Sigma^{1/2}$."""
    return gaussian.covariance.double().map(lambda e: e.clamp(min=0).sqrt()).multiply(J)


def gap_error(here: Float[Tensor, " M"], there: Float[Tensor, " M"]) -> float:
    """How far rounding may move the difference of two answers, as a length: answers err by a share of themselves."""
    return ANSWERS_ERR * float(torch.cat([here, there]).double().norm())


def data_of(split: Split, on: str) -> Data:
    """The data a bound asks about."""
    return {"forget": lambda: split.forget, "retain": lambda: split.retain, "test": lambda: split.tests}[on]()


def chosen(data: Data, count: int, seed: int = 0) -> Data:
    """The first `count` rows of a shuffled order: a larger count contains a smaller one."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    return data.select(order[:count])


def output_covariance(
    gaussian: Gaussian, trained: Trained, data: Data, *, entries: int = ENTRIES
) -> Float[Tensor, "M M"]:
    r"""$J \Sigma J^\top$ over all outputs of all rows of `data`, row `n * C + c`, all of it in float64.

    Block by block where the whole Jacobian would not fit; a block is made anew each time it is met.
    """
    trained, covariance = in_format(trained, torch.float64), gaussian.covariance.double()
    outputs = trained.predict(data.select([0])).numel()
    size = max(1, entries_held(trained, entries) // max(1, outputs * trained.size))
    blocks = [data.select(torch.arange(len(data))[i : i + size]) for i in range(0, len(data), size)]
    rows = [[torch.empty(0, dtype=torch.float64)] * len(blocks) for _ in blocks]
    for i in track(range(len(blocks)), "output covariance"):
        J = jacobian_of(trained, blocks[i])
        spread = covariance.multiply(J)
        for j in range(i, len(blocks)):
            other = J if i == j else jacobian_of(trained, blocks[j])
            rows[i][j] = spread @ other.T
            # Symmetric: half of the blocks, and so half of the Jacobians, are enough.
            rows[j][i] = rows[i][j].T
    return torch.cat([torch.cat(row, dim=1) for row in rows])


def entries_held(trained: Trained, entries: int = ENTRIES) -> int:
    """Entries of a Jacobian that are held at once: of two, and of a product with the covariance, in float64."""
    return min(entries, int(budget(trained.device) / (3 * 8)))


def jacobian_of(trained: Trained, data: Data) -> Float[Tensor, "M P"]:
    """The dense Jacobian of all outputs of a few rows."""
    J = torch.cat([jacobian_rows(trained, batch.x) for batch in trained.batches(data)])
    return J.detach().reshape(-1, trained.size)
