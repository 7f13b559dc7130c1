"""Rows that stay stand in for rows that earlier requests removed: how far a step may move what is forgotten."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.functional import softplus

from spotlessnet.core.data import Data, evenly
from spotlessnet.core.trained import Trained
from spotlessnet.precomputed.effect import Effect

WATCHED = 512
"""Retained rows that are looked at."""

PAIRINGS = 8
"""Times that each of them is given the label of another."""

GROUPS = 1000
"""Groups of stand-ins, each as large as the forget set that it stands for."""

ALIKE = 128
"""Rows of a group at most: the mean of more hardly differs."""

QUANTILE = 0.9
"""Of stand-ins, or of groups of them, so many must stay within the limit."""

TAKEN = 0.5
"""The share of what an earlier request did that may be lost, where that is still known."""

FURTHEST = 0.25
"""How far margins may rise, in nats, where it is not. Small: a request that was damped much did little."""

FURTHEST_HELD = 0.75
"""The same for rows with their own labels that a step holds to what the network says. Chosen on seeds 0 to 2 of four
settings of `benchmarks/sequences.py`."""

LEAST_LEFT = 0.75
"""For losses without classes: the share of a stand-in's residual that must be left."""

CLOSE = 0.02
"""Departure from the linear picture below which others may move as they do: retraining moves them so too."""

ENOUGH = 0.5
"""The share of a step's own movement that more damping must leave: less, and the request itself is not served."""


@dataclass(frozen=True, eq=False)
class Others:
    r"""Retained rows beside a request, and what the network says of them before it.

    Rows of earlier requests are gone. A row that the network would not label so is moved by a later step as they are,
    so retained rows with labels of others stand in for them: in the margin $m = -\log(e^\ell - 1)$, by which the
    label's logit exceeds all others together.

    As long as it is known how far each earlier request raised the loss of its rows, and to what (`Effect`), these moves
    are applied to that loss, and the means over as many stand-ins as there were rows say how much of it may be lost.
    When that had to be destroyed, the moves themselves must be small.

    **Arguments:**

    - `labels`: those that the rows are given, one pairing after the other.
    - `before`: the losses with them.
    - `limit`: how far margins may rise, in nats.

    What earlier requests did to their own rows was kept once, and compared with. It told the label of a forgotten row,
    and gave no better rule.
    """

    trained: Trained
    rows: Data
    labels: tuple[Shaped[Tensor, "n *d"], ...]
    before: Float[Tensor, " m"]
    limit: float = FURTHEST

    @staticmethod
    def with_own_labels(trained: Trained, rows: Data, limit: float | None = None) -> "Others":
        """Rows with the labels that they have: they stand in for ordinary rows.

        A step that holds retained rows to what the network says moves ordinary rows that are gone too, which rows with
        labels of others do not show.
        """
        rows = rows.select(evenly(len(rows), WATCHED))
        labels = (rows.labels().cpu(),)
        return Others(trained, rows, labels, _losses(trained, rows, labels), FURTHEST if limit is None else limit)

    @staticmethod
    def of(trained: Trained, retain: Data, seed: int = 0) -> "Others":
        """Rows with labels of others."""
        rows = retain.select(evenly(len(retain), WATCHED))
        draw = torch.Generator().manual_seed(seed)
        told = rows.labels().cpu()
        labels = tuple(told[torch.randperm(len(told), generator=draw)] for _ in range(PAIRINGS))
        return Others(trained, rows, labels, _losses(trained, rows, labels))

    def taken_back(
        self, step: Float[Tensor, " P"], effects: Sequence[Effect], seed: int = 0, quantile: float = QUANTILE
    ) -> float:
        """The largest share of what an earlier request did that the step may take back, in units of `TAKEN`."""
        after = _losses(self.trained.at(self.trained.weights + step), self.rows, self.labels)
        if not bool(after.isfinite().all()):
            return math.inf
        draw = torch.Generator().manual_seed(seed)
        worst = 0.0
        for effect in effects:
            falls = self._falls(after, effect.loss)
            groups = torch.randint(len(falls), (GROUPS, min(effect.size, ALIKE)), generator=draw)
            worst = max(worst, float(falls[groups].mean(dim=1).quantile(quantile)) / effect.raised)
        return worst / TAKEN

    def _falls(self, after: Float[Tensor, " m"], loss: float) -> Float[Tensor, " m"]:
        """By how much a loss of this size would fall if its row moved as each of the stand-ins does."""
        if self.trained.loss.is_classification:
            m = _margin(torch.tensor(loss, dtype=torch.float64))
            return loss - softplus(-(m + _margin(after) - _margin(self.before)))
        # To first order a squared error falls with the residual, and that is the root of the loss.
        known = (self.before > 0) & (loss > 0)
        scale = torch.where(known, loss / self.before.where(known, torch.ones_like(self.before)), 1.0).sqrt()
        return scale * (self.before - after)

    def moved(self, step: Float[Tensor, " P"]) -> float:
        """How far a step moves them toward their labels, at `QUANTILE`, in units of the limit."""
        after = _losses(self.trained.at(self.trained.weights + step), self.rows, self.labels)
        if not bool(after.isfinite().all()):
            return math.inf
        if self.trained.loss.is_classification:
            return float((_margin(after) - _margin(self.before)).quantile(QUANTILE)) / self.limit
        # A squared error falls with the square of the residual. Of nothing, nothing can be taken.
        left = (after.clamp(min=0) / self.before.clamp(min=1e-30)).sqrt().where(self.before > 0, 1.0)
        return float((1 - left).quantile(QUANTILE)) / (1 - LEAST_LEFT)


@torch.no_grad()
def _losses(trained: Trained, rows: Data, labels: tuple[Shaped[Tensor, "n *d"], ...]) -> Float[Tensor, " m"]:
    outputs = trained.predict(rows).cpu()
    # In single precision the loss of a row that the network is sure of is zero, and its margin infinite.
    outputs = outputs.double() if trained.loss.is_classification else outputs
    return torch.cat([trained.loss(outputs, y).double() for y in labels])


def _margin(loss: Float[Tensor, "*m"]) -> Float[Tensor, "*m"]:
    """The margin of a label with this cross-entropy."""
    loss = loss.clamp(min=1e-12)
    return -(loss + (-torch.expm1(-loss)).log())
