"""The score of a row, which attacks and verdicts compare: a margin where there are any, else the loss turned round."""

from collections.abc import Iterable
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from spotlessnet.core.answers import margin, margins_by_position
from spotlessnet.core.data import Data
from spotlessnet.core.loss import BinaryCrossEntropy, CrossEntropy
from spotlessnet.core.progress import track
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.parts import class_labels, class_logits

Kind = Literal["classes", "positions", "labels", "losses"]

IN_WORDS: dict[Kind, str] = {
    "classes": "the margin of the label",
    "positions": "the mean margin over the positions of a row that count",
    "labels": "the mean margin over the yes-or-no labels of a row",
    "losses": "the loss of a row, for there are no classes",
}
"""What the rows of each kind of network are compared by."""


@torch.no_grad()
def kind_of(network: Trained, data: Data) -> Kind:
    """What there is to compare rows by, from the loss and the answer to one row."""
    batch = next(iter(network.batches(data.select([0]))))
    outputs = network.outputs(batch.x)
    loss = network.loss
    if isinstance(loss, CrossEntropy):
        return "positions" if loss.has_positions(outputs) else "classes"
    if isinstance(loss, BinaryCrossEntropy):
        return "labels" if outputs[0].numel() > 1 else "classes"
    numbers = not batch.y.is_floating_point() and batch.y[0].numel() == 1
    return "classes" if numbers and outputs.ndim == 2 and outputs.shape[1] > 1 else "losses"


@torch.no_grad()
def scores(network: Trained, data: Data) -> Float64[Tensor, " N"]:
    """Of each row: higher is better known. Margins as a rule; see `Kind`."""
    kind = kind_of(network, data)
    if kind == "classes":
        return margin(class_logits(network, data), class_labels(network, data))
    return torch.cat([_of(network, kind, network.outputs(b.x), b.y) for b in network.batches(data)])


def scores_of(networks: Iterable[Trained], data: Data) -> Float64[Tensor, "S N"]:
    """Scores under several networks, one row each, on the CPU."""
    return torch.stack([scores(network, data).cpu() for network in track(networks, "scores")])


def _of(network: Trained, kind: Kind, outputs: Tensor, y: Tensor) -> Float64[Tensor, " n"]:
    if kind == "positions":
        assert isinstance(network.loss, CrossEntropy)  # no other loss has positions
        return margins_by_position(network.loss, outputs, y)
    if kind == "labels":
        signs = 2.0 * (y.reshape(outputs.shape) > 0.5) - 1
        return (signs * outputs.double()).flatten(1).mean(dim=1)
    return -network.loss(outputs.double(), y).double()
