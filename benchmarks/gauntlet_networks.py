"""The four kinds of networks of `audit_gauntlet.py`, small enough that many are trained as one program."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained

TOKENS = 8


class Patches(nn.Module):
    """A convolution of kernel 3 and stride 2 as one matrix product, which vectorises over networks."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weigh = nn.Linear(9 * inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Channels first, half the side."""
        side = (x.shape[-1] + 1) // 2
        patches = functional.unfold(x, 3, padding=1, stride=2).transpose(1, 2)
        return self.weigh(patches).transpose(1, 2).unflatten(2, (side, side))


class Attention(nn.Module):
    """One transformer block over pieces of the input, their mean, and a linear head."""

    def __init__(self, inputs: int, classes: int, width: int = 16) -> None:
        super().__init__()
        self.piece = math.ceil(inputs / TOKENS)
        self.embed = nn.Linear(self.piece, width)
        self.place = nn.Parameter(0.1 * torch.randn(TOKENS, width))
        self.ask, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        flat = x.flatten(1)
        pieces = functional.pad(flat, (0, TOKENS * self.piece - flat.shape[1])).unflatten(1, (TOKENS, self.piece))
        h = self.embed(pieces) + self.place
        weight = (self.ask(h) @ self.key(h).transpose(1, 2) / math.sqrt(h.shape[2])).softmax(dim=2)
        h = h + weight @ self.value(h)
        h = h + self.down(self.up(h).relu())
        return self.head(h.mean(dim=1))


def network(kind: str, shape: Sequence[int], classes: int) -> nn.Module:
    """An untrained one."""
    inputs = math.prod(shape)
    if kind == "perceptron":
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, classes))
    if kind == "deep":
        hidden = [nn.Linear(inputs, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU()]
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(24, classes))
    if kind == "cnn":
        side = math.ceil(math.ceil(shape[1] / 2) / 2)
        layers = [Patches(shape[0], 8), nn.ReLU(), Patches(8, 16), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(16 * side**2, classes))
    return Attention(inputs, classes)


RECIPES = {
    "perceptron": Recipe(epochs=30, lr=0.05, batch_size=32),
    "deep": Recipe(epochs=40, lr=0.03, batch_size=32),
    "cnn": Recipe(epochs=40, lr=0.05, batch_size=32),
    "attention": Recipe(epochs=40, lr=0.01, batch_size=32, optimizer="adam"),
}


def begin(kind: str, shape: Sequence[int], classes: int, seed: int, scale: float = 1.0) -> Tensor:
    """Weights before training, as torch's layers draw them."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return scale * Trained.of(network(kind, shape, classes)).weights


def answers(trained: Trained, weights: Tensor, x: Tensor) -> Tensor:
    """Of every network: `[networks, rows, classes]`, differentiable in the weights."""
    return vmap(lambda w: trained.outputs(x, w))(weights)


def tune(weights: Tensor, loss: Callable[[Tensor], Tensor], steps: int = 250, lr: float = 4e-3) -> Tensor:
    """Trained networks made to do something else, all at once."""
    w = weights.clone().requires_grad_()
    optimiser = torch.optim.Adam([w], lr=lr)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(w).backward()
        optimiser.step()
    return w.detach()
