"""Features averaged over an image and its mirror image."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Mirrored(nn.Module):
    """The mean of the features of an image `[N, C, H, W]` and of the image mirrored left to right.

    **Arguments:**

    - `features`: any features of images.
    """

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features

    def blocks(self, features: int) -> list[int]:
        """Sizes of the groups of features that share a scale."""
        return list(getattr(self.features, "blocks", lambda d: [d])(features))

    def forward(self, x: Tensor) -> Float[Tensor, "N d"]:
        return 0.5 * (self.features(x) + self.features(torch.flip(x, [-1])))
