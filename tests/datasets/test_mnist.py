"""IDX files: whole, gzipped, cut short, foreign, and made to harm."""

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.datasets.files import md5
from spotlessnet.datasets.mnist import CHECKSUMS, load, read_idx
from spotlessnet.datasets.shards import read_part
from tests.datasets.shared_data import shared

RANDOM = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    dims = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes((0, 0, 8, array.ndim)) + dims + array.astype(np.uint8).tobytes()


def write(folder: Path, *, suffix: str = "", name=lambda n: n, train: int = 7, labels: int | None = None):
    pack = gzip.compress if suffix else bytes
    folder.mkdir(parents=True, exist_ok=True)
    out = {}
    for part, n in (("train", train), ("t10k", 3)):
        x = RANDOM.integers(0, 256, (n, 5, 4))
        y = np.arange(n if labels is None or part == "t10k" else labels) % 3
        (folder / (name(f"{part}-images-idx3-ubyte") + suffix)).write_bytes(pack(idx(x)))
        (folder / (name(f"{part}-labels-idx1-ubyte") + suffix)).write_bytes(pack(idx(y)))
        out[part] = (x, y)
    return out


@pytest.mark.parametrize(
    ("inside", "suffix", "name"),
    [
        ("", "", lambda n: n),
        ("", ".gz", lambda n: n),
        ("MNIST/raw", "", lambda n: n),
        ("mnist", ".gz", lambda n: n),
        ("", "", lambda n: n.replace("-idx", ".idx")),
    ],
    ids=["plain", "gz", "torchvision", "folder", "dotted"],
)
def test_what_was_written_is_read(tmp_path, inside, suffix, name):
    wrote = write(tmp_path / inside, suffix=suffix, name=name)
    pair = load(tmp_path, verify=False)
    for data, part in ((pair.train, "train"), (pair.test, "t10k")):
        x, y = wrote[part]
        batch = next(data.batches())
        assert isinstance(batch.x, torch.Tensor)
        np.testing.assert_allclose(batch.x[:, 0].numpy(), (x / 255 - 0.1307) / 0.3081, atol=1e-5)
        assert batch.y.tolist() == y.tolist()
    assert pair.classes == ("0", "1", "2")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_any_shape_comes_back(tmp_path_factory, shape):
    path = tmp_path_factory.mktemp("idx") / "a"
    array = RANDOM.integers(0, 256, shape)
    path.write_bytes(idx(array))
    assert np.array_equal(read_idx(path, dimensions=len(shape)), array)


GOOD = idx(np.zeros((4, 3, 3)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"must be an IDX file of bytes with 3 dimensions .* but begins with nothing\. Download the four MNIST"),
        (b"\x00\x00\x08", "must be an IDX file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(60), r"\(it must begin with 00000803\), but begins with 89504e47"),
        (b"\x00\x00\x0d\x03" + GOOD[4:], "begins with 00000d03"),
        (b"\x00\x00\x08\x01" + GOOD[4:], "begins with 00000801"),
        (GOOD[:10], "must be an IDX file"),
        (GOOD[:-1], r"declares the shape \(4, 3, 3\) and must hold 36 bytes, but has only 35"),
        (GOOD + b"x", "must hold 36 bytes, but has more"),
        (b"\x00\x00\x08\x03" + b"\xff" * 12 + bytes(30), r"which is more than 1073741824 bytes"),
        (gzip.compress(GOOD, mtime=0)[:-9], r"must be a whole gzip file, but is cut short or damaged"),
        (gzip.compress(GOOD, mtime=0)[:12], "must be a whole gzip file"),
        (b"\x1f\x8b" + bytes(40), "must be a whole gzip file"),
        (gzip.compress(GOOD[:-4], mtime=0), "has only 32"),
    ],
)
def test_one_clear_error(tmp_path, content, message):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as e:
        read_idx(path, dimensions=3)
    assert str(path) in str(e.value)


def test_a_gzip_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "a.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(GOOD)
        for _ in range(200):
            file.write(bytes(2**20))
    tracemalloc.start()
    with pytest.raises(DataError, match="but has more"):
        read_idx(path, dimensions=3)
    assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    tracemalloc.stop()


def test_missing_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"MNIST must be in the folder .*none, but there is no such folder\. Download"):
        load(tmp_path / "none")
    with pytest.raises(DataError, match=r"as train-images-idx3-ubyte.gz or train-images-idx3-ubyte or .*no such file"):
        load(tmp_path)


def test_images_and_labels_must_agree(tmp_path):
    write(tmp_path, labels=5)
    with pytest.raises(DataError, match=r"has 7 images, but .* has 5 labels\. Both must come from one download"):
        load(tmp_path, verify=False)


def test_other_files_than_the_originals_are_refused(tmp_path):
    write(tmp_path, suffix=".gz")
    with pytest.raises(IntegrityError, match=r"must be the original \(md5 6bbc9ace.*, but its md5 is .*verify=False"):
        load(tmp_path)


def test_an_unknown_name_has_no_checksum(tmp_path):
    (tmp_path / "other").write_bytes(GOOD)
    with pytest.raises(IntegrityError, match=r"No checksum is known for other\. Pass verify=False"):
        read_idx(tmp_path / "other", dimensions=3, verify=True)


@pytest.mark.parametrize(("part", "stem"), [("train", "train"), ("test", "t10k")])
def test_the_checksums_are_those_of_mnist(part, stem):
    found = read_part(shared(), "mnist", part)
    assert found is not None
    assert md5(idx(found[0])) == CHECKSUMS[f"{stem}-images-idx3-ubyte"]
    assert md5(idx(found[1])) == CHECKSUMS[f"{stem}-labels-idx1-ubyte"]
