"""Which loader reads which name."""

import os
from pathlib import Path

from spotlessnet.core.errors import DataError
from spotlessnet.datasets import arrays, cifar, digits, identities, mnist, shards, tiny_imagenet
from spotlessnet.datasets.pair import DataPair, Normalise

NAMES = ("digits", "mnist", "cifar10", "cifar100", "tinyimagenet")
NORMALISE = {
    "digits": digits.NORMALISE,
    "mnist": mnist.NORMALISE,
    "cifar10": cifar.NORMALISE,
    "cifar100": cifar.NORMALISE,
    "tinyimagenet": tiny_imagenet.NORMALISE,
}


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
    text, path = str(name), Path(name)
    usual = (
        normalise
        or NORMALISE.get(text)
        or (tiny_imagenet.NORMALISE if text.startswith("tinyimagenet") else Normalise())
    )
    if text == "digits":
        return digits.load(seed=seed, normalise=usual)
    if path.suffix == ".npz":
        return arrays.load(path, normalise=normalise)
    if shards.has_shards(folder, text):
        return shards.load(folder, text, normalise=usual)
    if text == "mnist":
        return mnist.load(folder, verify=verify, normalise=usual)
    if text in ("cifar10", "cifar100"):
        layout = cifar.CIFAR10 if text == "cifar10" else cifar.CIFAR100
        return cifar.load(folder, layout, verify=verify, normalise=usual)
    if text == "tinyimagenet":
        return tiny_imagenet.load(folder, normalise=usual)
    if path.is_dir():
        return identities.load(path, seed=seed, normalise=normalise)
    raise DataError(
        f"A data set must be one of {', '.join(NAMES)}, packed shards in {folder}, an .npz file or a folder of "
        f"identities, but {text!r} is none of them. Check the spelling and the folder."
    )
