"""Packed image shards, against a packer written for the test and against the real ones."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from spotlessnet.core.errors import DataError
from spotlessnet.datasets import load
from spotlessnet.datasets.shards import read_shard
from tests.datasets.shared_data import shared

RANDOM = np.random.default_rng(0)


def encode(pixels: np.ndarray, form: str = "WEBP", **options: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form, **options)
    return out.getvalue()


def pack(path, images: np.ndarray, **change: object) -> None:
    blobs = []
    for start in range(0, len(images), 256):
        block = images[start : start + 256]
        rows = -(-len(block) // 16)
        h, w = block.shape[1:3]
        canvas = np.zeros((rows * h, 16 * w, *block.shape[3:]), np.uint8)
        for i, image in enumerate(block):
            canvas[i // 16 * h : i // 16 * h + h, i % 16 * w : i % 16 * w + w] = image
        blobs.append(encode(canvas, lossless=True))
    content = {
        "kind": "mosaic",
        "shape": images.shape,
        "blobs": np.frombuffer(b"".join(blobs), np.uint8),
        "offsets": np.cumsum([0] + [len(blob) for blob in blobs]),
        "labels": np.arange(len(images)) % 3,
        "classes": np.array(["a", "b", "c"]),
    }
    np.savez(path, **{**content, **change})  # type: ignore[arg-type]  # numpy's stub mixes up **


@pytest.mark.parametrize("shape", [(300, 4, 5, 3), (256, 4, 5), (7, 4, 5, 3)])
def test_mosaics_come_back_to_the_bit(tmp_path, shape):
    images = RANDOM.integers(0, 256, shape, dtype=np.uint8)
    pack(tmp_path / "s.npz", images)
    x, y, classes = read_shard(tmp_path / "s.npz")
    assert np.array_equal(x, images)
    assert y.tolist() == [i % 3 for i in range(len(images))]
    assert classes == ("a", "b", "c")


def test_shards_are_joined_in_order(tmp_path):
    images = RANDOM.integers(0, 256, (20, 4, 4, 3), dtype=np.uint8)
    pack(tmp_path / "set.train.1.npz", images[12:])
    pack(tmp_path / "set.train.0.npz", images[:12])
    pack(tmp_path / "set2.train.npz", images[:1])
    pair = load("set", tmp_path)
    assert (len(pair.train), len(pair.test)) == (20, 0)
    x = pair.train.fetch(torch.tensor([15])).x
    assert isinstance(x, torch.Tensor)
    np.testing.assert_allclose(x[0].permute(1, 2, 0).numpy(), (images[15] / 255 - 0.5) / 0.25, atol=1e-6)
    pack(tmp_path / "set.test.npz", images[:, :2])
    with pytest.raises(DataError, match="must have the same image size and classes"):
        load("set", tmp_path)
    pack(tmp_path / "set.train.2.npz", images[:, :2])
    with pytest.raises(DataError, match=r"set\.train\*\.npz in .* must have one image size"):
        load("set", tmp_path)


def test_jpegs(tmp_path):
    blobs = [encode(np.full((8, 8, 3), 40 * i, np.uint8), "JPEG") for i in range(3)]
    change = {"kind": "jpeg", "blobs": np.frombuffer(b"".join(blobs), np.uint8)}
    offsets = np.cumsum([0] + [len(blob) for blob in blobs])
    pack(tmp_path / "s.npz", np.zeros((3, 8, 8, 3), np.uint8), offsets=offsets, **change)
    x, _, _ = read_shard(tmp_path / "s.npz")
    assert np.abs(x[:, 4, 4, 0].astype(int) - [0, 40, 80]).max() <= 1
    pack(tmp_path / "s.npz", np.zeros((3, 9, 8, 3), np.uint8), offsets=offsets, **change)
    with pytest.raises(DataError, match=r"must be 8×9 pixels, but is 8×8\. Use the original files"):
        read_shard(tmp_path / "s.npz")


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "zip"},
        {"shape": (7, 4, 4)[:2]},
        {"shape": (10**12, 4, 4, 3)},
        {"shape": (-7, 4, 4, 3)},
        {"labels": np.zeros(3, int)},
        {"offsets": np.zeros(9, int)},
    ],
)
def test_what_a_shard_declares_is_checked(tmp_path, change):
    pack(tmp_path / "s.npz", np.zeros((7, 4, 4, 3), np.uint8), **change)
    with pytest.raises(DataError, match=r"images of kind mosaic or jpeg and as many labels as rows, but declares"):
        read_shard(tmp_path / "s.npz")


@pytest.mark.parametrize(
    "change",
    [
        {"offsets": np.array([0.0, 9.0])},
        {"shape": np.array(["7", "4", "4", "3"])},
        {"labels": np.zeros((7, 1), int)},
        {"blobs": np.zeros(9, np.int64)},
    ],
)
def test_numbers_of_a_shard_are_whole(tmp_path, change):
    pack(tmp_path / "s.npz", np.zeros((7, 4, 4, 3), np.uint8), **change)
    with pytest.raises(DataError, match=r"of the shard .*s\.npz must be a list of (whole numbers|bytes)"):
        read_shard(tmp_path / "s.npz")


def test_foreign_archives_and_broken_images(tmp_path):
    np.savez(tmp_path / "s.npz", a=np.zeros(2))
    with pytest.raises(DataError, match="must be a packed image shard, but lacks kind, shape, blobs"):
        read_shard(tmp_path / "s.npz")
    pack(tmp_path / "s.npz", np.zeros((7, 4, 4, 3), np.uint8), blobs=np.zeros(500, np.uint8))
    with pytest.raises(DataError, match=r"must be a whole JPEG, PNG or WebP image"):
        read_shard(tmp_path / "s.npz")
    pack(tmp_path / "s.npz", np.zeros((7, 4, 4, 3), np.uint8), labels=np.full(7, 5))
    with pytest.raises(DataError, match="names 3 classes, but has the label 5"):
        read_shard(tmp_path / "s.npz")


def test_the_real_ones():
    folder = shared()
    pair = load("mnist", folder)
    assert (len(pair.train), len(pair.test)) == (60000, 10000)
    assert pair.train.labels().bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    faces = load("faces14", folder)
    assert (len(faces.train), len(faces.test), len(faces.classes)) == (2523, 447, 14)
    assert len(load("tinyimagenet10", folder).test) == 500
