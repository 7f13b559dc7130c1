"""Packed image shards: `<name>.train*.npz` and `<name>.test*.npz`, images as lossless mosaics or as the original JPEGs.

A shard holds `kind` ("mosaic" or "jpeg"), `shape` (N, h, w) or (N, h, w, 3), all encoded images one after the other in
`blobs`, where each begins and ends in `offsets`, `labels` and `classes`. A mosaic has 16 images a row, 256 in all.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spotlessnet.core.errors import DataError
from spotlessnet.core.progress import track
from spotlessnet.datasets.arrays import class_names
from spotlessnet.datasets.images import read_image
from spotlessnet.datasets.npz import LIMIT, read_npz
from spotlessnet.datasets.pair import DataPair, Normalise, image_data

ACROSS, PER_MOSAIC = 16, 256

Array = NDArray[Any]


def has_shards(folder: Path, name: str) -> bool:
    """Whether a folder holds shards of this name."""
    return bool(_list(folder, name, "train"))


def load(folder: Path, name: str, *, normalise: Normalise | None = None) -> DataPair:
    """All shards of a data set, joined in the order of their names; no test shard gives a `test` without rows."""
    train = read_part(folder, name, "train")
    if train is None:
        raise DataError(f"The shards {name}.train*.npz must be in {folder}, but none is there. Check name and folder.")
    test = read_part(folder, name, "test")
    x, y, classes = train
    if test is not None and (test[0].shape[1:] != x.shape[1:] or test[2] != classes):
        raise DataError(
            f"Training and test shards of {name} in {folder} must have the same image size and classes, but do not. "
            "Pack them again from one data set."
        )
    norm = normalise or Normalise()
    x_test, y_test, _ = (x[:0], y[:0], classes) if test is None else test
    return DataPair(image_data(x, y, norm), image_data(x_test, y_test, norm), classes, norm)


def read_part(folder: Path, name: str, part: str) -> tuple[Array, Array, tuple[str, ...]] | None:
    """Images as bytes, labels and class names of the "train" or "test" part; `None` if there is no such shard."""
    shards = [read_shard(path) for path in _list(folder, name, part)]
    if not shards:
        return None
    if any(shard[0].shape[1:] != shards[0][0].shape[1:] or shard[2] != shards[0][2] for shard in shards):
        raise DataError(f"The shards {name}.{part}*.npz in {folder} must have one image size and one list of classes.")
    return np.concatenate([s[0] for s in shards]), np.concatenate([s[1] for s in shards]), shards[0][2]


def read_shard(path: Path) -> tuple[Array, Array, tuple[str, ...]]:
    """Images as bytes, labels and class names of one shard."""
    found = read_npz(path)
    lacking = [name for name in ("kind", "shape", "blobs", "offsets", "labels", "classes") if name not in found]
    if lacking:
        raise DataError(f"{path} must be a packed image shard, but lacks {', '.join(lacking)}. Pack it again.")
    whole = [
        name for name in ("shape", "offsets", "labels") if found[name].dtype.kind not in "iu" or found[name].ndim != 1
    ]
    if whole or found["blobs"].dtype != np.uint8:
        name, wanted = (whole[0], "whole numbers") if whole else ("blobs", "bytes")
        raise DataError(f"The {name} of the shard {path} must be a list of {wanted}, but are not. Pack it again.")
    kind = str(found["kind"])
    shape = tuple(int(n) for n in found["shape"].reshape(-1))
    offsets, labels = found["offsets"], found["labels"]
    per_image = 1 if kind == "jpeg" else PER_MOSAIC
    images = -(-shape[0] // per_image) if shape else 0
    if (
        kind not in ("mosaic", "jpeg")
        or len(shape) not in (3, 4)
        or min(shape) < 1
        or shape[3:] not in ((), (3,))
        or int(np.prod(shape, dtype=object)) > LIMIT
        or (len(labels), len(offsets)) != (shape[0], images + 1)
    ):
        raise DataError(
            f"{path} must hold {images} images of kind mosaic or jpeg and as many labels as rows, but declares "
            f"kind {kind!r}, shape {shape}, {len(offsets) - 1} images and {len(labels)} labels. Pack it again."
        )
    raw = found["blobs"].tobytes()
    out = np.empty(shape, np.uint8)
    for i in track(range(images), f"reading {path.name}"):
        start = i * per_image
        out[start : start + per_image] = _tiles(raw[offsets[i] : offsets[i + 1]], path, kind, shape, shape[0] - start)
    return out, labels.astype(np.int64), class_names(path, found)


def _tiles(content: bytes, path: Path, kind: str, shape: tuple[int, ...], left: int) -> Array:
    h, w = shape[1:3]
    mode = "RGB" if len(shape) == 4 else "L"
    if kind == "jpeg":
        return read_image(content, path, mode=mode, size=(w, h))[None]
    count = min(left, PER_MOSAIC)
    rows = -(-count // ACROSS)
    grid = read_image(content, path, mode=mode, size=(ACROSS * w, rows * h))
    tiles = grid.reshape(rows, h, ACROSS, w, -1).transpose(0, 2, 1, 3, 4).reshape(-1, *shape[1:])
    return tiles[:count]


def _list(folder: Path, name: str, part: str) -> list[Path]:
    return sorted(path for path in folder.glob("*.npz") if path.name.startswith(f"{name}.{part}."))
