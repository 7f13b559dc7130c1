"""What enters the last layer of a network that has weights: its features of a row."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import NeedError
from spotlessnet.core.loss import logits_of
from spotlessnet.core.trained import Trained


@torch.no_grad()
def hidden(network: Trained, data: Data, size: int = 256) -> Float[Tensor, "N d"]:
    """What enters the last layer that has weights, in float64; over positions of an image or a text, the mean."""
    found = []
    for batch in network.batches(data, size):
        with entering(network.model) as entered:
            network.outputs(batch.x)
        if not entered:
            raise NeedError("A last hidden layer is needed, but the network has no layer with weights.")
        found.append(pooled(entered[-1]).double().cpu())
    return torch.cat(found)


def pooled(x: Tensor) -> Float[Tensor, "n d"]:
    """One vector a row."""
    if x.ndim == 4:  # an image: channels come first
        return x.flatten(2).mean(dim=2)
    return x.flatten(1, -2).mean(dim=1) if x.ndim > 2 else x


@contextmanager
def entering(model: nn.Module) -> Iterator[list[Tensor]]:
    """Inputs of layers that multiply by a matrix, in the order in which they are called."""
    entered: list[Tensor] = []
    layers = [m for m in model.modules() if isinstance(w := getattr(m, "weight", None), Tensor) and w.ndim > 1]
    hooks = [layer.register_forward_pre_hook(lambda _, given: entered.append(given[0])) for layer in layers]
    try:
        yield entered
    finally:
        for hook in hooks:
            hook.remove()


class WithFeatures(nn.Module):
    """A network that answers its logits and, after them, its features in another basis."""

    def __init__(self, network: nn.Module, basis: Float[Tensor, "d e"]) -> None:
        super().__init__()
        self.network = network
        self.basis = basis  # no buffer: it is no part of the network

    def forward(self, *x: Tensor, **named: Tensor) -> Tensor:
        """`[N, C + e]`."""
        with entering(self.network) as entered:
            logits = logits_of(self.network(*x, **named))
        return torch.cat([logits, pooled(entered[-1]) @ self.basis], dim=1)
