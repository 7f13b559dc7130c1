"""`DataPair`: a data set as it is used here: training rows, test rows, class names, and how pixels became numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor

from spotlessnet.core.adapters import Arrays
from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError

AS_FLOATS = 2**30
"""Images that take more bytes than this as 32-bit floats stay bytes in memory and are converted batch by batch."""


@dataclass(frozen=True)
class Normalise:
    r"""Pixels $p \in [0, 255]$ become $(p / 255 - \text{mean}) / \text{std}$, channel by channel.

    The default is fixed and not measured from the images, so that no statistic of a row that must go stays behind
    in the inputs of the others.

    **Arguments:**

    - `mean`, `std`: one number for all channels, or one for each.
    """

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.25,)

    def __post_init__(self) -> None:
        if not (len(self.mean) == len(self.std) and len(self.std) > 0 and all(s > 0 for s in self.std)):
            raise SettingError(
                f"Normalise needs as many means as positive standard deviations, but got {self.mean} and {self.std}. "
                "Give one of each for all channels, or one of each a channel."
            )

    def __call__(self, pixels: UInt8[Tensor, "n c h w"]) -> Float32[Tensor, "n c h w"]:
        """The images as 32-bit floats."""
        mean, std = (torch.tensor(v, dtype=torch.float32)[:, None, None] for v in (self.mean, self.std))
        if len(mean) not in (1, pixels.shape[1]):
            raise SettingError(
                f"Normalise has {len(mean)} means for images with {pixels.shape[1]} channels. "
                "Give one for all channels, or one a channel."
            )
        return pixels.float().div_(255).sub_(mean).div_(std)


@dataclass(frozen=True, eq=False)
class DataPair:
    """A data set: what to train on, what to test on.

    **Arguments:**

    - `train`, `test`: rows; `test` has no rows where the data set has no test part.
    - `classes`: a name for each label.
    - `normalise`: how pixels became inputs; `None` where the inputs came as numbers already.
    - `core`: rows set aside for pre-training, which will never be asked to go.
    """

    train: Data
    test: Data
    classes: tuple[str, ...]
    normalise: Normalise | None = None
    core: Data | None = None

    def set_aside(self, share: float, seed: int = 0) -> "DataPair":
        """The same pair with a random share of the training rows moved to `core`."""
        if not 0 <= share < 1:
            raise SettingError(f"The share set aside must be at least 0 and below 1, but got {share}.")
        count = round(share * len(self.train))
        if not count:
            return replace(self, core=None)
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(seed))
        core, rest = order[:count].sort().values, order[count:].sort().values
        return replace(self, train=self.train.select(rest), core=self.train.select(core))


@dataclass(frozen=True, eq=False)
class Pixels:
    """Images kept as bytes, converted when they are fetched: a quarter of the memory of floats."""

    x: UInt8[Tensor, "N c h w"]
    y: Int64[Tensor, " N"]
    normalise: Normalise

    def __len__(self) -> int:
        return len(self.y)

    def fetch(self, rows: Int64[Tensor, " n"]) -> tuple[Float32[Tensor, "n c h w"], Int64[Tensor, " n"]]:
        return self.normalise(self.x[rows]), self.y[rows]

    def labels(self, rows: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        return self.y[rows]

    def column(self, name: str) -> None:
        return None


def image_data(
    images: NDArray[Any],
    labels: NDArray[Any],
    normalise: Normalise,
    columns: Mapping[str, Sequence[Any]] | None = None,
) -> Data:
    """Rows from byte images (N, h, w) or (N, h, w, c) and their labels; the number of a row is its `id`."""
    pixels = torch.from_numpy(np.ascontiguousarray(images))
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2).contiguous()
    y = torch.from_numpy(labels.astype(np.int64))
    source = Pixels(pixels, y, normalise) if 4 * pixels.numel() > AS_FLOATS else Arrays(normalise(pixels), y)
    return Data(source, torch.arange(len(y)), {"id": range(len(y)), **(columns or {})})
