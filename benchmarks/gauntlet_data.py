"""The data of `audit_gauntlet.py`: a dozen small sets, from scikit-learn or from files beside the project.

`pack` writes all of them into one file of a few megabytes, so that nothing else is needed where the gauntlet runs.
"""

import csv
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SHARED = Path(__file__).parents[2] / "shared"
FROM_FILES = ("mnist", "banking", "faces", "cifar", "odd")
DRAWN = ("hastie", "moons", "circles", "xor", "quantiles")
"""Two classes each; moons and circles in a plane, among numbers that tell nothing."""

NAMES = ("digits", "table", "wine", "blobs", "cancer", *DRAWN, *FROM_FILES)
ROWS = 1100
"""Of each set, where it has so many: for training and for testing."""

FEW = 4
"""Classes of CIFAR-10: a few hundred images teach no more."""


def is_here(name: str, packed: Path | None) -> bool:
    """Whether a set can be read."""
    if packed is not None:
        with np.load(packed) as held:
            return f"{name}_x" in held
    return name not in FROM_FILES or SHARED.exists()


def data(name: str, packed: Path | None = None) -> tuple[Tensor, Tensor]:
    """Inputs, `[rows, channels, height, width]` or `[rows, numbers]`, and labels, always in one order."""
    if packed is None:
        x, y = _made(name)
    else:
        with np.load(packed) as held:
            x, y = held[f"{name}_x"], held[f"{name}_y"]
    return torch.tensor(x.astype(np.float32)), torch.tensor(y.astype(np.int64))


def pack(path: Path) -> None:
    """All sets that are here, in one file."""
    parts: dict[str, NDArray[np.generic]] = {}
    for name in NAMES:
        if is_here(name, None):
            parts[f"{name}_x"], parts[f"{name}_y"] = _made(name)
    with path.open("wb") as out:
        np.savez_compressed(out, **parts)  # type: ignore[arg-type]  # its stub knows no mapping of arrays


def _made(name: str) -> tuple[NDArray[np.float16], NDArray[np.int16]]:
    """Half precision, packed or not, so that both are the same numbers."""
    x, y = (
        _images(name) if name in ("mnist", "odd", "faces", "cifar") else _words() if name == "banking" else _table(name)
    )
    order = np.random.default_rng(0).permutation(len(x))[:ROWS]
    return x[order].astype(np.float16), y[order].astype(np.int16)


def _table(name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    from sklearn import datasets
    from sklearn.preprocessing import StandardScaler

    if name == "digits":
        x, y = datasets.load_digits(return_X_y=True)
        return x.reshape(-1, 1, 8, 8) / 16, y
    if name == "table":
        return datasets.make_classification(1400, 20, n_informative=10, n_classes=5, class_sep=1.2, random_state=3)
    if name in DRAWN:
        x, y = _drawn(name)
    elif name == "blobs":
        x, y = datasets.make_blobs(1400, 12, centers=8, cluster_std=4.0, random_state=5)
    else:
        x, y = {"wine": datasets.load_wine, "cancer": datasets.load_breast_cancer}[name](return_X_y=True)
    return StandardScaler().fit_transform(x), y


def _drawn(name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    from sklearn import datasets

    if name == "hastie":
        x, y = datasets.make_hastie_10_2(1400, random_state=7)
        return x, (y > 0).astype(np.int64)
    if name == "quantiles":
        return datasets.make_gaussian_quantiles(n_samples=1400, n_features=6, n_classes=2, random_state=7)
    if name == "xor":  # of the signs of two numbers among ten
        x = np.random.default_rng(7).standard_normal((1400, 10))
        return x, (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    plane = {"moons": datasets.make_moons, "circles": datasets.make_circles}[name]
    x, y = plane(1400, noise=0.2 if name == "moons" else 0.1, random_state=7)
    return np.hstack([x, 0.5 * np.random.default_rng(7).standard_normal((len(x), 8))]), y


def _images(name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Fourteen or sixteen pixels a side, grey; `odd` asks of a digit only that."""
    sys.path.insert(0, str(SHARED / "tools"))
    source = {"mnist": "mnist", "odd": "mnist", "faces": "faces10", "cifar": "cifar10"}[name]
    folder = SHARED / "data"
    read = import_module("data").read_shard
    first = sorted(folder.glob(f"{source}.train*.npz"))[0]
    found, y, _ = read(first)
    found, y = (found[y < FEW], y[y < FEW]) if name == "cifar" else (found, y)
    some = np.random.default_rng(1).permutation(len(found))[: 2 * ROWS]
    x, y = found[some].astype(np.float64) / 255, y[some].astype(np.int64)
    y = y % 2 if name == "odd" else y
    grey = x if x.ndim == 3 else x.mean(axis=3)
    side = grey.shape[1] // 2
    return grey.reshape(len(grey), side, 2, side, 2).mean((2, 4))[:, None], y


def _words() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The first twelve intents of banking77 by the words of their questions."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import StandardScaler

    with (SHARED / "data" / "banking77.train.csv").open(newline="") as lines:
        texts = list(csv.reader(lines))[1:]
    labels = sorted({label for _, label in texts})[:12]
    texts = [line for line in texts if line[1] in labels]
    words = TfidfVectorizer().fit_transform([text for text, _ in texts])
    x = StandardScaler().fit_transform(TruncatedSVD(48, random_state=0).fit_transform(words))
    return x, np.array([labels.index(label) for _, label in texts])
