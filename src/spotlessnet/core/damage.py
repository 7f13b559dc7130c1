"""Damage: how much worse a scrubbed network answers rows that stay, and the refusal of one that was ruined."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spotlessnet.core.data import Data, evenly
from spotlessnet.core.errors import DamageError, check_positive
from spotlessnet.core.loss import Loss
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained

MOST = 0.05
"""The rise of the error that is borne unless said: five points."""

CHECKED = 2048
"""Rows of each kind that are looked at, evenly spaced."""


@dataclass(frozen=True)
class Utility:
    """What a scrub cost on some rows.

    **Arguments:**

    - `on`: which rows; `rows` says how many were looked at.
    - `before`, `after`: the mean mistake of the original and of the scrubbed network: a share of wrong answers, or the
      mean loss where a loss knows no wrong answers.
    - `scale`: what the rise is counted in: one for shares; for a loss what labels dealt at random would add to it.
    """

    on: str
    rows: int
    before: float
    after: float
    scale: float = 1.0

    @property
    def rise(self) -> float:
        """How much worse: 0.05 is five points, or a twentieth of all that the network knows about the labels."""
        return (self.after - self.before) / self.scale

    def __str__(self) -> str:
        if self.scale == 1.0:
            return f"{self.after:.1%} of {self.rows} {self.on} are answered wrong, {self.before:.1%} before"
        return f"the mean loss of {self.rows} {self.on} is {self.after:.3g}, {self.before:.3g} before"

    def record(self) -> dict[str, Any]:
        """For receipts."""
        kind = "error" if self.scale == 1.0 else "loss"
        return {"on": self.on, "rows": self.rows, "kind": kind, "before": self.before, "after": self.after}


def utility_of(before: Trained, after: Trained, split: Split) -> list[Utility]:
    """Both networks on retained rows, and on held-out rows (validation, else test) where there are any."""
    held_out = split.validation if split.validation is not None else split.test
    sets = {"retained rows": split.kept, "held-out rows": None if held_out is None else _still_known(held_out, split)}
    return [
        _compared(name, before, after, data.select(evenly(len(data), CHECKED)))
        for name, data in sets.items()
        if data is not None and len(data)
    ]


def check_damage(before: Trained, after: Trained | nn.Module, split: Split, limit: float = MOST) -> list[Utility]:
    """Raise where a scrubbed network answers rows that stay much worse than the original did; else say how it does.

    **Arguments:**

    - `before`, `after`: the original and the scrubbed network, the latter as a module if you like.
    - `limit`: how much the error may rise, as a share: 0.05 is five points. For a loss without wrong answers, the share
      of what the network knows about the labels that may be lost.
    """
    check_positive("limit", limit, "0.05 is five points.")
    network = after if isinstance(after, Trained) else before.at(before.vector(after))
    found = utility_of(before, network, split)
    worst = max(found, key=lambda one: one.rise, default=None)
    if worst is not None and not worst.rise <= limit:  # not a number counts as damage
        raise DamageError(
            f"The scrubbed network is ruined: {worst}, and the rise may be {limit:g}. Nothing was written. Take the "
            "default method (name none; with start and recipe it retrains in short), less noise (a larger budget in "
            "nats) or a smaller step; if you did, check the recipe. --max-damage says how much may be lost, "
            "--accept-damage insists."
        )
    return found


def _still_known(held_out: Data, split: Split) -> Data:
    """Held-out rows whose label keeps at least half of its training rows: a network should forget a class that goes."""
    if split.kept is None:
        return held_out
    y, kept, gone = held_out.labels(), split.kept.labels(), split.forget.labels()
    if y.ndim != 1 or y.is_floating_point():
        return held_out
    known = [label for label in y.unique().tolist() if int((kept == label).sum()) >= int((gone == label).sum())]
    return held_out.select(torch.isin(y, torch.tensor(known, dtype=y.dtype)).nonzero().flatten())


def _compared(name: str, before: Trained, after: Trained, data: Data) -> Utility:
    first, then = (_mistakes(network, data) for network in (before, after))
    if type(before.loss).mistakes is not Loss.mistakes:
        return Utility(name, len(data), first, then)
    # A loss has no unit of its own: what it would be if answers and labels had nothing to do with each other gives one.
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    knows = _mistakes(before, data, order) - first
    return Utility(name, len(data), first, then, knows if knows > 0 else max(abs(first), 1e-12))


@torch.no_grad()
def _mistakes(network: Trained, data: Data, order: Tensor | None = None) -> float:
    """The mean mistake, infinite where an answer is not a number; `order` deals the labels out anew."""
    answers = network.predict(data)
    if not bool(answers.isfinite().all()):
        return float("inf")
    y = data.labels().to(network.device)
    return float(network.loss.mistakes(answers, y if order is None else y[order.to(y.device)]).double().mean())
