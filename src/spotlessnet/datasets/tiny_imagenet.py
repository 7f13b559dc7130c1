"""TinyImageNet from its original folders: `train/<wnid>/images/*.JPEG` and `val/val_annotations.txt`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spotlessnet.core.errors import DataError
from spotlessnet.core.progress import track
from spotlessnet.datasets.files import find_file, find_folder
from spotlessnet.datasets.images import list_images, read_image
from spotlessnet.datasets.pair import DataPair, Normalise, image_data
from spotlessnet.datasets.registry import DATASETS, NamedData

NORMALISE = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
REMEDY = "Download tiny-imagenet-200.zip and unpack it here."
SIDE = 64

Labelled = list[tuple[Path, int]]


def load(folder: Path, *, wnids: Sequence[str] | None = None, normalise: Normalise = NORMALISE) -> DataPair:
    """TinyImageNet with its validation images as the test part, whose labels alone were published.

    **Arguments:**

    - `wnids`: only these classes (WordNet ids such as "n01443537"), labelled in this order; `None` for all.
    """
    place = find_folder(folder, ("tiny-imagenet-200",), "TinyImageNet", REMEDY)
    known = sorted(
        path.name for path in find_folder(place / "train", (), "TinyImageNet", REMEDY).iterdir() if path.is_dir()
    )
    chosen = list(known if wnids is None else wnids)
    strange = [wnid for wnid in chosen if wnid not in known]
    if strange or not chosen or len(set(chosen)) < len(chosen):
        raise DataError(
            f"The classes must be different folders of {place / 'train'}, which has {len(known)}, but "
            f"{strange[:5] or chosen[:5]} were asked for. {REMEDY if not known else 'Check their spelling.'}"
        )
    train: Labelled = []
    for label, wnid in enumerate(chosen):
        images = place / "train" / wnid / "images"
        found = list_images(images) if images.is_dir() else []
        if not found:
            raise DataError(f"The class folder {images} must hold images, but is empty or missing. {REMEDY}")
        train += [(path, label) for path in found]
    test = _validation(place / "val", {wnid: label for label, wnid in enumerate(chosen)}, set(known))
    names = _names(place, chosen)
    return DataPair(_read(train, "training", normalise), _read(test, "test", normalise), names, normalise)


def _validation(folder: Path, label_of: dict[str, int], known: set[str]) -> Labelled:
    path = find_file(folder, ("val_annotations.txt",), "TinyImageNet", REMEDY)
    found: Labelled = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        # A name with a folder in it would read a file outside the data set.
        if wnid not in known or not name or Path(name).name != name or "\\" in name:
            raise DataError(
                f"Line {number} of {path} must name an image and one of the {len(known)} classes, but is "
                f"{line[:80]!r}. {REMEDY}"
            )
        if wnid in label_of:
            found.append((folder / "images" / name, label_of[wnid]))
    return found


def _read(labelled: Labelled, what: str, normalise: Normalise) -> Any:
    x = np.empty((len(labelled), SIDE, SIDE, 3), np.uint8)
    for i, (path, _) in enumerate(track(labelled, f"reading {what} images")):
        if not path.is_file():
            raise DataError(f"The image {path} is named in the annotations, but is not there. {REMEDY}")
        x[i] = read_image(path.read_bytes(), path, size=(SIDE, SIDE))
    y = np.array([label for _, label in labelled], np.int64)
    return image_data(x, y, normalise, {"id": [path.name for path, _ in labelled]})


def _names(place: Path, chosen: Sequence[str]) -> tuple[str, ...]:
    path = place / "words.txt"
    if not path.is_file():
        return tuple(chosen)
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    words = {wnid: text for wnid, _, text in (line.partition("\t") for line in lines)}
    return tuple(words.get(wnid, wnid) for wnid in chosen)


@DATASETS.register(
    "tinyimagenet", paper="Le and Yang (2015)", summary="files in the folder SPOTLESS_DATA", needs=("files",)
)
class TinyImageNet(NamedData):
    """100,000 images of 64×64 pixels in 200 classes."""

    normalise = NORMALISE
    is_family = True

    @staticmethod
    def load(folder: Path, *, seed: int, verify: bool, normalise: Normalise) -> DataPair:
        return load(folder, normalise=normalise)
