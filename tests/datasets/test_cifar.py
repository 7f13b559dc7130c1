"""CIFAR batches are pickles: read as data, never run."""

import os
import pickle
import pickletools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.datasets import cifar
from spotlessnet.datasets.cifar import CIFAR10, CIFAR100, load, read_batch
from spotlessnet.datasets.files import md5
from spotlessnet.datasets.safe_pickle import read_pickle

RANDOM = np.random.default_rng(0)


def batch(n: int = 4, labels: str = "labels") -> dict[bytes, Any]:
    data = RANDOM.integers(0, 256, (n, 3072), dtype=np.uint8)
    return {b"data": data, labels.encode(): [i % 3 for i in range(n)], b"filenames": [b"a.png"] * n}


def as_python2(value: Any) -> bytes:
    """The bytes as Python 2 and the numpy of its day wrote them: short strings, and no bytes type."""
    return b"\x80\x02" + _old(value) + b"."


def _old(value: Any) -> bytes:
    match value:
        case dict():
            return b"}(" + b"".join(_old(k) + _old(v) for k, v in value.items()) + b"u"
        case list():
            return b"](" + b"".join(map(_old, value)) + b"e"
        case bytes():
            return b"T" + len(value).to_bytes(4, "little") + value
        case int():
            return b"J" + value.to_bytes(4, "little", signed=True)
        case np.ndarray():
            dtype = b"cnumpy\ndtype\n" + _old(b"u1") + b"K\x00K\x01\x87R(K\x03" + _old(b"|") + b"NNN" + _old(-1) * 2
            start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + _old(b"b") + b"\x87R"
            shape = b"".join(map(_old, value.shape))
            return start + b"(K\x01(" + shape + b"t" + dtype + b"K\x00tb\x89" + _old(value.tobytes()) + b"tb"
    raise TypeError(value)


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "cifar-10-batches-py"
    inside.mkdir()
    for name in (*CIFAR10.train, *CIFAR10.test):
        (inside / name).write_bytes(as_python2(batch()))
    (inside / "batches.meta").write_bytes(as_python2({b"label_names": [f"name {i}".encode() for i in range(10)]}))
    return tmp_path


@pytest.mark.parametrize("write", [as_python2, lambda v: pickle.dumps(v, 2), pickle.dumps], ids=["python 2", "2", "4"])
def test_what_was_written_is_read(tmp_path, write):
    wrote = batch(5)
    path = tmp_path / "data_batch_1"
    path.write_bytes(write(wrote))
    assert list(pickletools.genops(path.read_bytes()))
    x, y = read_batch(path, CIFAR10)
    assert np.array_equal(x.transpose(0, 3, 1, 2).reshape(5, -1), wrote[b"data"])
    assert y.tolist() == [0, 1, 2, 0, 1]


def test_cifar10(folder):
    pair = load(folder, verify=False)
    assert (len(pair.train), len(pair.test)) == (20, 4)
    assert pair.classes[3] == "name 3"
    x = pair.train.fetch(torch.tensor([7])).x
    assert isinstance(x, torch.Tensor)
    pixels, _ = read_batch(folder / "cifar-10-batches-py" / "data_batch_2", CIFAR10)
    expected = (pixels[3] / 255 - np.array(cifar.NORMALISE.mean)) / np.array(cifar.NORMALISE.std)
    np.testing.assert_allclose(x[0].permute(1, 2, 0).numpy(), expected, atol=1e-5)
    assert load(folder / "cifar-10-batches-py", verify=False).classes == pair.classes


def test_cifar100_without_names(tmp_path):
    for name in ("train", "test"):
        (tmp_path / name).write_bytes(pickle.dumps(batch(labels="fine_labels"), 2))
    pair = load(tmp_path, CIFAR100, verify=False)
    assert pair.classes == tuple(str(i) for i in range(100))
    assert pair.train.labels().tolist() == [0, 1, 2, 0]


class Payload:
    def __init__(self, canary: Path, run: Any = os.system) -> None:
        self.canary, self.run = canary, run

    def __reduce__(self):
        if self.run is os.system:
            return os.system, (f"touch {self.canary}",)
        return self.run, (f"open({str(self.canary)!r}, 'w').close()",)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("run", [os.system, exec, eval], ids=["system", "exec", "eval"])
