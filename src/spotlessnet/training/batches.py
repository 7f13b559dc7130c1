"""Batches: which rows each holds, a pure function of seed and epoch, on which device they lie, how they are augmented.

The order does not depend on what the network answers: runs can be repeated, and a retraining coupled to its original.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from spotlessnet.core.adapters import Arrays
from spotlessnet.core.data import Batch, Data
from spotlessnet.core.errors import DataError, MismatchError, SettingError
from spotlessnet.core.recipe import takes_generator
from spotlessnet.core.source import Inputs, Source
from spotlessnet.core.trained import Trained

LIMIT = 2 * 2**30
"""Bytes of data in memory that are moved as a whole."""


@dataclass(frozen=True, eq=False)
class Order:
    """The batches of every epoch. Batches are cut from the permutation first; rows left out are then missing in them.

    What is shuffled are rows by their number in the source, lowest first, and never positions in a list: however data
    is listed, the same rows make the same batches, and a retraining follows its original.

    **Arguments:**

    - `place`: for every row that is shuffled, its position in the data that is trained on, or -1 if it is left out.
    - `batch_size`: rows per batch before any is left out.
    - `seed`: what decides the permutations.
    """

    place: Int64[Tensor, " M"]
    batch_size: int
    seed: int

    @staticmethod
    def of(data: Data, order_of: Data | None, batch_size: int, seed: int) -> "Order":
        """The order of `data` itself, or that of `order_of` with the rows that `data` lacks left out."""
        if not len(data):
            raise DataError("There is no row to train on. Give data with at least one row.")
        if order_of is None:
            return Order(by_number(data), batch_size, seed)
        _check_coupled(data, order_of)
        ordered, sorting = data.rows.sort()
        asked = order_of.rows.sort().values
        found = torch.searchsorted(ordered, asked).clamp(max=len(data) - 1)
        place = torch.where(ordered[found] == asked, sorting[found], -1)
        return Order(place, batch_size, seed)

    @property
    def steps(self) -> int:
        """Batches per epoch, empty ones included."""
        return -(-len(self.place) // self.batch_size)

    def epoch(self, epoch: int) -> list[Int64[Tensor, " n"]]:
        """The batches of one epoch, as positions in the data; a batch is empty if all its rows are left out."""
        shuffled = self.place[permutation(len(self.place), self.seed, epoch)]
        return [batch[batch >= 0] for batch in shuffled.split(self.batch_size)]


def by_number(data: Data) -> Int64[Tensor, " N"]:
    """Positions in `data`, the lowest row of the source first: an order that listing it otherwise does not change."""
    return data.rows.argsort(stable=True)


def permutation(count: int, seed: int, epoch: int) -> Int64[Tensor, " count"]:
    """The order in which `count` rows are visited in this epoch."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(mixed(seed, epoch, "order")))


def mixed(seed: int, epoch: int, purpose: str) -> int:
    """One seed out of several numbers, with no two purposes alike."""
    if seed < 0:
        raise SettingError(f"A seed must be zero or positive, but got {seed}.")
    words = np.random.SeedSequence([seed, epoch, *purpose.encode()]).generate_state(2)
    return int(words[0]) << 31 | int(words[1]) >> 1


@contextmanager
def repeatable(device: torch.device, seed: int) -> Iterator[None]:
    """Inside, whatever draws from torch's global generators starts at `seed`; afterwards they are as they were.

    cuDNN chooses its sums by a fixed rule meanwhile, so that the same seed gives the same bytes on a GPU too.
    """
    cuda = device.type == "cuda"
    current = torch.cuda.current_device() if cuda else 0
    index = device.index if device.index is not None else current
    rules = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    with torch.random.fork_rng([index] if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:
            with torch.cuda.device(index):
                torch.cuda.manual_seed(seed)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        try:
            yield
        finally:
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = rules


def _check_coupled(data: Data, order_of: Data) -> None:
    if _below(data.source) is not _below(order_of.source):
        raise MismatchError(
            "Training can follow the order of other data only when both look at the same source. "
            "Pick both from one `Data`, or leave out `order_of`."
        )
    unknown = int((~torch.isin(data.rows, order_of.rows)).sum())
    if unknown:
        raise MismatchError(
            f"{unknown} of {len(data)} rows are not in `order_of`, so they have no place in its order. "
            "Give the data that the first training saw."
        )
    for name, rows in (("data", data.rows), ("order_of", order_of.rows)):
        if len(rows.unique()) != len(rows):
            raise MismatchError(f"Coupled orders need every row once, but `{name}` repeats some. Drop the repetitions.")


def _below(source: Source) -> object:
    """The source under any relabelling: other labels do not change which row is which."""
    while hasattr(source, "source"):
        source = source.source
    return source


@dataclass(frozen=True, eq=False)
class Resident:
    """The rows of `data` by their position in it, ready for the network."""

    trained: Trained
    data: Data
    kept: Batch | None

    @staticmethod
    def of(trained: Trained, data: Data, limit: int = LIMIT) -> "Resident":
        """Moved now if they lie in memory and take less than `limit` bytes."""
        kept = trained.fetch(data, data.rows) if 0 < len(data) * _row_bytes(data.source) < limit else None
        return Resident(trained, data, kept)

    def take(self, positions: Int64[Tensor, " n"]) -> tuple[Inputs, Tensor]:
        """Inputs and labels of some rows; `positions` lie where the rows do (see `place`)."""
        if self.kept is None:
            batch = self.trained.fetch(self.data, self.data.rows[positions])
            return batch.x, batch.y
        x, y = self.kept.x, self.kept.y[positions]
        return ({name: value[positions] for name, value in x.items()} if isinstance(x, dict) else x[positions]), y

    def place(self, positions: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """Positions, moved to where `take` wants them, without waiting for the device."""
        return positions if self.kept is None else positions.to(self.trained.device, non_blocking=True)


def _row_bytes(source: Source) -> int:
    """Bytes per row of a source that lies in memory; zero for one that must be read."""
    if isinstance(source, Arrays):
        columns = [*(source.x.values() if isinstance(source.x, dict) else [source.x]), source.y]
        return sum(c.element_size() * c[:1].numel() for c in columns)
    if hasattr(source, "source"):
        return _row_bytes(source.source)
    if hasattr(source, "parts"):
        sizes = [_row_bytes(part.source) for part in source.parts]
        return max(sizes) if all(sizes) else 0
    return 0


def augmented(transform: Callable[..., Any] | None, x: Inputs, seed: int, step: int) -> Inputs:
    """The inputs of this step's batch, transformed.

    A transform with a second argument is given a generator that follows from seed and step alone, so that batches
    before this one do not matter. One without draws from torch's global generators, which training has seeded.
    """
    if transform is None:
        return x
    count = len(next(iter(x.values())) if isinstance(x, dict) else x)
    if takes_generator(transform):
        device = next(iter(x.values())).device if isinstance(x, dict) else x.device
        made = transform(x, torch.Generator(device).manual_seed(mixed(seed, step, "augment")))
    else:
        made = transform(x)
    first = next(iter(made.values())) if isinstance(made, dict) and made else made
    if not isinstance(first, Tensor) or len(first) != count:
        raise DataError(
            f"`Recipe.augment` must return the {count} inputs of a batch, but gave {type(made).__name__}"
            f"{f' of {len(first)}' if isinstance(first, Tensor) else ''}. It is called with a whole batch, not one row."
        )
    return made
