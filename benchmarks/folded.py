"""Training in bfloat16 with BatchNorm folded into the convolutions before it, each step a CUDA graph.

Where BatchNorm's statistics stand still it is one number and one shift for every channel, so that a convolution and
the BatchNorm after it are one convolution with other weights, and autograd leads through them: the same function and
the same gradient, but for rounding, with half of the passes over memory. Channels are filled up with zeros to a
multiple of eight, which is what the GPU's matrix units need.
"""

import copy
from collections.abc import Iterator

import torch
from benchmarks.captured import Captured
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear, pad

from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError
from spotlessnet.core.trained import Trained

EIGHT = 8


def filled(channels: int) -> int:
    """The next multiple of eight.

    >>> filled(3), filled(96), filled(51)
    (8, 96, 56)
    """
    return -(-channels // EIGHT) * EIGHT


class Folded(nn.Module):
    """A convolution and the BatchNorm after it, whose statistics stand still, as one convolution."""

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv, self.norm = conv, norm

    def forward(self, x: Tensor) -> Tensor:
        conv, norm = self.conv, self.norm
        assert norm.running_var is not None
        assert norm.running_mean is not None
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        shift = norm.bias - norm.running_mean * scale
        W = conv.weight * scale[:, None, None, None]
        more = filled(len(W)) - len(W)
        W = pad(W, (0, 0, 0, 0, 0, x.shape[1] - W.shape[1], 0, more)).to(x.dtype)
        W = W.contiguous(memory_format=torch.channels_last)
        assert not isinstance(conv.padding, str)
        return conv2d(x, W, pad(shift, (0, more)).to(x.dtype), conv.stride, conv.padding)


class Cut(nn.Module):
    """The head: it reads the channels that are there, in the number format of its weights."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return linear(x[:, : self.head.in_features].to(self.head.weight.dtype), self.head.weight, self.head.bias)


def folded(network: nn.Module) -> nn.Module:
    """A copy with every BatchNorm in the convolution that is named before it, and the head cut.

    Its parameters are those of `network` under longer names, in the same order.
    """
    network = copy.deepcopy(network).eval()
    convolution: tuple[nn.Module, str] | None = None
    for parent, name, module in list(_leaves(network)):
        if isinstance(module, nn.Conv2d):
            convolution = parent, name
        elif isinstance(module, nn.BatchNorm2d) and convolution is not None:
            conv = getattr(convolution[0], convolution[1])
            setattr(*convolution, Folded(conv, module))
            setattr(parent, name, nn.Identity())
            convolution = None
        elif isinstance(module, nn.Linear):
            setattr(parent, name, Cut(module))
        elif isinstance(module, nn.BatchNorm2d):
            raise SettingError("A BatchNorm has no convolution before it to be folded into.")
    return network


def _leaves(network: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Modules without modules inside, each with the one that holds it, in the order of their names."""
    for name, module in network.named_children():
        if next(module.children(), None) is None:
            yield network, name, module
        else:
            yield from _leaves(module)


class FoldedCaptured(Captured):
    """As `Captured`, with BatchNorm folded and convolutions in bfloat16 on a GPU."""

    def __init__(self, begun: Trained, whole: Data) -> None:
        super().__init__(begun, whole)
        if not self.recipe.freeze_statistics or self.recipe.augment is not None:
            raise SettingError("BatchNorm is folded where its statistics stand still. Use `Captured`.")
        self.network = folded(begun.model)
        values, slopes = (list(begun.unflatten(v).values()) for v in (self.w, self.g))
        parameters = list(self.network.parameters())
        if [p.shape for p in parameters] != list(begun.shapes):
            raise SettingError("Folding has changed the order of the parameters.")
        for p, value, slope in zip(parameters, values, slopes, strict=True):
            p.data, p.grad = value, slope
        kind = torch.bfloat16 if begun.device.type == "cuda" else torch.float32
        x = pad(self.x, (0, 0, 0, 0, 0, EIGHT - self.x.shape[1]))
        self.x = self.seen = x.to(kind).contiguous(memory_format=torch.channels_last)

    def answers(self, at: Tensor) -> Tensor:
        """Logits of these rows."""
        x = self.seen[at].contiguous(memory_format=torch.channels_last)
        found: Tensor = self.network(x).float()
        return found

    def step(self, at: Tensor, share: Tensor) -> None:
        self.g.zero_()
        loss = (self.begun.loss(self.answers(at), self.y[at]) * share).sum()
        loss.backward()
        with torch.no_grad():
            if self.recipe.weight_decay:
                self.g.add_(self.w - self.anchor, alpha=self.recipe.weight_decay)
            self.v.mul_(self.recipe.momentum).add_(self.g)
            self.w.addcmul_(self.v, self.lr, value=-1)
            self.loss.add_(loss.detach())

    def _reset(self, begun: Trained) -> None:
        with torch.no_grad():
            self.w.copy_(begun.weights)
            self.anchor.copy_(begun.anchor)
            self.v.zero_()
            self.loss.zero_()
