"""All-CNN: the network of the papers' image experiments.

Springenberg, Dosovitskiy, Brox and Riedmiller (2015), *Striving for Simplicity: The All Convolutional Net*.
"""

from jaxtyping import Float
from torch import Tensor, nn

from spotlessnet.models.seeded import seeded


class AllCNN(nn.Module):
    r"""Eight convolutions, BatchNorm before each ReLU, then the average over the image and a linear head.

    With `filters` $= (a, b)$: three 3×3 layers of $a$ channels, four 3×3 layers and one 1×1 layer of $b$; the third and
    the sixth halve the image. The head is linear where the original has a 1×1 convolution, which is the same function
    after averaging.

    **Arguments:**

    - `classes`, `channels`: how many come out and in.
    - `filters`: 96 and 192 in the papers; smaller for trials.
    """

    def __init__(
        self, classes: int = 10, *, channels: int = 3, filters: tuple[int, int] = (96, 192), seed: int = 0
    ) -> None:
        super().__init__()
        a, b = filters
        with seeded(seed):
            self.features = nn.Sequential(
                *_block(channels, a),
                *_block(a, a),
                *_block(a, a, stride=2),
                *_block(a, b),
                *_block(b, b),
                *_block(b, b, stride=2),
                *_block(b, b),
                *_block(b, b, kernel=1),
            )
            self.head = nn.Linear(b, classes)

    def forward(self, x: Float[Tensor, "N c h w"]) -> Float[Tensor, "N C"]:
        """Logits."""
        return self.head(self.features(x).mean(dim=(2, 3)))


def _block(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> tuple[nn.Module, nn.Module, nn.Module]:
    # BatchNorm's shift takes the place of the convolution's bias.
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(outputs), nn.ReLU()
