"""A small network and its rows, trained once for all tests of requests."""

from functools import cache

import torch
from torch import Tensor, nn

import spotlessnet as sn

RECIPE = sn.Recipe(epochs=10, lr=0.1, batch_size=20)
FORGET = [3, 14, 15]


@cache
def problem() -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    """A network, the one it began as, and its rows."""
    torch.manual_seed(0)
    y = torch.arange(90) % 3
    x = torch.randn(90, 4) + 2 * nn.functional.one_hot(y, 4)
    start = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    trained = sn.fit(sn.Trained.of(start, recipe=RECIPE, init=start), sn.Data.of((x, y)), RECIPE)
    return trained.module(), start, x, y


def weights(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()
