"""What readouts look at: a part of the split, and the classes a network believes in there."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import MismatchError, NeedError, check_choice
from spotlessnet.core.loss import BinaryCrossEntropy
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
    outputs = network.predict(data).double()
    yes_or_no = isinstance(network.loss, BinaryCrossEntropy)
    if yes_or_no and outputs.shape[1] == 1:
        return torch.cat([torch.zeros_like(outputs), outputs], dim=1)
    if yes_or_no or outputs.ndim != 2 or outputs.shape[1] < 2:
        raise NeedError(
            f"This readout needs one logit per class, but the network answers with shape {tuple(outputs.shape)} for "
            f"the loss {network.loss.name!r}. Use a readout of errors or losses instead."
        )
    return outputs


def log_probabilities(network: Trained, data: Data) -> Float[Tensor, "N C"]:
    """Logarithms of the softmax probabilities, float64."""
    return class_logits(network, data).log_softmax(dim=1)


def class_labels(network: Trained, data: Data) -> Tensor:
    """Class numbers `[N]` on the network's device."""
    y = data.labels().to(network.device)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y.squeeze(1)
    if y.ndim != 1:
        raise MismatchError(f"This readout needs one class number a row, but labels have shape {tuple(y.shape)}.")
    return y.long()
