"""Data sets by name: each file of the package registers its own, and `load` finds it."""

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from spotlessnet.core.errors import DataError
from spotlessnet.core.registry import Registry
from spotlessnet.datasets import arrays, identities, shards
from spotlessnet.datasets.pair import DataPair, Normalise


class NamedData(ABC):
    """A data set that has a name.

    To add one, write one file in `spotlessnet/datasets/` with a class that says how to `load` it and how its pixels
    usually become inputs, and register it: `@DATASETS.register("mnist", summary="files in the folder SPOTLESS_DATA")`.
    """

    normalise: ClassVar[Normalise] = Normalise()
    """How pixels become inputs unless the caller says otherwise; packed shards of this name use it too."""

    is_family: ClassVar[bool] = False
    """Whether shards whose names begin with this one, such as a set at another size, are normalised alike."""

    @staticmethod
    @abstractmethod
    def load(folder: Path, *, seed: int, verify: bool, normalise: Normalise) -> DataPair:
        """Read it from `folder`; `seed` splits what has no test part, `verify` checks the originals' checksums."""


DATASETS: Registry[type[NamedData]] = Registry("data set", "spotlessnet.datasets")
"""Every data set that has a name."""


def load(
    name: str | Path = "digits",
    folder: str | Path | None = None,
    *,
    seed: int = 0,
    core: float = 0.0,
    verify: bool = True,
    normalise: Normalise | None = None,
) -> DataPair:
    """A data set by its name, an `.npz` file, or a folder of identities.

    >>> pair = load("digits")
    >>> len(pair.train), len(pair.test), pair.classes[:3]
    (1437, 360, ('0', '1', '2'))

    **Arguments:**

    - `name`: one of `NAMES`, the name of packed shards in `folder`, or a path.
    - `folder`: where the files are; by default the environment variable `SPOTLESS_DATA`, or else `data`.
    - `seed`: of what is drawn: the split of digits and identities, and the core part.
    - `core`: the share of the training rows to set aside for pre-training.
    - `verify`: check the originals' checksums, where they are known.
    - `normalise`: how pixels become inputs; each data set has its usual one.
    """
    place = Path(folder if folder is not None else os.environ.get("SPOTLESS_DATA", "data"))
    return _load(name, place, seed, verify, normalise).set_aside(core, seed)


def _load(name: str | Path, folder: Path, seed: int, verify: bool, normalise: Normalise | None) -> DataPair:
    text = str(name)
    path = Path(name)
    if path.suffix == ".npz":
        return arrays.load(path, normalise=normalise)
    usual = normalise or usual_normalise(text)
    if text in DATASETS and not DATASETS.entry(text).needs:  # comes with a package: no files to look for
        return DATASETS.find(text).load(folder, seed=seed, verify=verify, normalise=usual)
    # Shards of a name are the same rows packed for speed, so they are taken before the originals.
    if shards.has_shards(folder, text):
        return shards.load(folder, text, normalise=usual)
    if text in DATASETS:
        return DATASETS.find(text).load(folder, seed=seed, verify=verify, normalise=usual)
    if path.is_dir():
        return identities.load(path, seed=seed, normalise=normalise)
    raise DataError(
        f"A data set must be one of {', '.join(DATASETS)}, packed shards in {folder}, an .npz file or a folder of "
        f"identities, but {text!r} is none of them. Check the spelling and the folder."
    )


def usual_normalise(name: str) -> Normalise:
    """How pixels of a set become inputs unless said: as its own name has it, or that of its family."""
    if name in DATASETS:
        return DATASETS.find(name).normalise
    family = (entry.thing for entry in DATASETS.entries() if entry.thing.is_family and name.startswith(entry.name))
    return next((kind.normalise for kind in family), Normalise())
