"""Files of data sets: one clear error for each that is missing, changed or too big; written whole or not at all."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from spotlessnet.core.errors import DataError, IntegrityError


def find_file(folder: Path, names: Sequence[str], what: str, remedy: str) -> Path:
    """The first of these names that is a file in `folder`."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"{what} must be in {folder} as {' or '.join(names)}, but no such file is there. {remedy}")


def find_folder(folder: Path, inside: Sequence[str], what: str, remedy: str) -> Path:
    """`folder`, or one of the folders `inside` it that a download usually makes."""
    for place in [*(folder / name for name in inside), folder]:
        if place.is_dir():
            return place
    raise DataError(f"{what} must be in the folder {folder}, but there is no such folder. {remedy}")


def check_size(path: Path, limit: int) -> None:
    """Raise if a file is larger than anything of its kind should be."""
    size = path.stat().st_size
    if size > limit:
        raise DataError(f"{path} must be at most {limit} bytes, but has {size}. It is not the file it is named after.")


def check_md5(path: Path, digest: str, expected: str | None) -> None:
    """Raise unless the digest of the original is known and this is it."""
    if expected is None:
        raise IntegrityError(f"No checksum is known for {path.name}. Pass verify=False to read {path} all the same.")
    if digest != expected:
        raise IntegrityError(
            f"{path} must be the original (md5 {expected}), but its md5 is {digest}. Download it again, or pass "
            "verify=False if it is another data set in the same format."
        )


def md5(content: bytes) -> str:
    """The digest that the publishers of the older data sets give; it finds broken downloads, not forgeries."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
