"""TinyImageNet from folders, and folders that are not as they should be."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from spotlessnet.core.errors import DataError
from spotlessnet.datasets import load as load_by_name
from spotlessnet.datasets.tiny_imagenet import NORMALISE, load

WNIDS = ("n01", "n02", "n03")


def jpeg(value: int, size: tuple[int, int] = (64, 64), mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, size, value if mode == "L" else (value,) * 3).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    for k, wnid in enumerate(WNIDS):
        images = root / "train" / wnid / "images"
        images.mkdir(parents=True)
        for i in range(2):
            (images / f"{wnid}_{i}.JPEG").write_bytes(jpeg(50 * k + 10 * i, mode="L" if i else "RGB"))
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("0 0 1 1")
    (root / "val" / "images").mkdir(parents=True)
    for i in range(4):
        (root / "val" / "images" / f"val_{i}.JPEG").write_bytes(jpeg(i))
    lines = [f"val_{i}.JPEG\t{WNIDS[i % 3]}\t0\t0\t9\t9" for i in range(4)]
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (root / "words.txt").write_text("n01\tgoldfish\nn03\ttoad, frog\n")
    return tmp_path


def test_all_classes(folder):
    pair = load(folder)
    assert pair.train.labels().tolist() == [0, 0, 1, 1, 2, 2]
    assert pair.test.labels().tolist() == [0, 1, 2, 0]
    assert pair.classes == ("goldfish", "n02", "toad, frog")
    assert pair.train.column("id")[2] == "n02_0.JPEG"
    x = pair.train.fetch(torch.tensor([3])).x
    assert isinstance(x, torch.Tensor)
    expected = (60 / 255 - np.array(NORMALISE.mean)) / np.array(NORMALISE.std)
    np.testing.assert_allclose(x[0, :, 5, 5].numpy(), expected, atol=0.02)
    assert len(load_by_name("tinyimagenet", folder / "tiny-imagenet-200").train) == 6


def test_some_classes_in_their_order(folder):
    pair = load(folder, wnids=["n03", "n01"])
    assert pair.train.labels().tolist() == [0, 0, 1, 1]
    assert pair.test.column("id") == ["val_0.JPEG", "val_2.JPEG", "val_3.JPEG"]
    assert pair.test.labels().tolist() == [1, 0, 1]
    for wrong in (["n09"], ["n01", "n01"], []):
        with pytest.raises(DataError, match=r"classes must be different folders of .*train, which has 3"):
            load(folder, wnids=wrong)


def test_an_empty_class_folder(folder):
    for path in (folder / "tiny-imagenet-200/train/n02/images").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"class folder .*n02.images must hold images, but is empty or missing"):
        load(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (jpeg(3, (32, 64)), r"n02_0\.JPEG must be 64×64 pixels, but is 32×64"),
        (jpeg(3)[:300], r"n02_0\.JPEG must be a whole JPEG, PNG or WebP image, but is not"),
        (b"hello", "must be a whole JPEG, PNG or WebP image"),
        (b"", "must be a whole JPEG, PNG or WebP image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n", "must be a whole JPEG, PNG or WebP image"),
    ],
)
def test_files_that_are_not_such_images(folder, content, message):
    (folder / "tiny-imagenet-200/train/n02/images/n02_0.JPEG").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load(folder)


@pytest.mark.parametrize(
    "line", ["val_0.JPEG", "val_0.JPEG\tn99", "../../x.JPEG\tn01", "/etc/passwd\tn01", "a\\b\tn01", "\tn01"]
)
def test_annotations_are_checked(folder, line):
    (folder / "tiny-imagenet-200/val/val_annotations.txt").write_text(line + "\n")
    with pytest.raises(DataError, match=r"Line 1 of .*val_annotations\.txt must name an image and one of"):
        load(folder)


def test_missing_parts_are_named(folder):
    with pytest.raises(DataError, match=r"TinyImageNet must be in the folder .*none.*Download tiny-imagenet-200\.zip"):
        load(folder / "none")
    (folder / "tiny-imagenet-200/val/images/val_1.JPEG").unlink()
    with pytest.raises(DataError, match=r"val_1\.JPEG is named in the annotations, but is not there"):
        load(folder)
    (folder / "tiny-imagenet-200/val/val_annotations.txt").unlink()
    with pytest.raises(DataError, match=r"as val_annotations\.txt, but no such file is there"):
        load(folder)
