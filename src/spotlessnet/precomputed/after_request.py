"""The memory that the next request finds: that of a network which never saw the rows of this one."""

from dataclasses import asdict, replace

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import MismatchError
from spotlessnet.core.row_keys import WIDTH, RowKeys
from spotlessnet.core.trained import Trained
from spotlessnet.precomputed.precompute import precompute
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.precomputed.step import curvature_after, fisher_after

LEAST = 100
"""The fewest retained rows that may stand for all of them."""


def after_request(
    memory: Statistics,
    trained: Trained,
    forget: Data,
    weights: Float[Tensor, " P"],
    *,
    retain: Data | None = None,
    seed: int = 0,
) -> Statistics:
    r"""The memory that the next request finds, for the weights that this one led to.

    With `retain` it is written anew from retained rows at the new weights, as the first one was: from all of them, bit
    for bit what would be there without the rows of the request; from some, an estimate of it, in which only those are.
    That takes as long as writing the first one, from so many rows.

    Without it, nothing is kept that rows of the request are in, and the memory serves noise alone; a step from it says
    *retrain now*:

    - the gradient becomes $-N_r\lambda(w' - w_{start})$, where training on the retained rows would end: a function of
      the new weights alone;
    - of the curvature the cohort's own is taken out, and directions that no longer stand out without it are dropped. It
      stays that at the weights before the request. Whoever has every retained row could in principle look for those
      weights in it, and for the rows in the difference, so such a memory is to be destroyed;
    - a Fisher diagonal by Monte Carlo and Kronecker factors are dropped, for nothing can be taken out of them exactly.

    **Arguments:**

    - `trained`: the network **before** the request.
    - `weights`: the network after it, noise included.
    - `retain`: rows that the memory holds and the request does not remove: all of them, or at least `LEAST`.
    """
    memory.check_holds(forget)
    keys, moved = memory.keys.without(forget), trained.at(weights)
    if retain is None:
        return _less(memory, trained, forget, moved, keys, seed)
    unknown = keys.matched_controls(retain)
    if unknown or len(retain) < min(LEAST, len(keys)):
        raise MismatchError(
            f"The memory holds {len(keys)} rows beside those of the request, and is written anew from these, or from "
            f"at least {LEAST} of them, but {len(retain)} rows were given, {unknown} of them others. Give rows that "
            "stay, or none."
        )
    anew = precompute(moved, retain, **asdict(memory.written), salt=keys.salt)
    return replace(_scaled(anew, len(keys) / len(retain)), keys=keys, trained_on=memory.trained_on or memory.count)


def _scaled(memory: Statistics, factor: float) -> Statistics:
    """Sums over some rows as sums over all."""
    if factor == 1:
        return memory
    return replace(
        memory,
        gradient=factor * memory.gradient,
        values=None if memory.values is None else factor * memory.values,
        outside=factor * memory.outside,
        error=factor * memory.error,
        diagonal=None if memory.diagonal is None else factor * memory.diagonal,
        kronecker=None if memory.kronecker is None else memory.kronecker.map(lambda e: factor * e),
    )


def _less(memory: Statistics, trained: Trained, forget: Data, moved: Trained, keys: RowKeys, seed: int) -> Statistics:
    """The memory with the cohort's sums taken out of it."""
    basis, values = _strongest(memory, trained, forget, seed)
    subtractable = memory.diagonal is not None and memory.written.diagonal != "monte carlo"
    return replace(
        memory,
        weights=moved.weights.clone(),
        gradient=-len(keys) * memory.weight_decay * (moved.weights - moved.anchor),
        keys=keys,
        basis=basis,
        values=values,
        diagonal=fisher_after(memory, trained, forget) if subtractable else None,
        kronecker=None,
        coreset=None if memory.coreset is None else _still_there(memory.coreset, keys),
        trained_on=memory.trained_on or memory.count,
        since=memory.since + 1,
    )


def _strongest(memory: Statistics, trained: Trained, forget: Data, seed: int) -> tuple[Tensor | None, Tensor | None]:
    """Directions of the curvature without the cohort, and how strong they are."""
    if memory.values is None:
        return None, None
    H_r = curvature_after(memory, trained, forget, seed)
    # What is weaker than the strongest direction left out would not have been kept without the cohort.
    found = (H_r.values > max(0.0, memory.error - memory.outside)).nonzero().squeeze(1)
    order = H_r.values[found].argsort(descending=True)[: memory.values.numel()]
    kept = found[order] if len(found) else H_r.values.argmax().unsqueeze(0)
    return H_r.basis[:, kept], H_r.values[kept] + memory.outside


def _still_there(coreset: Tensor, keys: RowKeys) -> Tensor:
    present = set(keys.listed)
    stay = [i for i, key in enumerate(RowKeys(keys.salt, coreset).listed) if key in present]
    return coreset[torch.tensor(stay, dtype=torch.long)].reshape(-1, WIDTH)
