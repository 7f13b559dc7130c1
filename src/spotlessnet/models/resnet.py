"""ResNet-18 for small images, with a width factor.

He, Zhang, Ren and Sun (2016), *Deep Residual Learning for Image Recognition*.
"""

from jaxtyping import Float
from torch import Tensor, nn

from spotlessnet.core.errors import check_positive
from spotlessnet.models.seeded import seeded


class ResNet(nn.Module):
    """Eight residual blocks of two 3×3 convolutions after a 3×3 stem without pooling (the CIFAR stem).

    Channels are 64, 128, 256 and 512 times `width`, rounded down; the first block of the last three stages halves
    the image.

    **Arguments:**

    - `classes`, `channels`: how many come out and in.
    - `width`: 1 for ResNet-18 itself; 0.4 gives 25, 51, 102 and 204 channels.
    """

    def __init__(self, classes: int = 10, *, channels: int = 3, width: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        check_positive("ResNet.width", width)
        widths = [max(1, int(c * width)) for c in (64, 128, 256, 512)]
        with seeded(seed):
            self.stem = nn.Sequential(*_normed(channels, widths[0], 3), nn.ReLU())
            blocks, inputs = [], widths[0]
            for stage, outputs in enumerate(widths):
                blocks += [_Block(inputs, outputs, stride=2 if stage else 1), _Block(outputs, outputs, stride=1)]
                inputs = outputs
            self.blocks = nn.Sequential(*blocks)
            self.head = nn.Linear(inputs, classes)

    def forward(self, x: Float[Tensor, "N c h w"]) -> Float[Tensor, "N C"]:
        """Logits."""
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


class _Block(nn.Module):
    """Two convolutions and a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _normed(inputs, outputs, 3, stride)
        self.conv2, self.norm2 = _normed(outputs, outputs, 3)
        # Nothing to learn where the shape stays: the identity of the paper, option B elsewhere.
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Sequential(*(() if same else _normed(inputs, outputs, 1, stride)))

    def forward(self, x: Float[Tensor, "N c h w"]) -> Float[Tensor, "N c2 h2 w2"]:
        inner = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(inner)) + self.shortcut(x)).relu()


def _normed(inputs: int, outputs: int, kernel: int, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    # BatchNorm's shift takes the place of the convolution's bias.
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(outputs)
