"""Identities: one folder of images a person, and a builder of Lacuna data sets from such a tree.

Lacuna-10 and Lacuna-100 are face data sets drawn from VGGFace2 (Golatkar, Achille and Soatto 2020, section 5.1): ten
identities to forget from, and a hundred *other* ones to pre-train on.
"""

import hashlib
import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spotlessnet.core.errors import DataError, SettingError, check_positive
from spotlessnet.core.files import write_whole
from spotlessnet.core.progress import track
from spotlessnet.datasets.files import find_folder
from spotlessnet.datasets.images import list_images, read_image
from spotlessnet.datasets.pair import DataPair, Normalise, image_data

REMEDY = "Give a folder with one folder of images for each identity, or with `train` and `test` folders of such."

Array = NDArray[Any]


@dataclass(frozen=True)
class Lacuna:
    """How to draw a Lacuna data set; the defaults are the paper's numbers.

    **Arguments:**

    - `identities`: how many people to fine-tune on and forget from.
    - `pretrain`: how many other people to pre-train on; nobody is in both.
    - `images`: how many images of each; people with fewer different ones are passed over.
    - `test`: how many of these are for testing; no image is in both parts.
    - `size`: width and height to resize to.
    - `seed`: of everything that is drawn.
    """

    identities: int = 10
    pretrain: int = 100
    images: int = 500
    test: int = 100
    size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("identities", "images", "size"):
            check_positive(f"Lacuna.{name}", getattr(self, name))
        if self.pretrain < 0 or not 0 < self.test < self.images:
            raise SettingError(
                f"Lacuna needs `pretrain` of zero or more and `test` between 1 and `images` - 1, but got "
                f"pretrain={self.pretrain}, test={self.test}, images={self.images}."
            )

    def build(self, source: Path, target: Path) -> dict[str, Any]:
        """Write `lacuna.npz`, `lacuna-pretrain.npz` and `manifest.json` into `target`; the manifest is also returned.

        Both archives load with `load("lacuna.npz")`. The manifest names every image of every part.
        """
        people = find_identities(source)
        random = np.random.default_rng(self.seed)
        order = [sorted(people)[i] for i in random.permutation(len(people))]
        enough = [person for person in order if len(list_images(people[person])) >= self.images]
        drawn: list[tuple[str, list[tuple[str, Array]]]] = []
        for person in track(enough, "reading identities", total=self.identities + self.pretrain):
            images = self._draw(people[person], random)
            if images is not None:
                drawn.append((person, images))
            if len(drawn) == self.identities + self.pretrain:
                break
        if len(drawn) < self.identities + self.pretrain:
            raise DataError(
                f"{source} must have {self.identities + self.pretrain} identities with {self.images} different images "
                f"each, but has {len(drawn)} (of {len(people)}). Ask for fewer images or fewer identities."
            )
        parts = {"lacuna.npz": drawn[: self.identities], "lacuna-pretrain.npz": drawn[self.identities :]}
        manifest: dict[str, Any] = {"format": 1, "settings": asdict(self), "files": {}}
        for name, chosen in parts.items():
            if chosen:
                manifest["files"][name] = self._write(target / name, chosen)
        text = json.dumps(manifest, indent=1, sort_keys=True)
        write_whole(target / "manifest.json", text.encode(), replace=True)
        return manifest

    def _draw(self, folder: Path, random: np.random.Generator) -> list[tuple[str, Array]] | None:
        paths = list_images(folder)
        seen: set[bytes] = set()
        images = []
        for i in random.permutation(len(paths)):
            content = paths[i].read_bytes()
            digest = hashlib.sha256(content).digest()
            # A copy under another name could otherwise be trained on and tested on.
            if digest not in seen:
                seen.add(digest)
                images.append((paths[i].name, read_image(content, paths[i], resize=(self.size, self.size))))
            if len(images) == self.images:
                return images
        return None

    def _write(self, path: Path, drawn: list[tuple[str, list[tuple[str, Array]]]]) -> dict[str, Any]:
        drawn = sorted(drawn, key=lambda entry: entry[0])
        arrays: dict[str, Array] = {"classes": np.array([person for person, _ in drawn])}
        names: dict[str, dict[str, list[str]]] = {person: {} for person, _ in drawn}
        for part, cut in (("test", slice(0, self.test)), ("train", slice(self.test, None))):
            rows = [(label, person, *image) for label, (person, images) in enumerate(drawn) for image in images[cut]]
            arrays[f"x_{part}"] = np.stack([pixels for *_, pixels in rows])
            arrays[f"y_{part}"] = np.array([label for label, *_ in rows], np.int64)
            arrays[f"person_{part}"] = np.array([person for _, person, *_ in rows])
            arrays[f"id_{part}"] = np.array([f"{person}/{name}" for _, person, name, _ in rows])
            for person, images in drawn:
                names[person][part] = [name for name, _ in images[cut]]
        packed = io.BytesIO()
        np.savez(packed, **arrays)  # type: ignore[arg-type]  # numpy's stub mixes up **
        return {"sha256": write_whole(path, packed.getvalue(), replace=True), "identities": names}


def load(
    folder: Path, *, size: int = 32, test: float = 0.2, seed: int = 0, normalise: Normalise | None = None
) -> DataPair:
    """All identities of a tree, resized; a random share of each one's images is held out for testing.

    **Arguments:**

    - `size`: width and height to resize to.
    - `test`: the share of each identity's images to test on, at least one.
    - `seed`: of the split.
    """
    if not 0 < test < 1:
        raise SettingError(f"`test` must be a share between 0 and 1, but got {test}.")
    people = find_identities(folder)
    random = np.random.default_rng(seed)
    parts: dict[str, list[tuple[int, str, Path]]] = {"train": [], "test": []}
    for label, (person, place) in enumerate(sorted(people.items())):
        paths = list_images(place)
        if len(paths) < 2:
            raise DataError(
                f"The identity folder {place} must hold at least two images, one to train and one to test on, but has "
                f"{len(paths)}. Add images or remove the folder."
            )
        held_out = min(max(1, round(test * len(paths))), len(paths) - 1)
        order = random.permutation(len(paths))
        parts["test"] += [(label, person, paths[i]) for i in sorted(order[:held_out])]
        parts["train"] += [(label, person, paths[i]) for i in sorted(order[held_out:])]
    norm = normalise or Normalise()
    train, tests = (_read(parts[part], part, size, norm) for part in ("train", "test"))
    return DataPair(train, tests, tuple(sorted(people)), norm)


def find_identities(folder: Path) -> dict[str, Path]:
    """The folder of each identity by its name."""
    place = find_folder(folder, (), "Identity folders", REMEDY)
    inside = [place / part for part in ("train", "test") if (place / part).is_dir()] or [place]
    found: dict[str, Path] = {}
    for path in sorted(path for part in inside for path in part.iterdir() if path.is_dir()):
        if path.name in found:
            raise DataError(
                f"The identity {path.name} must have one folder, but has two: {found[path.name]} and {path}."
            )
        found[path.name] = path
    if not found:
        raise DataError(f"{folder} must hold identity folders, but has none. {REMEDY}")
    return found


def _read(rows: list[tuple[int, str, Path]], part: str, size: int, normalise: Normalise) -> Any:
    tracked = track(rows, f"reading {part} images")
    x = np.stack([read_image(path.read_bytes(), path, resize=(size, size)) for _, _, path in tracked])
    y = np.array([label for label, _, _ in rows], np.int64)
    columns = {"person": [person for _, person, _ in rows], "id": [f"{p}/{path.name}" for _, p, path in rows]}
    return image_data(x, y, normalise, columns)