def test_a_payload_does_not_run(tmp_path, run, protocol):
    canary, path = tmp_path / "canary", tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": Payload(canary, run), b"labels": []}, protocol))
    with pytest.raises(DataError, match=r"but holds the name \S+, which could run code\. Download cifar-10-python"):
        read_batch(path, CIFAR10)
    assert not canary.exists()
    # The canary is a real one: Python's own reader would have run it.
    pickle.loads(path.read_bytes())
    assert canary.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cnumpy\nload\n(S'/etc/passwd'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n(tR.",
        b"cbuiltins\ngetattr\n.",
        b"c__builtin__\neval\n.",
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93.",
        b"cnumpy\n_core.multiarray.os.system\n.",
        b"Pid\n.",
        b"\x82\x01.",
        b"(i__main__\nX\n.",
    ],
    ids=["load", "scalar", "getattr", "eval", "stack global", "dotted", "persistent", "extension", "instance"],
)
def test_other_names_are_refused(tmp_path, content):
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(DataError, match="must be a pickle of plain values and byte arrays, but holds"):
        read_batch(path, CIFAR10)


SHAPE = _old(4) + _old(3072)
GOOD = pickle.dumps(batch(), 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"must be a pickle of plain values and byte arrays, but holds .* Download cifar-10-python\.tar\.gz"),
        (GOOD[: len(GOOD) // 2], "must be a pickle"),
        (b"\x89PNG\r\n\x1a\n", "must be a pickle"),
        (pickle.dumps([1]), "must hold a dictionary, but holds list"),
        (pickle.dumps({}), "must hold a byte array 'data' with 3072 columns, but has none"),
        (pickle.dumps({b"data": b"x"}), "but has none"),
        (pickle.dumps({b"data": np.zeros((2, 7), np.uint8)}), r"but has one of shape \(2, 7\)"),
        (pickle.dumps({b"data": np.zeros((2, 3072))}), "an array of type 'f8' in place of bytes"),
        (pickle.dumps({b"data": np.zeros((2, 3072), object)}), "an array of type 'O8' in place of bytes"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8)}), "must hold 2 'labels' from 0 to 9, but does not"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}), "must hold 2 'labels'"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 10]}), "must hold 2 'labels'"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, -1]}), "must hold 2 'labels'"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, True]}), "must hold 2 'labels'"),
        (as_python2(batch()).replace(SHAPE, b"J\xff\xff\xff\x7f" + SHAPE[5:]), "whose shape does not fit"),
        (as_python2(batch()).replace(SHAPE, b"J\xff\xff\xff\xff" + SHAPE[5:]), "whose shape does not fit"),
        (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x0f.", "must be a pickle"),
        (b"\x80\x02Nr\xff\xff\xff\x7f.", "must hold a dictionary, but holds NoneType"),
    ],
)
def test_one_clear_error(tmp_path, content, message):
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as e:
        read_batch(path, CIFAR10)
    assert str(path) in str(e.value)


def test_originals_are_checked(folder):
    with pytest.raises(IntegrityError, match=r"must be the original \(md5 c99cafc1.*\), but its md5 is .*verify=False"):
        load(folder)
    inside = folder / "cifar-10-batches-py"
    sums = {name: md5((inside / name).read_bytes()) for name in (*CIFAR10.train, *CIFAR10.test)}
    assert len(load(folder, replace(CIFAR10, checksums=sums)).train) == 20


def test_missing_files_are_named(folder):
    with pytest.raises(
        DataError, match=r"CIFAR-10 must be in the folder .*none, but there is no such folder\. Download"
    ):
        load(folder / "none")
    (folder / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(
        DataError, match=r"must be in .* as data_batch_4, but no such file is there\. Download cifar-10"
    ):
        load(folder, verify=False)


def test_names_and_sizes_are_checked(folder, monkeypatch):
    (folder / "cifar-10-batches-py" / "batches.meta").write_bytes(pickle.dumps({"label_names": ["a"]}))
    with pytest.raises(DataError, match=r"batches\.meta must list 10 'label_names', but does not"):
        load(folder, verify=False)
    monkeypatch.setattr(cifar, "LIMIT", 100)
    with pytest.raises(DataError, match="must be at most 100 bytes, but has"):
        load(folder, verify=False)


def test_a_key_nested_deep_does_not_reach_the_stack_of_the_interpreter(tmp_path):
    deep = b"\x80\x02})" + b"\x85" * 2_000_000 + b"K\x01s."
    with pytest.raises(DataError, match="tuples nested deeper than any file needs"):
        read_pickle(tmp_path / "a", deep, "Download it again.")
