"""Write statistics at the end of training: sums over the data that later requests subtract from."""

from typing import Literal

import torch
from torch import nn

from spotlessnet.core.data import Data, as_data
from spotlessnet.core.row_keys import RowKeys
from spotlessnet.core.trained import Trained, as_trained
from spotlessnet.operators.fisher import fisher_diagonal
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.kronecker import kronecker as kronecker_curvature
from spotlessnet.operators.low_rank import LowRank, low_rank
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.precomputed.written import Written
from spotlessnet.store.checkpoints import is_following


def precompute(
    trained: Trained | nn.Module,
    data: Data,
    *,
    rank: int = 200,
    diagonal: Literal["exact", "monte carlo", "empirical"] | None = "monte carlo",
    kronecker: bool = False,
    sample: int | None = None,
    coreset: int = 0,
    seed: int = 0,
    salt: bytes | None = None,
    after_requests: bool = False,
) -> Statistics:
    """What requests will need, in one pass for the gradient and one per curvature asked for.

    **Arguments:**

    - `rank`: how many top directions of the Gauss-Newton matrix are kept; 0 keeps none. It costs a few times
      `rank` products over the data, and `rank · P` numbers of memory.
    - `diagonal`: how the Fisher diagonal is found, or `None` for no diagonal.
    - `kronecker`: keep Kronecker-factored curvature too (needs the extra `kfac`).
    - `sample`: take curvature from this many rows, scaled up to all of them, instead of every row.
    - `coreset`: remember the keys of this many retained rows for later fine-tuning.
    - `salt`: of the keys by which rows are known again; a new one unless given.
    - `after_requests`: the network has served requests already; later ones are then held from taking those back.
      What `unlearn` gave is known to have.
    """
    trained, data = as_trained(trained), as_data(data)
    written = Written(rank, diagonal, kronecker, sample, coreset, seed)
    written.check()
    draw = torch.Generator().manual_seed(seed)
    N = len(data)
    seen = (
        data if sample is None or sample >= N else data.select(torch.randperm(N, generator=draw)[:sample].sort().values)
    )
    scale = N / len(seen)
    # The gradient must be exact, since every request subtracts from it; curvature may come from a sample.
    g = gradient(trained, data)
    noise = torch.Generator(trained.device).manual_seed(seed)
    kept = None
    if rank:
        H = GaussNewton(trained, seen)
        kept = low_rank(H, min(rank, trained.size), generator=noise, may_leave_device=True)
    d = None if diagonal is None else scale * fisher_diagonal(trained, seen, kind=diagonal, generator=noise)
    K = kronecker_curvature(trained, seen, generator=noise).map(lambda e: scale * e) if kronecker else None
    chosen = torch.randperm(N, generator=draw)[:coreset].sort().values
    keys = RowKeys.of(data, salt)
    return Statistics(
        weights=trained.weights.clone(),
        gradient=g,
        keys=keys,
        weight_decay=trained.known_weight_decay,
        basis=None if kept is None else kept.basis,
        values=None if kept is None else scale * kept.values,
        outside=0.0 if kept is None else scale * _mean_outside(trained, data, kept),
        error=0.0 if kept is None else scale * kept.error,
        diagonal=d,
        kronecker=K,
        coreset=RowKeys.of(data.select(chosen), keys.salt).digests if coreset else None,
        trained_on=N,
        after_requests=after_requests or is_following(trained.model),
        written=written,
    )


def _mean_outside(trained: Trained, data: Data, kept: LowRank) -> float:
    """The mean eigenvalue beyond the kept span, over the directions that any row can pull in at all."""
    outputs = trained.predict(data.select([0]))[0].numel()
    directions = min(trained.size, len(data) * outputs)
    return max(0.0, kept.remainder) / max(1, directions - kept.rank)
