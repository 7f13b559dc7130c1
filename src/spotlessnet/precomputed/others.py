"""Rows that stay stand in for rows that earlier requests removed: how far a step moves what is no part of it."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data, evenly
from spotlessnet.core.trained import Trained

WATCHED = 512
"""Retained rows that are looked at."""

QUANTILE = 0.95
"""Of their movements, the one that counts."""

FURTHEST = 1.0
"""How far that may be, in logits; other outputs in units of their spread. Chosen on digits with wrong labels and a weak
decay, where 14 of 136 pairs of requests took back more than half without a limit."""

CLOSE = 0.02
"""Departure from the linear picture below which others may move further: they then move as retraining moves them."""

ENOUGH = 0.5
"""The share of a step's own movement that more damping must leave: less, and the request itself is not served."""


@dataclass(frozen=True, eq=False)
class Others:
    """Retained rows beside a request, and what the network says of them before it."""

    trained: Trained
    rows: Data
    before: Float[Tensor, "n ..."]
    unit: float

    @staticmethod
    def of(trained: Trained, retain: Data) -> "Others":
        rows = retain.select(evenly(len(retain), WATCHED))
        before = trained.predict(rows)
        spread = 1.0 if trained.loss.is_classification else float(before.std(dim=0, correction=0).mean())
        return Others(trained, rows, before, max(spread, 1e-30))

    def moved(self, step: Float[Tensor, " P"]) -> float:
        """How far the outputs of all but the furthest few move."""
        far = (self.trained.at(self.trained.weights + step).predict(self.rows) - self.before).flatten(1).norm(dim=1)
        return float(far.double().quantile(QUANTILE)) / self.unit
