"""Digits: 1797 handwritten digits of 8×8 pixels that come with scikit-learn. Nothing to download: the default."""

from math import ceil
from pathlib import Path

import numpy as np

from spotlessnet.core.errors import SettingError
from spotlessnet.datasets.pair import DataPair, Normalise, image_data
from spotlessnet.datasets.registry import DATASETS, NamedData

NORMALISE = Normalise((0.3053,), (0.3761,))


def load(*, seed: int = 0, test: float = 0.2, normalise: Normalise = NORMALISE) -> DataPair:
    """Digits, split at random into training and test rows; the `id` of a row is its number in scikit-learn's order.

    **Arguments:**

    - `seed`: of the split.
    - `test`: the share of the rows to test on.
    """
    if not 0 < test < 1:
        raise SettingError(f"`test` must be a share between 0 and 1, but got {test}.")
    from sklearn.datasets import load_digits  # the other data sets do without scikit-learn

    bunch = load_digits()
    # Ink runs from 0 to 16 there; as bytes it goes the way of every other image.
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    labels = bunch.target
    order = np.random.default_rng(seed).permutation(len(labels))
    held_out = ceil(test * len(labels))
    parts = (np.sort(order[held_out:]), np.sort(order[:held_out]))
    train, tests = (image_data(images[rows], labels[rows], normalise, {"id": rows.tolist()}) for rows in parts)
    return DataPair(train, tests, tuple(str(name) for name in bunch.target_names), normalise)


@DATASETS.register("digits", summary="comes with scikit-learn")
class Digits(NamedData):
    """The default: small, and nothing to download."""

    normalise = NORMALISE

    @staticmethod
    def load(folder: Path, *, seed: int, verify: bool, normalise: Normalise) -> DataPair:
        return load(seed=seed, normalise=normalise)
