"""Digits: the split is seeded and whole."""

import pytest
import torch

from spotlessnet.core.adapters import Arrays
from spotlessnet.core.errors import SettingError
from spotlessnet.datasets.digits import load


def test_every_digit_is_once_in_one_part():
    pair = load()
    assert (len(pair.train), len(pair.test)) == (1437, 360)
    assert sorted(pair.train.column("id") + pair.test.column("id")) == list(range(1797))
    assert pair.classes == tuple("0123456789")
    assert pair.train.labels().unique().tolist() == list(range(10))


def test_pixels_are_normalised():
    source = load().train.source
    assert isinstance(source, Arrays)
    assert isinstance(source.x, torch.Tensor)
    assert source.x.shape == (1437, 1, 8, 8)
    assert source.x.dtype == torch.float32
    assert abs(float(source.x.mean())) < 0.01
    assert abs(float(source.x.std()) - 1) < 0.01


def test_the_seed_decides():
    assert load(seed=1).test.column("id") == load(seed=1).test.column("id") != load(seed=2).test.column("id")


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5])
def test_the_share_is_checked(share):
    with pytest.raises(SettingError, match="`test` must be a share between 0 and 1"):
        load(test=share)
