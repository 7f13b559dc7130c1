"""MNIST, and every set in its format: IDX files, gzipped or plain."""

import gzip
import zlib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spotlessnet.core.errors import DataError
from spotlessnet.datasets.files import check_md5, find_file, find_folder, md5
from spotlessnet.datasets.pair import DataPair, Normalise, image_data
from spotlessnet.datasets.registry import DATASETS, NamedData

NORMALISE = Normalise((0.1307,), (0.3081,))
REMEDY = "Download the four MNIST files (train-images-idx3-ubyte.gz and so on) into this folder."
LIMIT = 2**30
"""Bytes that one file may declare; MNIST's largest has 47 million."""

CHECKSUMS = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
"""Of the contents, so that a file packed anew is still known."""


def load(folder: Path, *, verify: bool = True, normalise: Normalise = NORMALISE) -> DataPair:
    """MNIST from its four files in `folder`, or where torchvision puts them inside it.

    **Arguments:**

    - `verify`: check that the files are the originals; `False` for other sets in this format.
    """
    place = find_folder(folder, ("MNIST/raw", "mnist"), "MNIST", REMEDY)
    parts = []
    for part in ("train", "t10k"):
        images, labels = (_find(place, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
        x, y = read_idx(images, dimensions=3, verify=verify), read_idx(labels, dimensions=1, verify=verify)
        if len(x) != len(y):
            raise DataError(
                f"{images} has {len(x)} images, but {labels} has {len(y)} labels. Both must come from one download."
            )
        parts.append((x, y))
    highest = max(int(y.max(initial=0)) for _, y in parts)
    train, test = (image_data(x, y, normalise) for x, y in parts)
    return DataPair(train, test, tuple(str(label) for label in range(highest + 1)), normalise)


def read_idx(path: Path, *, dimensions: int, verify: bool = False) -> NDArray[Any]:
    """The bytes of an IDX file as an array; gzip is recognised by its first bytes, not by the file's name.

    **Arguments:**

    - `dimensions`: how many the array must have: 3 for images, 1 for labels.
    - `verify`: check that this is the file of MNIST with that name.
    """
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        file = gzip.GzipFile(fileobj=raw) if zipped else raw
        try:
            header = file.read(4 + 4 * dimensions)
            shape = _shape(path, header, dimensions)
            # One byte more than declared is enough to see that a file is too long, however far it would unpack.
            content = file.read(prod(shape) + 1)
        except (EOFError, OSError, zlib.error) as e:
            raise DataError(f"{path} must be a whole gzip file, but is cut short or damaged ({e}). {REMEDY}") from e
    if len(content) != prod(shape):
        came = f"only {len(content)}" if len(content) < prod(shape) else "more"
        raise DataError(
            f"{path} declares the shape {shape} and must hold {prod(shape)} bytes, but has {came}. {REMEDY}"
        )
    if verify:
        name = path.name.removesuffix(".gz").replace(".idx", "-idx")
        check_md5(path, md5(header + content), CHECKSUMS.get(name))
    return np.frombuffer(bytearray(content), np.uint8).reshape(shape)


def _find(folder: Path, name: str) -> Path:
    dotted = name.replace("-idx", ".idx")
    return find_file(folder, (f"{name}.gz", name, f"{dotted}.gz", dotted), "MNIST", REMEDY)


def _shape(path: Path, header: bytes, dimensions: int) -> tuple[int, ...]:
    expected = bytes((0, 0, 8, dimensions))
    if header[:4] != expected or len(header) < 4 + 4 * dimensions:
        raise DataError(
            f"{path} must be an IDX file of bytes with {dimensions} dimensions (it must begin with {expected.hex()}), "
            f"but begins with {header[:4].hex() or 'nothing'}. {REMEDY}"
        )
    shape = tuple(int.from_bytes(header[at : at + 4], "big") for at in range(4, len(header), 4))
    if prod(shape) > LIMIT:
        raise DataError(f"{path} declares the shape {shape}, which is more than {LIMIT} bytes. {REMEDY}")
    return shape


@DATASETS.register(
    "mnist",
    paper="LeCun, Bottou, Bengio and Haffner (1998)",
    summary="files in the folder SPOTLESS_DATA",
    needs=("files",),
)
class MNIST(NamedData):
    """70,000 handwritten digits of 28×28 pixels."""

    normalise = NORMALISE

    @staticmethod
    def load(folder: Path, *, seed: int, verify: bool, normalise: Normalise) -> DataPair:
        return load(folder, verify=verify, normalise=normalise)
