"""Pixels into inputs, and the part set aside for pre-training."""

import numpy as np
import pytest
import torch

from spotlessnet.core.adapters import Arrays
from spotlessnet.core.errors import SettingError
from spotlessnet.datasets import pair as pair_module
from spotlessnet.datasets.digits import load
from spotlessnet.datasets.pair import Normalise, Pixels, image_data

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def test_normalise_is_the_formula():
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    data = image_data(IMAGES, LABELS, Normalise(mean, std))
    batch = data.fetch(torch.tensor([3]))
    expected = (IMAGES[3].astype(np.float64) / 255 - np.array(mean)) / np.array(std)
    assert isinstance(batch.x, torch.Tensor)
    assert batch.x.dtype == torch.float32
    assert batch.x.shape == (1, 3, 4, 5)
    np.testing.assert_allclose(batch.x[0].permute(1, 2, 0).double().numpy(), expected, atol=1e-6)


def test_grey_images_get_one_channel():
    x = image_data(IMAGES[..., 0], LABELS, Normalise()).fetch(torch.tensor([0, 1])).x
    assert isinstance(x, torch.Tensor)
    assert x.shape == (2, 1, 4, 5)


def test_large_sets_stay_bytes_and_give_the_same(monkeypatch):
    small = image_data(IMAGES, LABELS, Normalise())
    monkeypatch.setattr(pair_module, "AS_FLOATS", 100)
    large = image_data(IMAGES, LABELS, Normalise())
    assert isinstance(small.source, Arrays)
    assert isinstance(large.source, Pixels)
    for a, b in zip(small.batches(4), large.batches(4), strict=True):
        assert isinstance(a.x, torch.Tensor)
        assert isinstance(b.x, torch.Tensor)
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
    assert torch.equal(large.labels(), torch.from_numpy(LABELS))
    assert large.column("id") == list(range(6))


@pytest.mark.parametrize(("mean", "std"), [((0.5,), (0.0,)), ((0.5, 0.5), (0.5,)), ((), ())])
def test_normalise_refuses(mean, std):
    with pytest.raises(SettingError, match="as many means as positive standard deviations"):
        Normalise(mean, std)


def test_normalise_refuses_other_channels():
    with pytest.raises(SettingError, match=r"2 means for images with 3 channels\. Give one for all channels"):
        image_data(IMAGES, LABELS, Normalise((0.1, 0.2), (1.0, 1.0)))


def test_a_part_is_set_aside():
    pair = load()
    apart = pair.set_aside(0.25, seed=3)
    assert apart.core is not None
    assert len(apart.core) == round(0.25 * len(pair.train))
    assert sorted(apart.core.column("id") + apart.train.column("id")) == sorted(pair.train.column("id"))
    again, other = pair.set_aside(0.25, seed=3), pair.set_aside(0.25, seed=4)
    assert again.core is not None
    assert other.core is not None
    assert torch.equal(apart.core.rows, again.core.rows)
    assert not torch.equal(apart.core.rows, other.core.rows)
    assert pair.set_aside(0).core is None
    with pytest.raises(SettingError, match="must be at least 0 and below 1, but got 1"):
        pair.set_aside(1.0)
