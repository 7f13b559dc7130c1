"""`Trainer`: whatever can train a network again. A `Recipe` is one, any function of the user's another."""

import inspect
from collections.abc import Iterator, Sequence
from mmap import mmap
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor, nn
from torch.utils.data import Dataset

from spotlessnet.core.adapters import MapStyle
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, SettingError, count_of
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
        self._data = data
        # Anonymous memory that forked workers of a `DataLoader` share: what they read counts too.
        self._read = torch.frombuffer(mmap(-1, max(len(data), 1)), dtype=torch.bool)[: len(data)]

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"Examples({count_of(len(self), 'row')})"

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, position: int) -> Any:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """Several rows in one reading: a `DataLoader` asks this way."""
        at = torch.as_tensor(positions)
        rows, source = self._data.rows[at], self._data.source
        self._read[at] = True
        if isinstance(source, MapStyle):
            return [source.dataset[row] for row in rows.tolist()]
        x, y, _ = self._data.fetch(rows)
        if isinstance(x, dict):
            return [{**{name: value[i] for name, value in x.items()}, "labels": y[i]} for i in range(len(rows))]
        return [(x[i], y[i]) for i in range(len(rows))]

    def __getstate__(self) -> Data:
        # Another process reads a copy, where nobody can count.
        return self.data

    def __setstate__(self, state: Data) -> None:
        Examples.__init__(self, state)

    @property
    def data(self) -> Data:
        """The same rows as a `Data`."""
        self._read.fill_(True)  # whoever asks for it can read them all
        return self._data

    @property
    def rows(self) -> Int64[Tensor, " N"]:
        """The number of each row in its source."""
        return self.data.rows

    @property
    def rows_read(self) -> int:
        """How many of the rows were asked for, be it once or often."""
        return int(self._read.sum())

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

    A training that read fewer than half of the rows is refused: it may learn from elsewhere, where the forgotten rows
    still are. One that means to, such as a fixed number of steps on many rows, says so: `train.reads_some_rows = True`.
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


CONTRACT = "`train(model, examples, seed)`, which returns the trained model"


def check_signature(trainer: Trainer) -> None:
    """Raise unless a trainer can be called with model, examples and seed."""
    try:
        signature = inspect.signature(trainer)
    except (TypeError, ValueError):  # written in C, without a signature
        return
    try:
        signature.bind(None, None, 0)
    except TypeError as e:
        raise SettingError(
            f"A trainer must be {CONTRACT}, but {name_of(trainer)} is `{name_of(trainer)}{signature}`: {e}. Give "
            "defaults to arguments of its own."
        ) from e


def check_read(trainer: Trainer, examples: Examples) -> None:
    """Raise where a training was not by the rows it was given: then it may have learnt those that must go."""
    total, read = len(examples), examples.rows_read
    enough = 1 if getattr(trainer, "reads_some_rows", False) else (total + 1) // 2
    if read >= enough:
        return
    name = name_of(trainer)
    raise DataError(
        f"A trainer must train on `examples`, the rows it is given, but {name} read {read} of {total} of them. If it "
        "reads data of its own, it learns the forgotten rows again. Take every row from `examples`, by "
        "`DataLoader(examples, ...)` or `examples.tensors()`. A trainer that means to read few of them says so: "
        "`train.reads_some_rows = True`."
    )


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
