"""Rows that stay stand in for rows that earlier requests removed: how much of what those did a step may take back."""

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
"""Groups of stand-ins, each as large as the cohort that it stands for."""

ALIKE = 128
"""Rows of a group at most: the mean of more hardly differs."""

QUANTILE = 0.9
"""Of these groups, so many must keep what the cohort's own request did to them."""

TAKEN = 0.5
"""The share of it that they may lose."""

CLOSE = 0.02
"""Departure from the linear picture below which others may move as they do: retraining moves them so too."""

ENOUGH = 0.5
"""The share of a step's own movement that more damping must leave: less, and the request itself is not served."""


@dataclass(frozen=True, eq=False)
class Others:
    r"""Retained rows beside a request, each with labels of others, and what the network says of them before it.

    Rows of earlier requests are gone. What is known of them is how far their own request raised their loss $\ell$, and
    to what (`Effect`). A row that the network would not label so is moved by the later step as they are: in the margin
    $m = -\log(e^\ell - 1)$, by which the label's logit exceeds all others together. So the margins' moves of stand-ins
    are applied to the loss of the cohort, and the means over as many of them as it had rows say how much it may fall.

    The quantile was chosen on seeds 0 to 4 of `benchmarks/sequences.py`; a limit on the movement alone either refused
    nearly every second request or let one row in ten be taken back.
    """

    trained: Trained
    rows: Data
    labels: tuple[Shaped[Tensor, "n *d"], ...]
    before: Float[Tensor, " m"]

    @staticmethod
    def with_own_labels(trained: Trained, retain: Data) -> "Others":
        """The same rows with the labels that they have: they stand in for ordinary rows.

        A step that holds retained rows to their labels lowers the loss of ordinary rows that are gone just so, which
        rows with labels of others do not show.
        """
        rows = retain.select(evenly(len(retain), WATCHED))
        labels = (rows.labels().cpu(),)
        return Others(trained, rows, labels, _losses(trained, rows, labels))

    @staticmethod
    def of(trained: Trained, retain: Data, seed: int = 0) -> "Others":
        rows = retain.select(evenly(len(retain), WATCHED))
        draw = torch.Generator().manual_seed(seed)
        told = rows.labels().cpu()
        labels = tuple(told[torch.randperm(len(told), generator=draw)] for _ in range(PAIRINGS))
        return Others(trained, rows, labels, _losses(trained, rows, labels))

    def taken_back(self, step: Float[Tensor, " P"], effects: Sequence[Effect], seed: int = 0) -> float:
        """The largest share of what an earlier request did that the step may take back, at `QUANTILE`."""
        after = _losses(self.trained.at(self.trained.weights + step), self.rows, self.labels)
        draw = torch.Generator().manual_seed(seed)
        worst = 0.0
        for effect in effects:
            falls = self._falls(after, effect.loss)
            groups = torch.randint(len(falls), (GROUPS, min(effect.size, ALIKE)), generator=draw)
            worst = max(worst, float(falls[groups].mean(dim=1).quantile(QUANTILE)) / effect.raised)
        return worst

    def _falls(self, after: Float[Tensor, " m"], loss: float) -> Float[Tensor, " m"]:
        """By how much a loss of this size would fall if its row moved as each of the stand-ins does."""
        if self.trained.loss.is_classification:
            m = _margin(torch.tensor(loss, dtype=torch.float64))
            return loss - softplus(-(m + _margin(after) - _margin(self.before)))
        # To first order a squared error falls with the residual, and that is the root of the loss.
        known = (self.before > 0) & (loss > 0)
        scale = torch.where(known, loss / self.before.where(known, torch.ones_like(self.before)), 1.0).sqrt()
        return scale * (self.before - after)


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
