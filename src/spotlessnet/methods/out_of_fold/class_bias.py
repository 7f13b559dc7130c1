"""The bias of the head: the one parameter whose entries each move one logit and nothing else."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from spotlessnet.core.data import Data, evenly
from spotlessnet.core.trained import Trained

ASKED = 128
"""Rows whose answers say how far a class must fall."""


def head_bias(trained: Trained, data: Data) -> Int64[Tensor, " C"] | None:
    """Where it lies in the weight vector, a place for every class; `None` for a network that has none.

    It is found by trying: entries are raised by different amounts, and every logit must rise by its own.
    """
    x = trained.fetch(data, data.rows[:2]).x
    before = trained.outputs(x)
    # All different, so that a vector which moves logits in another order is not taken for the bias.
    raised = torch.linspace(1, 2, before.shape[1]).to(before)
    places = torch.arange(trained.size, device=trained.device).split([shape.numel() for shape in trained.shapes])
    # From the end, where heads are.
    for shape, place in zip(reversed(trained.shapes), reversed(places), strict=True):
        if shape != raised.shape:
            continue
        after = trained.outputs(x, trained.weights.index_add(0, place, raised))
        if torch.allclose(after - before, raised.expand_as(before), rtol=1e-3, atol=1e-3):
            return place
    return None


@torch.no_grad()
def suppress_class_bias(trained: Trained, leaving: Bool[Tensor, " C"], data: Data) -> Float[Tensor, " P"]:
    r"""The weights with the bias of classes that leave lowered, until they are as unlikely as the least likely other.

    $$b_c \leftarrow b_c - \overline{z_c - \min_{j\ \mathrm{stays}} z_j}$$

    in the mean over some of `data`, the rows that leave. Every retained row pushes that bias down in retraining, and no
    row holds it up. A network without such a bias stays as it is.
    """
    if not bool(leaving.any()) or bool(leaving.all()):
        return trained.weights
    place = head_bias(trained, data)
    if place is None:
        return trained.weights
    answers, leaving = trained.predict(data.select(evenly(len(data), ASKED))), leaving.to(trained.device)
    fall = (answers[:, leaving] - answers[:, ~leaving].amin(dim=1, keepdim=True)).mean(dim=0)
    # Only down: a class that is unlikely already is left alone.
    return trained.weights.index_add(0, place[leaving], -fall.clamp(min=0))
