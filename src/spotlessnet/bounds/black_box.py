"""Black box: how much someone who only sees some outputs can still learn."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.bounds.dense_kl import dense_kl
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
    good.

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
        here, there = exact.at(scrubbed.mean), exact.at(reference.mean)
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
        most = white_box_nats(scrubbed, reference)
        capped = "" if found.nats <= most else f"; capped at the white box, {most:.3g}: no answer tells more"
        return Reading(min(found.nats, most), note=f"{len(data)} queries, logits, linearised; {found.note}{capped}")


def white_box_nats(scrubbed: Gaussian, reference: Gaussian) -> float:
    """The divergence over the weights themselves, in float64: no function of them has a larger one."""
    sides = (Gaussian(side.mean.double(), side.covariance.double()) for side in (scrubbed, reference))
    first, second = sides
    return max(0.0, first.kl(second))


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
    # Two Jacobians and a product with the covariance are held at once, in float64.
    most = min(entries, int(budget(trained.device) / (3 * 8)))
    size = max(1, most // max(1, outputs * trained.size))
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


def jacobian_of(trained: Trained, data: Data) -> Float[Tensor, "M P"]:
    """The dense Jacobian of all outputs of a few rows."""
    J = torch.cat([jacobian_rows(trained, batch.x) for batch in trained.batches(data)])
    return J.detach().reshape(-1, trained.size)
