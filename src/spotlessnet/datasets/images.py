"""Reading one image file of unknown origin."""

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from spotlessnet.core.errors import DataError, SpotlessError

FORMATS = ("JPEG", "PNG", "WEBP")
SUFFIXES = (".jpeg", ".jpg", ".png", ".webp")
MOST_PIXELS = 50_000_000
"""More than any photograph; a file that declares more is refused before it is unpacked."""


def read_image(
    content: bytes,
    name: Path | str,
    *,
    mode: str = "RGB",
    size: tuple[int, int] | None = None,
    resize: tuple[int, int] | None = None,
) -> NDArray[Any]:
    """The pixels of a JPEG, PNG or WebP file as bytes, (h, w, 3) or, with mode "L", (h, w).

    **Arguments:**

    - `name`: what to call the file in an error.
    - `size`: the width and height that it must have.
    - `resize`: the width and height to bring it to.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            opened = Image.open(io.BytesIO(content), formats=FORMATS)
        _check_size(opened.size, name, size)
        image = opened.convert(mode)
        return np.array(image if resize is None else image.resize(resize, Image.Resampling.BILINEAR))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as e:
        raise DataError(f"The image {name} is too large to be one of this data set. Remove it.") from e
    except SpotlessError:
        raise
    except Exception as e:  # a damaged image fails in many ways, ValueError and struct.error among them
        raise DataError(
            f"{name} must be a whole JPEG, PNG or WebP image, but is not ({type(e).__name__}). "
            "Remove it or download it again."
        ) from e


def list_images(folder: Path) -> list[Path]:
    """The image files directly in a folder, in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())


def _check_size(came: tuple[int, int], name: Path | str, size: tuple[int, int] | None) -> None:
    if size is not None and came != size:
        raise DataError(
            f"The image {name} must be {size[0]}×{size[1]} pixels, but is {came[0]}×{came[1]}. Use the original files."
        )
    if came[0] * came[1] > MOST_PIXELS:
        raise DataError(f"The image {name} is too large to be one of this data set ({came[0]}×{came[1]}). Remove it.")
