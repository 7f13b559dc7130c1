"""From inputs to rows of the problem: features in fixed point, a constant one, and targets."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int16
from torch import Tensor, nn

from spotlessnet.core.errors import DataError, MismatchError
from spotlessnet.core.source import Inputs
from spotlessnet.forgettable.adapt import call
from spotlessnet.forgettable.fixed_point import LARGEST, FixedPoint
from spotlessnet.forgettable.places import lanes_for, lanes_of, plan

ONE = 2**11
"""The code of the constant feature, which stands for a bias."""

STEP = 2.0**-10
"""The step of targets that are not class numbers alone."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """Everything about the problem that no user example has touched.

    **Arguments:**

    - `features`: the frozen feature map; answers `[N, d]`, or `[N, C, d]` with a method `base` beside it.
    - `point`: the fixed-point scales.
    - `classes`: how many there are.
    - `batch_size`: examples at a time. Batches are filled up to this size, so that an example's features do not
      depend on how many come with it.
    - `spread`: for features with `base`, how far apart the logits of right and wrong classes shall lie.
    - `lanes`: how many kinds of places a batch has. An example's bytes decide its lane, so that its features do not
      depend on which others come with it; 0 takes the usual number.
    """

    features: nn.Module
    point: FixedPoint
    classes: int
    batch_size: int = 64
    spread: float = 5.0
    dtype: torch.dtype = torch.float32
    lanes: int = 0

    @property
    def device(self) -> torch.device:
        """Where the features are computed."""
        return self.point.scale.device

    @property
    def per_class(self) -> bool:
        """Whether each class is a row of its own."""
        return hasattr(self.features, "base")

    def __call__(self, x: Inputs, y: Tensor) -> tuple[Int16[Tensor, "N R D"], Int16[Tensor, "N R C"]]:
        """Codes and targets of examples."""
        return encode(self.features, self.point, x, y, self.classes, self.batch_size, self.spread, self.lanes)


def encode(
    features: nn.Module,
    point: FixedPoint,
    x: Inputs,
    y: Tensor,
    classes: int,
    batch_size: int,
    spread: float,
    lanes: int = 0,
) -> tuple[Int16[Tensor, "N R D"], Int16[Tensor, "N R C"]]:
    """Codes and targets, a batch at a time, each example at a place that its bytes decide."""
    codes, targets, order = [], [], []
    count = len(y)
    check_labels(y, classes)
    # A batch is filled up by repeating an example, so a missing one would go unnoticed.
    for value in x.values() if isinstance(x, dict) else [x]:
        if len(value) != count:
            raise MismatchError(f"Each input needs a label, but {count} labels came with {len(value)} inputs.")
    if not count:
        raise DataError("There must be at least one example, but none came.")
    lanes = lanes or lanes_for(batch_size)
    for rows in plan(lanes_of(x, lanes), lanes, batch_size):
        taken = rows >= 0
        order.append(rows[taken])
        piece = _take(x, torch.where(taken, rows, rows[taken][0]), point.scale.device)
        here = taken.nonzero().squeeze(1).to(point.scale.device)
        q = point(raw_features(features, piece)[here].flatten(0, -2)).view(len(here), -1, len(point.scale))
        goal = nn.functional.one_hot(y[order[-1].to(y.device)].to(q.device).long(), classes)
        if hasattr(features, "base"):
            rest = (spread * (goal - 1 / classes) - features.base(piece)[here]) / STEP  # type: ignore[operator]  # a method, not a tensor
            targets.append(rest.round().clamp(-LARGEST, LARGEST).to(torch.int16)[:, :, None])
            codes.append(q)
        else:
            targets.append(goal.to(torch.int16)[:, None, :])
            codes.append(torch.cat([q, q.new_full((len(here), 1, 1), ONE)], dim=2))
    back = torch.cat(order).argsort().to(point.scale.device)
    return torch.cat(codes)[back], torch.cat(targets)[back]


def raw_features(features: nn.Module, x: Inputs) -> Float[Tensor, "N R d"]:
    """Features as `[N, R, d]`, whatever the map answers."""
    value: Any = call(features, x)
    if not isinstance(value, Tensor) or value.ndim not in (2, 3):
        raise MismatchError("Features must be a tensor of shape [N, d], or [N, C, d] with a method `base` beside it.")
    rows = len(next(iter(x.values())) if isinstance(x, dict) else x)
    if len(value) != rows:
        raise MismatchError(f"Each input needs its features, but {rows} inputs gave {len(value)} rows of features.")
    return value.detach() if value.ndim == 3 else value.detach()[:, None]


def check_labels(y: Tensor, classes: int) -> None:
    """Raise unless labels are class numbers."""
    if y.ndim != 1 or y.is_floating_point() or (len(y) and (int(y.min()) < 0 or int(y.max()) >= classes)):
        raise MismatchError(
            f"Labels must be whole numbers from 0 to {classes - 1}, one per example, but have shape {tuple(y.shape)}, "
            f"type {y.dtype}" + (f" and go from {y.min()} to {y.max()}." if y.numel() else ".")
        )


def _take(x: Inputs, rows: Tensor, device: torch.device) -> Inputs:
    if isinstance(x, dict):
        return {name: value[rows.to(value.device)].to(device) for name, value in x.items()}
    return x[rows.to(x.device)].to(device)
