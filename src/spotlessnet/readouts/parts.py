"""What readouts look at: a part of the split, and the classes a network believes in there."""

from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from spotlessnet.core.data import Data
from spotlessnet.core.errors import MismatchError, NeedError, check_choice
from spotlessnet.core.loss import BinaryCrossEntropy, CrossEntropy
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained

Part = Literal["retain", "forget", "test"]
PARTS = ("retain", "forget", "test")


def part(split: Split, on: Part) -> Data:
    """The rows that `on` names."""
    check_choice("on", on, PARTS)
    return {"retain": lambda: split.retain, "forget": lambda: split.forget, "test": lambda: split.tests}[on]()


def class_logits(network: Trained, data: Data) -> Float[Tensor, "N C"]:
    """One logit per class in float64; a single yes-or-no output counts as two classes."""
    return _as_classes(network, network.predict(data).double())


def _as_classes(network: Trained, outputs: Float[Tensor, "N *C"]) -> Float[Tensor, "N C"]:
    yes_or_no = isinstance(network.loss, BinaryCrossEntropy)
    if yes_or_no and outputs.shape[1] == 1:
        return torch.cat([torch.zeros_like(outputs), outputs], dim=1)
    if yes_or_no or outputs.ndim != 2 or outputs.shape[1] < 2:
        raise no_classes(network, outputs)
    return outputs


def no_classes(network: Trained, outputs: Float[Tensor, "N *C"]) -> NeedError:
    """What is said of answers that are no classes."""
    return NeedError(
        f"This readout needs one logit per class, but the network answers with shape {tuple(outputs.shape)} for the "
        f"loss {network.loss.name!r}. Use a readout of errors or losses instead."
    )


def log_probabilities(network: Trained, data: Data) -> Float[Tensor, "N C"]:
    """Logarithms of the softmax probabilities, float64."""
    return class_logits(network, data).log_softmax(dim=1)


@torch.no_grad()
def decisions(network: Trained, data: Data) -> Iterator[tuple[Float[Tensor, "n T C"], Float[Tensor, "n T"]]]:
    """Batch by batch, log-probabilities of whatever a row is asked for, and what each counts in a mean over the row.

    One decision of a classifier, one for each position of a text or an image, one for each yes-or-no label.
    """
    loss = network.loss
    for batch in network.batches(data):
        outputs = network.outputs(batch.x).double()
        if isinstance(loss, CrossEntropy) and loss.has_positions(outputs):
            at = loss.positions(outputs, batch.y)
            yield at.logits.log_softmax(dim=2), at.share.double()
        elif isinstance(loss, BinaryCrossEntropy):
            yes = outputs.flatten(1)
            both = torch.stack([logsigmoid(-yes), logsigmoid(yes)], dim=2)
            yield both, torch.full_like(yes, 1 / yes.shape[1])
        else:
            log_p = _as_classes(network, outputs).log_softmax(dim=1).unsqueeze(1)
            yield log_p, torch.ones_like(log_p[:, :, 0])


def class_labels(network: Trained, data: Data) -> Tensor:
    """Class numbers `[N]` on the network's device."""
    y = data.labels().to(network.device)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y.squeeze(1)
    if y.ndim != 1:
        raise MismatchError(f"This readout needs one class number a row, but labels have shape {tuple(y.shape)}.")
    return y.long()
