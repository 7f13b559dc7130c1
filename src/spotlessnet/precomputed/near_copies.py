"""Rows that nearly copy one that an earlier request forgot: the one kind that no retained row stands in for.

Of the forgotten row nothing is kept that could be read. Directions on a random side of which an input lies are hashed,
64 at a time, under a key that lies beside them in `private`: whoever holds another input can see whether it is a near
copy, as with the keyed digests of whole rows, and nobody can go the way back.
"""

import hmac
import math
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.source import Inputs
from spotlessnet.core.trained import Trained

if TYPE_CHECKING:
    from spotlessnet.precomputed.effect import Effect

TABLES, BITS = 32, 64
"""Hashes of a row, and directions in each: inputs 6 degrees apart share one in 98 of 100 cases, 25 degrees apart in
one of 400."""

COORDINATES = 4096
"""Entries of an input that are looked at."""

TAKEN = 0.25
"""The share of what a request did that its row may lose: half of what others may, for a copy is not quite the row."""

ABOUT = 2.0
"""How far the loss of a copy under the forgotten label may be from that of the row, as a factor."""


def hashes_of(rows: Data, key: bytes) -> list[list[str]]:
    """For each row, its keyed hashes: short, so that a table of them tells no more than that two rows are close."""
    found = []
    for batch in rows.batches(64):
        x = _entries(batch.x)
        draw = torch.Generator().manual_seed(0)
        chosen = x if x.shape[1] <= COORDINATES else x[:, torch.randperm(x.shape[1], generator=draw)[:COORDINATES]]
        directions = torch.randn(chosen.shape[1], TABLES * BITS, generator=draw)
        sides = (chosen @ directions >= 0).reshape(len(x), TABLES, BITS).to(torch.uint8)
        for row in sides:
            told = [f"{x.shape[1]} {i} ".encode() + bytes(table.tolist()) for i, table in enumerate(row)]
            found.append([hmac.new(key, one, sha256).hexdigest()[:16] for one in told])
    return found


def _entries(x: Inputs) -> Float[Tensor, "n d"]:
    """All numbers of an input, part by part in the order of their names."""
    parts = [x[name] for name in sorted(x)] if isinstance(x, dict) else [x]
    return torch.cat([part.detach().cpu().float().reshape(len(part), -1) for part in parts], dim=1)


def comes_back(trained: Trained, step: Float[Tensor, " P"], rows: Data, effects: Sequence["Effect"] | None) -> bool:
    """Whether a request may bring back a row that an earlier one forgot, because it takes out a near copy of it.

    With a label of its own, a near copy holds the answer away from the forgotten one; when it goes, that may return.
    Retraining does so where the forgotten label was right, and nothing at hand tells whether it was.

    - Where earlier effects are known: a row is a near copy, and under another label that may be the forgotten one, for
      its loss is about what the earlier request left, that falls by a quarter of what the request did.
    - Where they were destroyed: any row becomes likelier than a guess under a label that was not.
    """
    near = None if effects is None else [_near(rows, effect) for effect in effects]
    if near is not None and not any(bool(one.any()) for one in near):
        return False
    if not trained.loss.is_classification or trained.predict(rows.select([0])).ndim != 2:
        return near is not None  # labels cannot be gone through
    now, after, others = _by_label(trained, step, rows)
    if effects is None or near is None:
        guess = math.log(now.shape[1])
        return bool(((now >= guess) & (after < guess) & others).any())
    for effect, which in zip(effects, near, strict=True):
        may_be = (now > effect.loss / ABOUT) & (now < effect.loss * ABOUT) & others & which.unsqueeze(1)
        if bool((may_be & (now - after > TAKEN * effect.raised)).any()):
            return True
    return False


def _near(rows: Data, effect: "Effect") -> Bool[Tensor, " n"]:
    known = set(effect.hashes)
    if not known:
        return torch.zeros(len(rows), dtype=torch.bool)
    return torch.tensor([not known.isdisjoint(one) for one in hashes_of(rows, bytes.fromhex(effect.key))])


@torch.no_grad()
def _by_label(
    trained: Trained, step: Float[Tensor, " P"], rows: Data
) -> tuple[Float[Tensor, "n C"], Float[Tensor, "n C"], Bool[Tensor, "n C"]]:
    """The loss of each row under each label before and after a step, and which labels are not its own."""
    now, after = (
        -network.predict(rows).double().log_softmax(dim=1).cpu()
        for network in (trained, trained.at(trained.weights + step))
    )
    labels = rows.labels().cpu().long()
    return now, after, torch.arange(now.shape[1]) != labels.unsqueeze(1)
