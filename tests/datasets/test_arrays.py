"""`.npz` files: what they give, and what they may not hold."""

import io
import os
import zipfile

import numpy as np
import pytest
import torch

from spotlessnet.core.errors import DataError
from spotlessnet.datasets import load
from spotlessnet.datasets.npz import read_npz

RANDOM = np.random.default_rng(0)
IMAGES = {
    "x_train": RANDOM.integers(0, 256, (6, 4, 4, 3), dtype=np.uint8),
    "y_train": np.array([0, 1, 2, 0, 1, 2]),
    "x_test": RANDOM.integers(0, 256, (2, 4, 4, 3), dtype=np.uint8),
    "y_test": np.array([2, 0]),
}
TABLE = {
    "x_train": RANDOM.standard_normal((6, 3)),
    "y_train": RANDOM.standard_normal(6),
    "x_test": RANDOM.standard_normal((2, 3)),
    "y_test": RANDOM.standard_normal(2),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_images_with_names_and_columns(tmp_path, save):
    path = tmp_path / "a.npz"
    people = np.array(["a", "b", "c", "a", "b", "c"])
    save(
        path,
        classes=np.array(["x", "y", "z"]),
        person_train=people,
        person_test=people[:2],
        note=np.array("n"),
        **IMAGES,
    )
    pair = load(path)
    x = pair.train.fetch(torch.tensor([1])).x
    assert isinstance(x, torch.Tensor)
    expected = (IMAGES["x_train"][1].transpose(2, 0, 1) / 255 - 0.5) / 0.25
    np.testing.assert_allclose(x[0].numpy(), expected, atol=1e-6)
    assert pair.classes == ("x", "y", "z")
    assert pair.train.column("person") == people.tolist()
    assert pair.test.labels().tolist() == [2, 0]


def test_tables_are_taken_as_they_are(tmp_path):
    np.savez(tmp_path / "a.npz", **{k: np.asfortranarray(v) for k, v in TABLE.items()})  # type: ignore[arg-type]  # stub
    pair = load(tmp_path / "a.npz")
    x = next(pair.train.batches()).x
    assert isinstance(x, torch.Tensor)
    assert x.dtype == torch.float64
    assert np.array_equal(x.numpy(), TABLE["x_train"])
    assert pair.train.labels().dtype == torch.float32
    assert pair.normalise is None
    assert pair.classes == ()
    assert pair.train.column("id") == list(range(6))


def test_whole_number_inputs_become_floats(tmp_path):
    np.savez(tmp_path / "a.npz", **{**TABLE, "x_train": np.ones((6, 3), np.int32), "y_train": np.arange(6)})  # type: ignore[arg-type]  # stub
    batch = next(load(tmp_path / "a.npz").train.batches())
    assert isinstance(batch.x, torch.Tensor)
    assert (batch.x.dtype, batch.y.dtype) == (torch.float32, torch.int64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_test": None}, r"must hold x_train, y_train, x_test, y_test, but y_test is missing \(it holds x_test, x_t"),
        ({"y_train": np.arange(5)}, r"x_train and y_train in .* shapes \(6, 4, 4, 3\) and \(5,\)\. Give inputs"),
        ({"x_test": np.zeros((2, 5, 5, 3), np.uint8)}, r"rows are \(4, 4, 3\) and \(5, 5, 3\)\. Give both the same"),
        ({"x_train": np.zeros(6)}, "one row each for the same rows"),
        ({"y_train": np.array(3)}, "one row each for the same rows"),
        ({"x_train": np.zeros((0, 4, 4, 3), np.uint8), "y_train": np.zeros(0, int)}, "must have rows, but has none"),
        (
            {"x_train": np.full((6, 4, 4, 3), np.nan)},
            "x_train in .* must be finite, but 288 entries",
        ),
        ({"y_train": np.array([0, 1, 2, 0, 1, np.inf])}, "y_train in .* must be finite, but 1 entries"),
        ({"y_train": np.array([0, 1, 2, 0, 1, -1])}, "must count classes from 0, but holds -1"),
        ({"y_train": np.array(list("abcdef"))}, "must hold numbers, but holds <U1"),
        ({"x_train": np.zeros((6, 4, 4, 3), complex)}, "must hold numbers, but holds complex128"),
        ({"classes": np.array(["a", "b"])}, r"names 2 classes, but has the label 2\. Labels must count from 0 to 1"),
    ],
)
def test_one_clear_error(tmp_path, change, message):
    arrays = {name: value for name, value in {**IMAGES, **change}.items() if value is not None}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message) as e:
        load(tmp_path / "a.npz")
    assert str(tmp_path / "a.npz") in str(e.value)


class Payload:
    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.system, (f"touch {self.canary}",)


def test_a_payload_does_not_run(tmp_path):
    canary = tmp_path / "canary"
    np.savez(tmp_path / "a.npz", **{**IMAGES, "x_train": np.array([Payload(canary)] * 6, object)})  # type: ignore[arg-type]  # stub
    with pytest.raises(DataError, match=r"x_train\.npy in .* holds Python objects, which can run code"):
        load(tmp_path / "a.npz")
    assert not canary.exists()
    with np.load(tmp_path / "a.npz", allow_pickle=True) as found:
        _ = found["x_train"]
    assert canary.exists()


def npy(header: str) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def archive(path, **members: bytes):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 1000000), }"), "claims the shape"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }") + bytes(8), "must hold 16 bytes, but has 8"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }"), "claims the shape .*, which cannot be"),
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }") + bytes(8), "holds Python objects"),
        (npy("__import__('os').system('true')"), "must be a numpy array, but is not"),
        (b"hello", "must be a numpy array, but is not"),
        (b"", "must be a numpy array, but is not"),
    ],
)
def test_headers_are_checked_before_memory_is_asked_for(tmp_path, content, message):
    archive(tmp_path / "a.npz", x_train=content)
    with pytest.raises(DataError, match=message):
        read_npz(tmp_path / "a.npz")


def test_a_zip_bomb_is_refused_by_its_declared_size(tmp_path):
    archive(tmp_path / "a.npz", x_train=bytes(30 * 2**20))
    assert (tmp_path / "a.npz").stat().st_size < 2**16
    with pytest.raises(DataError, match=r"would unpack to 31457280 bytes, but at most 1000000 are allowed\. Raise"):
        read_npz(tmp_path / "a.npz", limit=1_000_000)


def test_damaged_and_foreign_files(tmp_path):
    path = tmp_path / "a.npz"
    with pytest.raises(DataError, match=r"There is no file .*a\.npz\. Give the path of an \.npz archive"):
        load(path)
    file = io.BytesIO()
    np.savez_compressed(file, **IMAGES)  # type: ignore[arg-type]  # stub
    whole = file.getvalue()
    flipped = bytearray(whole)
    flipped[120] ^= 0xFF
    for content in (b"", b"not a zip", whole[:-30], whole[: len(whole) // 2], bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.npz"):
            load(path)
    path.write_bytes(b"not a zip")
    with pytest.raises(DataError, match=r"must be an \.npz archive, but is cut short, damaged or something else"):
        load(path)
