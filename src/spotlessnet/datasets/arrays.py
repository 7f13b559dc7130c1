"""Your own data as one `.npz` file: `x_train`, `y_train`, `x_test`, `y_test`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError
from spotlessnet.datasets.npz import LIMIT, read_npz
from spotlessnet.datasets.pair import DataPair, Normalise, image_data

MOST_CLASSES = 2**20
"""Each class gets a name, so one large label must not decide how many there are."""

NEEDED = ("x_train", "y_train", "x_test", "y_test")

Array = NDArray[Any]


def load(path: Path, *, normalise: Normalise | None = None, limit: int = LIMIT) -> DataPair:
    """The data in an `.npz` file.

    Byte inputs of shape (N, h, w) or (N, h, w, c) are images, and are normalised; other inputs are taken as they are.
    Whole-number labels are classes. Further arrays called `<name>_train` and `<name>_test`, with one entry a row, are
    columns that cohorts can select by, such as `id_train` or `person_train`; `classes` names the labels.

    **Arguments:**

    - `normalise`: how bytes become inputs.
    - `limit`: refuse files that would unpack to more bytes than this.
    """
    found = read_npz(path, limit=limit)
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise DataError(
            f"{path} must hold {', '.join(NEEDED)}, but {', '.join(missing)} is missing (it holds "
            f"{', '.join(sorted(found)) or 'nothing'}). Save it with numpy.savez(path, x_train=..., ...)."
        )
    for part in ("train", "test"):
        _check_part(path, found, part)
    if found["x_train"].shape[1:] != found["x_test"].shape[1:]:
        raise DataError(
            f"Training and test inputs in {path} must have the same shape, but rows are {found['x_train'].shape[1:]} "
            f"and {found['x_test'].shape[1:]}. Give both the same size."
        )
    bytes_as_images = all(
        found[f"x_{p}"].dtype == np.uint8 and found[f"x_{p}"].ndim in (3, 4) for p in ("train", "test")
    )
    norm = (normalise or Normalise()) if bytes_as_images else None
    return DataPair(_part(found, "train", norm), _part(found, "test", norm), class_names(path, found), norm)


def class_names(path: Path, found: Mapping[str, Array]) -> tuple[str, ...]:
    """The names of the classes, or their numbers where the file does not name them."""
    labels = [y for name, y in found.items() if name in ("y_train", "y_test", "labels") and y.dtype.kind in "iu"]
    highest = max((int(y.max()) for y in labels if y.size), default=-1)
    if highest >= MOST_CLASSES:
        raise DataError(
            f"{path} has the label {highest}, but labels must count classes from 0, and there may be {MOST_CLASSES} of "
            "them. Renumber the classes."
        )
    if "classes" not in found:
        return tuple(str(label) for label in range(highest + 1))
    names = tuple(str(name) for name in found["classes"].reshape(-1))
    if highest >= len(names):
        raise DataError(
            f"{path} names {len(names)} classes, but has the label {highest}. Labels must count from 0 to "
            f"{len(names) - 1}; correct them or the names."
        )
    return names


def _check_part(path: Path, found: Mapping[str, Array], part: str) -> None:
    x, y = found[f"x_{part}"], found[f"y_{part}"]
    if x.ndim < 2 or y.ndim < 1 or len(x) != len(y):
        raise DataError(
            f"x_{part} and y_{part} in {path} must have one row each for the same rows, but have the shapes {x.shape} "
            f"and {y.shape}. Give inputs (N, ...) and labels (N,)."
        )
    if part == "train" and not len(x):
        raise DataError(f"x_train in {path} must have rows, but has none. There is nothing to train on.")
    for name, value in ((f"x_{part}", x), (f"y_{part}", y)):
        if value.dtype.kind not in "biuf":
            raise DataError(f"{name} in {path} must hold numbers, but holds {value.dtype}. Encode it as numbers.")
        if value.dtype.kind == "f" and value.dtype.itemsize > 8:
            raise DataError(f"{name} in {path} holds {value.dtype}, which torch does not have. Save it as float64.")
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            bad = int((~np.isfinite(value)).sum())
            raise DataError(f"{name} in {path} must be finite, but {bad} entries are NaN or infinite. Clean the data.")
    if y.dtype.kind == "i" and y.size and y.min() < 0:
        raise DataError(f"y_{part} in {path} must count classes from 0, but holds {y.min()}. Renumber the classes.")


def _part(found: Mapping[str, Array], part: str, normalise: Normalise | None) -> Data:
    x, y = found[f"x_{part}"], found[f"y_{part}"]
    columns = {
        name.removesuffix(f"_{part}"): values.tolist()
        for name, values in found.items()
        if name.endswith(f"_{part}") and name[:2] not in ("x_", "y_") and values.shape == (len(y),)
    }
    if normalise is not None and y.ndim == 1 and y.dtype.kind in "iu":
        return image_data(x, y, normalise, columns)
    y = y.astype(np.int64 if y.dtype.kind in "biu" else np.float32)
    pair = torch.from_numpy(np.array(x, np.float32 if x.dtype.kind != "f" else x.dtype)), torch.from_numpy(y)
    return Data.of(pair, columns={"id": range(len(y)), **columns})
