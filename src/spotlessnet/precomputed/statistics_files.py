"""Statistics on disk: one safetensors file each, written whole."""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor

from spotlessnet.core.data import WIDTH
from spotlessnet.core.errors import DataError, NumericsError
from spotlessnet.core.files import write_whole
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.store.checkpoints import read_metadata, read_weights, to_bytes

REMEDY = "Write it anew with `precompute`."


def write_statistics(path: str | Path, statistics: Statistics, *, replace: bool = False) -> str:
    """Write statistics and give the file's SHA-256."""
    tensors, text = statistics.tensors()
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise NumericsError(f"The statistics' {name!r} is not finite: nothing was written. Check the training run.")
    return write_whole(Path(path), to_bytes(tensors, text), replace=replace)


def read_statistics(path: str | Path) -> Statistics:
    """Read statistics; nothing in the file is executed."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise DataError(f"Statistics are a .safetensors file, but {path} ends in {path.suffix!r}.")
    tensors = read_weights(path)
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise NumericsError(f"The statistics' {name[:60]!r} in {path} is not finite. {REMEDY}")
    _check_shapes(path, tensors)
    statistics = Statistics.from_tensors(tensors, read_metadata(path))
    numbers = (statistics.weight_decay, statistics.outside, statistics.error)
    if not statistics.count or not all(isfinite(number) for number in numbers):
        raise DataError(f"The statistics in {path} must hold rows and finite numbers, but do not. {REMEDY}")
    return statistics


def _check_shapes(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise unless the parts of statistics fit each other: work would go wrong with them much later."""
    weights = tensors.get("weights")
    if weights is None:
        return  # the statistics themselves say what they lack
    shapes = {name: tuple(weights.shape) for name in ("gradient", "diagonal")}
    rank = tensors["values"].numel() if "values" in tensors else -1
    shapes |= {"basis": (weights.numel(), rank), "values": (rank,)}
    for i in range(len(tensors)):
        values = tensors.get(f"kronecker.{i}.values")
        if values is not None and values.ndim == 2:
            shapes |= {f"kronecker.{i}.{side}": (n, n) for side, n in zip(("left", "right"), values.shape, strict=True)}
        else:
            shapes[f"kronecker.{i}.values"] = (-1, -1)
    wrong = [name for name, shape in shapes.items() if name in tensors and tuple(tensors[name].shape) != shape]
    wrong += [name for name in (*shapes, "weights") if name in tensors and tensors[name].dtype != weights.dtype]
    keys = [(name, tensors[name]) for name in ("keys", "coreset") if name in tensors]
    wrong += [name for name, value in keys if value.shape[1:] != (WIDTH,) or value.dtype != torch.uint8]
    if wrong or weights.ndim != 1 or not weights.is_floating_point() or ("basis" in tensors) != ("values" in tensors):
        raise DataError(
            f"The statistics in {path} are damaged: {(wrong or ['weights'])[0]!r} does not fit the rest. {REMEDY}"
        )
