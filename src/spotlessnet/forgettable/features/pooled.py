"""Pooled features: one vector per example from what a backbone answers."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from spotlessnet.core.errors import DataError


def pool(answer: Any, attention_mask: Tensor | None = None, **_named: Tensor) -> Float[Tensor, "N d"]:
    """The mean over positions, of images `[N, d, H, W]` and of tokens `[N, T, d]`; vectors `[N, d]` stay.

    Tokens that the attention mask leaves out do not count. Hugging Face encoders answer with `last_hidden_state`.
    """
    value = getattr(answer, "last_hidden_state", answer)
    if isinstance(value, (tuple, list)):
        value = value[0]
    if not isinstance(value, Tensor) or value.ndim < 2:
        raise DataError(
            f"A backbone must answer with features of shape [N, d], [N, T, d] or [N, d, H, W], but gave "
            f"{tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__}."
        )
    if value.ndim == 4:
        return value.mean(dim=(2, 3))
    if value.ndim == 3:
        if attention_mask is None:
            return value.mean(dim=1)
        mask = attention_mask.to(value)[..., None]
        return (value * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
    return value.flatten(1)


class Pooled(nn.Module):
    """The backbone's own features, frozen.

    **Arguments:**

    - `backbone`: any module; what it answers is pooled.
    """

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> "Pooled":
        """Frozen features never train: normalisation and dropout stay as they are when the network answers."""
        return super().train(False)

    def blocks(self, features: int) -> list[int]:
        """Sizes of the groups of features that share a scale."""
        return [features]

    def forward(self, *inputs: Tensor, **named: Tensor) -> Float[Tensor, "N d"]:
        with torch.no_grad():
            return pool(self.backbone(*inputs, **named), **named).float()
