"""`Trainer`: whatever can train a network again. A `Recipe` is one, any function of the user's another."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor, nn
from torch.utils.data import Dataset

from spotlessnet.core.adapters import MapStyle
from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError
from spotlessnet.core.source import Inputs


class Examples(Dataset[Any]):
    """The rows that a trainer sees, as a map-style `torch` data set in the order of their source.

    Rows of a data set of the user's own come out as that data set gives them; rows of arrays as `(x, y)`, and named
    inputs as a dictionary with `labels`.

    >>> examples = Examples(Data.of((torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0]))).select([2, 0]))
    >>> len(examples), examples[0]
    (2, (tensor([4., 5.]), tensor(0)))
    """

    def __init__(self, data: Data) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, position: int) -> Any:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """Several rows in one reading: a `DataLoader` asks this way."""
        rows, source = self.rows[torch.as_tensor(positions)], self.data.source
        if isinstance(source, MapStyle):
            return [source.dataset[row] for row in rows.tolist()]
        x, y, _ = self.data.fetch(rows)
        if isinstance(x, dict):
            return [{**{name: value[i] for name, value in x.items()}, "labels": y[i]} for i in range(len(rows))]
        return [(x[i], y[i]) for i in range(len(rows))]

    @property
    def rows(self) -> Int64[Tensor, " N"]:
        """The number of each row in its source."""
        return self.data.rows

    def tensors(self) -> tuple[Inputs, Shaped[Tensor, "N *d"]]:
        """All inputs and labels at once, for training loops that keep them in memory."""
        x, y, _ = self.data.fetch(self.rows)
        return x, y


@runtime_checkable
class Trainer(Protocol):
    """`train(model, examples, seed) -> model`: all that is asked of a trainer.

    **Arguments:**

    - `model`: a module of the trainer's own, in training mode, at the weights and buffers where training begins.
    - `examples`: the rows to train on; nothing else may be read.
    - `seed`: the same seed must give the same network. Torch's, numpy's and Python's generators are seeded with it too.

    It returns the trained module. One that also takes `epochs`, with the usual number as its default, can be asked for
    less: `def train(model, examples, seed, epochs=20)`. Short retraining uses that.
    """

    def __call__(self, model: nn.Module, examples: Examples, seed: int, /) -> nn.Module: ...


@runtime_checkable
class Recorder(Protocol):
    """Whoever must know when a training begins and ends."""

    def begin(self) -> None:
        """Called before the first step, with the network where its training begins."""
        ...

    def end(self) -> None:
        """Called after the last one."""
        ...


def check_from_the_start(step: int) -> None:
    """Raise where a training goes on from a checkpoint: where it began cannot be seen any more."""
    if step:
        raise SettingError(
            f"A recorded training must be seen from its first step, but this one goes on at step {step}. Train from "
            "the start."
        )


def epochs_of(trainer: Trainer) -> int | None:
    """The usual epochs of a trainer that can be asked for fewer; `None` where it has no argument of that name.

    >>> def train(model, examples, seed, epochs=20): return model
    >>> epochs_of(train), epochs_of(lambda model, examples, seed: model)
    (20, None)
    """
    try:
        found = inspect.signature(trainer).parameters.get("epochs")
    except (TypeError, ValueError):  # written in C, without a signature
        return None
    if found is None:
        return None
    usual = found.default if isinstance(found.default, int) else getattr(trainer, "epochs", None)
    return usual if isinstance(usual, int) and usual > 0 else None


def name_of(trainer: Trainer) -> str:
    """What a report calls it: the name of the function, or that of the object's class."""
    return getattr(trainer, "__qualname__", type(trainer).__qualname__)
