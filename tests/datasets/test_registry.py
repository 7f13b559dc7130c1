"""`load` finds the right loader."""

import pytest
import torch

from spotlessnet.core.errors import DataError
from spotlessnet.datasets import NAMES, Normalise, load


def test_digits_are_the_default():
    pair = load(core=0.3, seed=2)
    assert pair.core is not None
    assert len(pair.core) + len(pair.train) + len(pair.test) == 1797
    assert not set(pair.core.column("id")) & set(pair.train.column("id"))


def test_another_normalisation():
    x = next(load("digits", normalise=Normalise((0.0,), (1.0,))).train.batches()).x
    assert isinstance(x, torch.Tensor)
    assert float(x.min()) == 0
    assert float(x.max()) == 1


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_named_sets_are_looked_for_in_the_folder(tmp_path, name, monkeypatch):
    with pytest.raises(DataError, match=rf"{tmp_path}.*Download"):
        load(name, tmp_path)
    monkeypatch.setenv("SPOTLESS_DATA", str(tmp_path / "there"))
    with pytest.raises(DataError, match=rf"{tmp_path}/there.*Download"):
        load(name)


def test_other_names(tmp_path):
    with pytest.raises(
        DataError, match=r"must be one of cifar10, .*, digits, mnist, .* but 'cifar11' is none of them\. Check the"
    ):
        load("cifar11", tmp_path)
