"""Many small networks side by side, every weight with a leading axis, for `audit_gauntlet.py`.

Written apart from the package's own training on purpose: what is audited was trained by somebody else's loop.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Weights = list[Tensor]
AT_ONCE = 128


@dataclass(frozen=True)
class Perceptrons:
    """Perceptrons of one shape; without hidden layers they are logistic regressions."""

    sizes: tuple[int, ...]

    def begin(self, seeds: Sequence[int], scale: float = 1.0) -> Weights:
        """Uniform weights, as torch's own layers have them."""
        made: list[Weights] = []
        for seed in seeds:
            g = torch.Generator().manual_seed(seed)
            one = []
            for fan, width in zip(self.sizes[:-1], self.sizes[1:], strict=True):
                reach = scale / math.sqrt(fan)
                one += [(2 * torch.rand(shape, generator=g) - 1) * reach for shape in ((fan, width), (width,))]
            made.append(one)
        return [torch.stack(parts) for parts in zip(*made, strict=True)]

    @staticmethod
    def logits(weights: Weights, x: Tensor) -> Tensor:
        """Of every network: `[networks, rows, classes]`."""
        h = x if x.ndim == 3 else x.expand(len(weights[0]), *x.shape)
        for i in range(0, len(weights), 2):
            h = torch.baddbmm(weights[i + 1].unsqueeze(1), h, weights[i])
            h = h.relu() if i + 2 < len(weights) else h
        return h


@dataclass(frozen=True)
class Way:
    """How somebody trains."""

    epochs: int = 30
    batch: int = 32
    lr: float = 0.1
    cosine: bool = False
    adamw: bool = False
    scale: float = 1.0


def train(
    network: Perceptrons, weights: Weights, x: Tensor, y: Tensor, keep: Tensor, seeds: Sequence[int], way: Way
) -> Weights:
    """Every network on the rows that it keeps, in an order of its own."""
    w = [part.clone().requires_grad_() for part in weights]
    S, steps = len(seeds), math.ceil(int(keep.sum(1).max()) / way.batch)
    makers = [torch.Generator().manual_seed(777 + seed) for seed in seeds]
    there = (torch.arange(steps * way.batch) < keep.sum(1, keepdim=True)).float().unflatten(1, (steps, way.batch))
    share = (there / there.sum(2, keepdim=True).clamp(min=1)).unbind(1)
    optimiser: torch.optim.Optimizer = torch.optim.SGD(w, lr=way.lr, momentum=0.9)
    if way.adamw:
        optimiser = torch.optim.AdamW(w, lr=way.lr, weight_decay=0.01)
    for epoch in range(way.epochs):
        order = torch.zeros(S, steps * way.batch, dtype=torch.long)
        for s, g in enumerate(makers):
            own = keep[s].nonzero().flatten()
            order[s, : len(own)] = own[torch.randperm(len(own), generator=g)]
        for b, rows in enumerate(order.split(way.batch, dim=1)):
            if way.cosine:
                done = (epoch * steps + b) / (way.epochs * steps)
                optimiser.param_groups[0]["lr"] = way.lr * (1 + math.cos(math.pi * done)) / 2
            logits = network.logits(w, x[rows]).flatten(0, 1)
            losses = functional.cross_entropy(logits, y[rows].flatten(), reduction="none")
            loss = (losses.unflatten(0, (S, -1)) * share[b]).sum()
            loss = loss if way.adamw else loss + 5e-5 * sum((part.square().sum() for part in w), torch.zeros(()))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return [part.detach() for part in w]


def tune(weights: Weights, loss: Callable[[Weights], Tensor], steps: int = 300, lr: float = 5e-3) -> Weights:
    """Trained networks made to do something else, all at once."""
    w = [part.clone().requires_grad_() for part in weights]
    optimiser = torch.optim.Adam(w, lr=lr)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(w).backward()
        optimiser.step()
    return [part.detach() for part in w]
