"""Identity folders and the Lacuna builder: nobody in both sets, no image in both parts."""

import hashlib
import io
import json
import zlib

import numpy as np
import pytest
from PIL import Image

from spotlessnet.core.errors import DataError, SettingError
from spotlessnet.datasets import Lacuna, load

SMALL = Lacuna(identities=2, pretrain=3, images=6, test=2, size=8, seed=0)


def png(seed: int, size: tuple[int, int] = (12, 10)) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(
        out, "PNG"
    )
    return out.getvalue()


def tree(root, people: int = 8, images: int = 7, inside: str = ""):
    for p in range(people):
        folder = root / inside / f"n{p:06d}"
        folder.mkdir(parents=True)
        for i in range(images):
            (folder / f"{i:04d}_01.png").write_bytes(png(100 * p + i))
    return root


@pytest.mark.parametrize("inside", ["", "train"])
def test_lacuna_is_disjoint_and_loads(tmp_path, inside):
    manifest = SMALL.build(tree(tmp_path / "faces", inside=inside), tmp_path / "out")
    assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())
    people = {name: set(entry["identities"]) for name, entry in manifest["files"].items()}
    assert not people["lacuna.npz"] & people["lacuna-pretrain.npz"]
    assert (len(people["lacuna.npz"]), len(people["lacuna-pretrain.npz"])) == (2, 3)
    for name, entry in manifest["files"].items():
        path = tmp_path / "out" / name
        assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]
        pair = load(path)
        count = len(people[name])
        assert (len(pair.train), len(pair.test)) == (4 * count, 2 * count)
        train, test = set(pair.train.column("id")), set(pair.test.column("id"))
        assert len(train) == 4 * count
        assert not train & test
        assert pair.classes == tuple(sorted(people[name]))
        assert [pair.classes[y] for y in pair.train.labels().tolist()] == pair.train.column("person")
        for person, parts in entry["identities"].items():
            assert {f"{person}/{file}" for file in parts["train"]} <= train
            assert {f"{person}/{file}" for file in parts["test"]} <= test


def test_same_seed_same_bytes(tmp_path):
    tree(tmp_path / "faces")
    written = []
    for i, seed in enumerate((1, 1, 2)):
        Lacuna(2, 3, 6, 2, 8, seed).build(tmp_path / "faces", tmp_path / str(i))
        written.append({path.name: path.read_bytes() for path in (tmp_path / str(i)).iterdir()})
    assert written[0] == written[1]
    assert written[0] != written[2]
    assert set(written[0]) == {"lacuna.npz", "lacuna-pretrain.npz", "manifest.json"}


def test_pixels_are_those_of_the_resized_file(tmp_path):
    tree(tmp_path / "faces")
    SMALL.build(tmp_path / "faces", tmp_path / "out")
    with np.load(tmp_path / "out" / "lacuna.npz") as found:
        for name, pixels in zip(found["id_test"], found["x_test"], strict=True):
            with Image.open(tmp_path / "faces" / str(name)) as image:
                assert np.array_equal(np.asarray(image.resize((8, 8), Image.Resampling.BILINEAR)), pixels)


def test_copies_are_not_different_images(tmp_path):
    tree(tmp_path / "faces", people=5, images=6)
    copied = tmp_path / "faces" / "n000002"
    (copied / "0001_01.png").write_bytes((copied / "0000_01.png").read_bytes())
    with pytest.raises(DataError, match=r"must have 5 identities with 6 different images each, but has 4 \(of 5\)"):
        SMALL.build(tmp_path / "faces", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_people_with_few_images_are_passed_over(tmp_path):
    tree(tmp_path / "faces", people=6)
    for path in list((tmp_path / "faces" / "n000003").iterdir())[:3]:
        path.unlink()
    manifest = SMALL.build(tmp_path / "faces", tmp_path / "out")
    assert all("n000003" not in entry["identities"] for entry in manifest["files"].values())


def test_no_pretraining_set_when_none_is_asked_for(tmp_path):
    manifest = Lacuna(2, 0, 6, 2, 8).build(tree(tmp_path / "faces"), tmp_path / "out")
    assert set(manifest["files"]) == {"lacuna.npz"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"test": 500}, r"`test` between 1 and `images` - 1, but got pretrain=100, test=500, images=500"),
        ({"test": 0}, "`test` between 1"),
        ({"pretrain": -1}, "`pretrain` of zero or more"),
        ({"identities": 0}, r"`Lacuna\.identities` must be positive"),
        ({"size": 0}, r"`Lacuna\.size` must be positive"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(SettingError, match=message):
        Lacuna(**settings)


def test_a_folder_of_identities_loads(tmp_path):
    pair = load(tree(tmp_path / "faces", people=3, images=5), seed=1)
    assert (len(pair.train), len(pair.test)) == (12, 3)
    assert not set(pair.train.column("id")) & set(pair.test.column("id"))
    assert pair.test.column("person") == ["n000000", "n000001", "n000002"]
    assert next(pair.train.batches()).y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert load(tmp_path / "faces", seed=1).test.column("id") == pair.test.column("id")
    assert any(load(tmp_path / "faces", seed=s).test.column("id") != pair.test.column("id") for s in (2, 3, 4))


def test_an_empty_identity_folder(tmp_path):
    tree(tmp_path / "faces", people=2)
    (tmp_path / "faces" / "nobody").mkdir()
    (tmp_path / "faces" / "nobody" / "readme.txt").write_text("no image")
    with pytest.raises(DataError, match=r"identity folder .*nobody must hold at least two images, .* but has 0\. Add"):
        load(tmp_path / "faces")


def test_trees_that_are_none(tmp_path):
    with pytest.raises(DataError, match=r"Identity folders must be in the folder .*none.*Give a folder with"):
        SMALL.build(tmp_path / "none", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="must hold identity folders, but has none"):
        load(tmp_path / "empty")
    tree(tmp_path / "both", people=1, inside="train")
    tree(tmp_path / "both", people=1, inside="test")
    with pytest.raises(DataError, match="The identity n000000 must have one folder, but has two"):
        load(tmp_path / "both")


def bomb(side: int) -> bytes:
    """A PNG of a few bytes that declares `side`×`side` pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    header = side.to_bytes(4, "big") * 2 + b"\x08\x02\x00\x00\x00"
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [8_000, 10_000, 60_000])
def test_images_that_unpack_too_far_are_refused(tmp_path, side):
    tree(tmp_path / "faces", people=1)
    (tmp_path / "faces" / "n000000" / "0003_01.png").write_bytes(bomb(side))
    with pytest.raises(DataError, match=r"0003_01\.png is too large to be one of this data set"):
        load(tmp_path / "faces")


def test_a_file_that_is_no_image(tmp_path):
    tree(tmp_path / "faces", people=1)
    (tmp_path / "faces" / "n000000" / "0003_01.png").write_bytes(b"hello")
    with pytest.raises(DataError, match=r"0003_01\.png must be a whole JPEG, PNG or WebP image"):
        load(tmp_path / "faces")
