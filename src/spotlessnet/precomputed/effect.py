"""What a request did to its own rows, in three coarse numbers: all that later requests must not take back."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from spotlessnet.core.data import Data
from spotlessnet.core.trained import Trained

NOISE = 0.05
"""A smaller rise of the mean loss, in nats, is none: there is nothing to take back. Of other losses, this share."""

STEPS = 4
"""So many values to a factor of two: finer ones would tell more of the rows, coarser ones refuse too much."""


@dataclass(frozen=True)
class Effect:
    r"""How far a request raised the loss of its rows, each weighted by its own rise $d_i$.

    Most of what a request does to ordinary rows it does to a few of them, and their mean hides it.

    **Arguments:**

    - `size`: how many rows carry it, $(\sum d)^2 / \sum d^2$, rounded.
    - `raised`: by how much their loss rose, $\sum d^2 / \sum d$, rounded.
    - `loss`: what it was afterwards, $\sum d \ell / \sum d$, rounded.
    """

    size: int
    raised: float
    loss: float

    @staticmethod
    @torch.no_grad()
    def of(before: Trained, after: Trained, rows: Data) -> "Effect | None":
        """That of a request which led from one network to the other; `None` where it raised nothing."""
        lost, loss = (
            torch.cat([network.losses(b.x, b.y) for b in network.batches(rows)]).double().cpu()
            for network in (before, after)
        )
        unit = 1.0 if before.loss.is_classification else float(loss.mean().abs())
        if not float((loss - lost).mean()) > NOISE * unit:
            return None
        d = (loss - lost).clamp(min=0)
        raised, size = float(d.square().sum() / d.sum()), float(d.sum().square() / d.square().sum())
        return Effect(max(1, round(size)), _rounded(raised), _rounded(max(float((d * loss).sum() / d.sum()), raised)))


def as_text(effects: Sequence[Effect]) -> str:
    """For the header of a file."""
    return json.dumps([asdict(effect) for effect in effects])


def from_text(text: str) -> tuple[Effect, ...]:
    """What a header says of earlier requests; a number that no request can have is a `ValueError`."""
    found = tuple(Effect(int(e["size"]), float(e["raised"]), float(e["loss"])) for e in json.loads(text))
    if not all(e.size > 0 and 0 < e.raised < math.inf and 0 < e.loss < math.inf for e in found):
        raise ValueError("what earlier requests did is no positive number")
    return found


def _rounded(value: float) -> float:
    return 2.0 ** (round(STEPS * math.log2(value)) / STEPS)
