"""The network that people take away: features and one linear layer."""

import torch
from torch import Tensor, nn

from spotlessnet.forgettable.encoder import ONE, STEP, Encoder


class ForgettableNetwork(nn.Module):
    """An ordinary module that answers with scores per class: no state of requests is in it.

    **Arguments:**

    - `encoder`: the frozen features and their scales.
    - `weights`: the solution of the problem, `[D, C]`, in code units.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, encoder: Encoder, weights: Tensor) -> None:
        super().__init__()
        self.features = encoder.features
        self.per_class = encoder.per_class
        scale = encoder.point.scale.double().to(weights.device)
        if self.per_class:
            # One vector for all classes, on the step of the targets.
            self.register_buffer("weight", (weights[:, 0] * STEP / scale).float())
            self.register_buffer("bias", torch.zeros((), device=weights.device))
        else:
            self.register_buffer("weight", (weights[:-1].T / scale).float().contiguous())
            self.register_buffer("bias", (weights[-1] * ONE).float())

    def train(self, mode: bool = True) -> "ForgettableNetwork":
        """Nothing in it trains."""
        return super().train(False)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        features = self.features(*inputs, **named)
        if self.per_class:
            return self.features.base(*inputs) + features @ self.weight  # type: ignore[operator]  # a method, not a tensor
        return nn.functional.linear(features, self.weight, self.bias)
