"""CIFAR-10 and CIFAR-100 from the original python batches, which are pickles: read here without running anything."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spotlessnet.core.errors import DataError
from spotlessnet.datasets.files import check_md5, check_size, find_file, find_folder, md5
from spotlessnet.datasets.pair import DataPair, Normalise, image_data
from spotlessnet.datasets.registry import DATASETS, NamedData
from spotlessnet.datasets.safe_pickle import read_pickle

NORMALISE = Normalise((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261))
LIMIT = 2**29
"""Bytes of one file; the largest original has 155 million."""


@dataclass(frozen=True)
class Layout:
    """Where one of the two sets keeps its rows, labels and names."""

    title: str
    folder: str
    archive: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    labels: str
    names_file: str
    names: str
    classes: int
    checksums: dict[str, str]

    @property
    def remedy(self) -> str:
        """What to do about a file that is missing or wrong."""
        return f"Download {self.archive} and unpack it here."


CIFAR10 = Layout(
    title="CIFAR-10",
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test=("test_batch",),
    labels="labels",
    names_file="batches.meta",
    names="label_names",
    classes=10,
    checksums={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
)

CIFAR100 = Layout(
    title="CIFAR-100",
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    train=("train",),
    test=("test",),
    labels="fine_labels",
    names_file="meta",
    names="fine_label_names",
    classes=100,
    checksums={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
)


def load(folder: Path, layout: Layout = CIFAR10, *, verify: bool = True, normalise: Normalise = NORMALISE) -> DataPair:
    """CIFAR from its batches in `folder`, or in the folder that the archive unpacks to.

    **Arguments:**

    - `layout`: `CIFAR10` or `CIFAR100`.
    - `verify`: check that the files are the originals.
    """
    place = find_folder(folder, (layout.folder,), layout.title, layout.remedy)
    parts = []
    for names in (layout.train, layout.test):
        files = [find_file(place, (name,), layout.title, layout.remedy) for name in names]
        batches = [read_batch(path, layout, verify=verify) for path in files]
        parts.append(tuple(np.concatenate(pieces) for pieces in zip(*batches, strict=True)))
    train, test = (image_data(x, y, normalise) for x, y in parts)
    return DataPair(train, test, _class_names(place, layout), normalise)


def read_batch(path: Path, layout: Layout, *, verify: bool = False) -> tuple[NDArray[Any], NDArray[Any]]:
    """The images (n, 32, 32, 3) and labels of one batch."""
    check_size(path, LIMIT)
    content = path.read_bytes()
    if verify:
        check_md5(path, md5(content), layout.checksums.get(path.name))
    found = read_pickle(path, content, layout.remedy)
    x, y = found.get("data"), found.get(layout.labels)
    if not isinstance(x, np.ndarray) or x.ndim != 2 or x.shape[1] != 3072:
        came = f"one of shape {x.shape}" if isinstance(x, np.ndarray) else "none"
        raise DataError(f"{path} must hold a byte array 'data' with 3072 columns, but has {came}. {layout.remedy}")
    if not (isinstance(y, list) and len(y) == len(x) and all(type(n) is int and 0 <= n < layout.classes for n in y)):
        raise DataError(
            f"{path} must hold {len(x)} {layout.labels!r} from 0 to {layout.classes - 1}, but does not. {layout.remedy}"
        )
    return x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(y, np.int64)


def _class_names(place: Path, layout: Layout) -> tuple[str, ...]:
    path = place / layout.names_file
    if not path.is_file():
        return tuple(str(label) for label in range(layout.classes))
    check_size(path, LIMIT)
    names = read_pickle(path, path.read_bytes(), layout.remedy).get(layout.names)
    if not (isinstance(names, list) and len(names) == layout.classes):
        raise DataError(f"{path} must list {layout.classes} {layout.names!r}, but does not. {layout.remedy}")
    return tuple(name.decode("latin1") if isinstance(name, bytes) else str(name) for name in names)


@DATASETS.register("cifar10", paper="Krizhevsky (2009)", summary="files in the folder SPOTLESS_DATA", needs=("files",))
class NamedCIFAR10(NamedData):
    """60,000 colour images of 32×32 pixels in 10 classes."""

    normalise = NORMALISE

    @staticmethod
    def load(folder: Path, *, seed: int, verify: bool, normalise: Normalise) -> DataPair:
        return load(folder, CIFAR10, verify=verify, normalise=normalise)


@DATASETS.register("cifar100", paper="Krizhevsky (2009)", summary="files in the folder SPOTLESS_DATA", needs=("files",))
class NamedCIFAR100(NamedData):
    """60,000 colour images of 32×32 pixels in 100 classes."""

    normalise = NORMALISE

    @staticmethod
    def load(folder: Path, *, seed: int, verify: bool, normalise: Normalise) -> DataPair:
        return load(folder, CIFAR100, verify=verify, normalise=normalise)
