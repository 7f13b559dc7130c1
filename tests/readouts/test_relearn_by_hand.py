"""Relearn time against plain gradient descent that is written out here."""

from dataclasses import replace

import torch
from torch import Tensor, float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts import RelearnTime

RATE, DECAY, ROWS, GONE = 0.5, 0.3, 30, 6


def test_relearning_is_plain_descent_held_to_the_network_under_test():
    """One batch an epoch; the decay is strong enough that where it pulls to decides the epoch."""
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(ROWS, 4, generator=g, dtype=float64), torch.randint(3, (ROWS,), generator=g)
    data = Data.of((x, y))
    split = Split(forget=data.select(range(GONE)), kept=data.select(range(GONE, ROWS)))

    def loss(w: Tensor, rows: slice) -> Tensor:
        return nn.functional.cross_entropy(x[rows] @ w[:12].view(3, 4).T + w[12:], y[rows])

    tested = torch.zeros(15, dtype=float64)
    goal = 0.9 * float(loss(tested, slice(GONE)))
    w, epochs, path = tested.clone(), 0, [tested]
    while float(loss(w, slice(GONE))) > goal + 1e-5:
        slope = torch.func.grad(lambda v: loss(v, slice(None)) + 0.5 * DECAY * (v - tested).square().sum())(w)
        w, epochs = w - RATE * slope, epochs + 1
        path.append(w)
        assert epochs < 100
    assert epochs >= 3
    # The original: a network whose loss on the forgotten rows is the goal, found between two points of the path.
    low, high = 0.0, 1.0
    for _ in range(60):
        a = (low + high) / 2
        low, high = (a, high) if float(loss(path[-2].lerp(path[-1], a), slice(GONE))) > goal else (low, a)
    far = 5 * torch.randn(15, generator=g, dtype=float64)
    network = Trained.of(nn.Linear(4, 3).double(), init=far, recipe=Recipe(weight_decay=DECAY))
    original = replace(network, weights=path[-2].lerp(path[-1], high))
    found = RelearnTime(original, cap=60, lr=RATE, batch_size=ROWS)(network.at(tested), split)
    assert found.value == epochs
    assert not found.censored
