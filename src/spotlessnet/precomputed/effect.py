"""What a request did to its own rows, in three numbers: what later requests must not take back."""

import json
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import torch
from jaxtyping import Float64
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.trained import Trained

NOISE = 0.05
"""A smaller rise of the mean loss, in nats, is none: there is nothing to take back. Of other losses, this share."""

FEW = 4 * NOISE
"""A rise of the rows that carry it, in the same unit, that counts even where most rows of a request hide it."""

LARGEST = 2**53
"""Rows of a request at most."""

LEAST, GREATEST = sys.float_info.min, sys.float_info.max
"""Of a rise or a loss: below, numbers lose their digits, and a quotient by one is no number any more."""

KINDS: dict[str, tuple[type, ...]] = {"size": (int,), "raised": (int, float), "loss": (int, float), "due": (str,)}


@dataclass(frozen=True)
class Effect:
    r"""How far a request raised the loss of its rows.

    With these numbers the label of a forgotten row can be guessed, even where they are rounded to powers of four. So
    they are no part of statistics: they lie in the folder `private` of a request, and go when it is due.

    **Arguments:**

    - `size`: how many rows carry it.
    - `raised`: by how much their loss rose.
    - `loss`: what it was afterwards.
    - `due`: when it must be destroyed, as an ISO date with a zone; empty for what is never written.
    """

    size: int
    raised: float
    loss: float
    due: str = ""

    @staticmethod
    def of(before: Trained, after: Trained, rows: Data) -> "Effect | None":
        r"""That of a request which led from one network to the other; `None` where it raised nothing.

        Each row is weighted by its own rise $d_i$: a request does most of what it does to a few rows, whose size is
        $(\sum d)^2 / \sum d^2$, rise $\sum d^2 / \sum d$ and loss $\sum d \ell / \sum d$.
        """
        lost, loss = _losses(before, after, rows)
        unit = 1.0 if before.loss.is_classification else float(loss.mean().abs())
        d = (loss - lost).clamp(min=0)
        # Two wrong labels among many ordinary rows hardly move the mean, and are what was to be forgotten.
        rises = float((loss - lost).mean()) > NOISE * unit or float(d.square().sum()) > FEW * unit * float(d.sum())
        if not rises:
            return None
        raised, size = float(d.square().sum() / d.sum()), float(d.sum().square() / d.square().sum())
        loss_after = max(float((d * loss).sum() / d.sum()), raised)
        return Effect(max(1, round(size)), raised, loss_after)

    @staticmethod
    def of_all(before: Trained, after: Trained, rows: Data) -> "Effect | None":
        """The same of the mean loss of all rows; where that hides it, of those that carry it."""
        lost, loss = _losses(before, after, rows)
        raised = float((loss - lost).mean())
        if raised <= NOISE * (1.0 if before.loss.is_classification else float(loss.mean().abs())):
            return Effect.of(before, after, rows)
        return Effect(len(rows), raised, max(float(loss.mean()), raised))


@torch.no_grad()
def _losses(before: Trained, after: Trained, rows: Data) -> tuple[Float64[Tensor, " N"], Float64[Tensor, " N"]]:
    first, second = (
        torch.cat([network.losses(b.x, b.y) for b in network.batches(rows)]).double().cpu()
        for network in (before, after)
    )
    return first, second


def as_text(effect: Effect | None, before: str) -> str:
    """For a file in `private`: what this request did, and in which folder it is told what the one before did.

    Each lies with its own request alone, so that it goes when that request's folder `private` does.
    """
    return json.dumps({"effect": None if effect is None else asdict(effect), "before": before})


def from_text(text: str, now: datetime) -> tuple[Effect | None, str] | None:
    """What a file says of its request, and the folder of the one before; `None` where it is due to be destroyed.

    What no request can have done is a `ValueError`.
    """
    told = json.loads(text)
    if not isinstance(told, dict) or told.keys() != {"effect", "before"} or type(told["before"]) is not str:
        raise ValueError("what a request did must be told as an effect, and the folder of the one before")
    e = told["effect"]
    if e is None:
        return None, told["before"]
    if not isinstance(e, dict) or e.keys() != KINDS.keys():
        raise ValueError("what a request did is not told in size, raised, loss and due")
    if not all(type(e[name]) in kinds for name, kinds in KINDS.items()):
        raise ValueError("what a request did is no number")
    if not (0 < e["size"] <= LARGEST and LEAST <= e["raised"] <= e["loss"] <= GREATEST):
        raise ValueError("what a request did is no positive number, or more than the loss that it left")
    if datetime.fromisoformat(e["due"]).astimezone(UTC) <= now:
        return None
    return Effect(e["size"], float(e["raised"]), float(e["loss"]), e["due"]), told["before"]
