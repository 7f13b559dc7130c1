"""Rows moved to the network's device once, if they are small enough, and fetched batch by batch otherwise."""

from dataclasses import dataclass

from jaxtyping import Int64
from torch import Tensor

from spotlessnet.core.adapters import Arrays
from spotlessnet.core.data import Batch, Data
from spotlessnet.core.source import Inputs, Source
from spotlessnet.core.trained import Trained

LIMIT = 2 * 2**30
"""Bytes of data in memory that are moved as a whole."""


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
        """Inputs and labels of some rows; `positions` lie where the rows do (see `device`)."""
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
