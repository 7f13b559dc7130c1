"""Small problems that the tests of this folder share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jaxtyping
import torch
from sklearn.datasets import load_digits
from torch import nn

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained


@contextmanager
def types_unchecked() -> Iterator[None]:
    """Inside, types are not checked, as outside of tests: to see our own messages."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def unchecked(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """A call whose types are not checked."""
    with types_unchecked():
        return call(*arguments, **named)


@dataclass(frozen=True)
class Nothing(Scrub):
    """Forgets nothing."""

    def shift(self, trained, split, notes):
        return trained.weights


def blobs(rows: int = 90, *, classes: int = 3, seed: int = 0) -> Split:
    """Gaussian clouds, the first tenth of the rows to be forgotten."""
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(classes, 4, generator=generator, dtype=torch.float64)

    def draw(count: int) -> Data:
        y = torch.randint(classes, (count,), generator=generator)
        noise = torch.randn(count, 4, generator=generator, dtype=torch.float64)
        return Data.of((centres[y] + noise, y))

    data = draw(rows)
    positions = torch.arange(rows)
    return Split(forget=data.select(positions[: rows // 10]), kept=data.select(positions[rows // 10 :]), test=draw(60))


def linear(classes: int = 3, *, seed: int = 0, scale: float = 1.0, recipe: Recipe | None = None) -> Trained:
    """A linear classifier with random weights."""
    network = Trained.of(nn.Linear(4, classes).double(), recipe=recipe)
    generator = torch.Generator().manual_seed(seed)
    weights = scale * torch.randn(network.size, generator=generator, dtype=torch.float64)
    return network.at(weights)


def fixed(logits: torch.Tensor) -> Trained:
    """A network that answers with these logits, whatever it is asked."""
    layer = nn.Linear(4, len(logits)).double()
    network = Trained.of(layer)
    return network.at(torch.cat([torch.zeros(4 * len(logits), dtype=torch.float64), logits.double()]))


def noisy_digits(train: int, wrong: int, *, seed: int = 0) -> tuple[Data, Data]:
    """Handwritten digits whose first `wrong` training labels are wrong, and clean test rows."""
    x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)
    x, y = x[order].float() / 16, y[order].long()
    y[:wrong] = (y[:wrong] + torch.randint(1, 10, (wrong,), generator=generator)) % 10
    return Data.of((x[:train], y[:train])), Data.of((x[train:], y[train:]))


def digit_network(hidden: int = 64, *, recipe: Recipe | None = None, seed: int = 0) -> Trained:
    """An untrained perceptron 64-hidden-10."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return Trained.of(nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10)), recipe=recipe)
