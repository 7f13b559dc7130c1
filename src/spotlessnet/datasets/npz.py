"""Reading `.npz` archives that strangers made: no pickles, and no sizes that were not checked first."""

import lzma
import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spotlessnet.core.errors import DataError, SpotlessError
from spotlessnet.core.files import opened
from spotlessnet.core.zips import open_zip

LIMIT = 8 * 2**30
"""Bytes that an archive may hold when unpacked."""


def read_npz(path: Path, *, limit: int = LIMIT) -> dict[str, NDArray[Any]]:
    """All arrays of an archive by name.

    **Arguments:**

    - `limit`: refuse archives that would unpack to more bytes than this.
    """
    if not path.exists():
        raise DataError(f"There is no file {path}. Give the path of an .npz archive.")
    try:
        with opened(path) as stream, open_zip(stream, path) as archive:
            members = archive.infolist()
            declared = sum(member.file_size for member in members)
            if declared > limit:
                raise DataError(
                    f"{path} would unpack to {declared} bytes, but at most {limit} are allowed. "
                    "Raise the limit if you trust the file."
                )
            return {m.filename.removesuffix(".npy"): _read_member(path, archive, m) for m in members}
    except (PermissionError, SpotlessError):
        raise
    except (
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        EOFError,
        RuntimeError,
        OSError,
        ArithmeticError,
        ValueError,
    ) as e:
        # A damaged directory of the archive sends its reader to places that no file has, hence the last two.
        raise DataError(
            f"{path} must be an .npz archive, but is cut short, damaged or something else ({e}). Make it anew with "
            "numpy.savez."
        ) from e


def _read_member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        shape, fortran, dtype = _read_header(path, file, member.filename)
        expected = dtype.itemsize * prod(shape)
        # What the header claims is compared with what the archive declares before memory is asked for.
        if expected > member.file_size:
            raise DataError(
                f"{member.filename} in {path} claims the shape {shape} ({expected} bytes), but holds at most "
                f"{member.file_size} bytes. The file is cut short or was tampered with; make it anew."
            )
        content = file.read(expected)
    if len(content) != expected:
        raise DataError(
            f"{member.filename} in {path} must hold {expected} bytes, but has {len(content)}. Make it anew."
        )
    try:
        flat = np.frombuffer(bytearray(content), dtype)
        found = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
    except (ValueError, OverflowError) as e:  # entries of no size, or with a shape of their own
        raise DataError(
            f"{member.filename} in {path} must hold numbers or text in the shape {str(shape)[:60]}, but has entries of "
            f"type {str(dtype)[:60]}. Make it anew with numpy.savez."
        ) from e
    if dtype.kind == "U" and not _is_text(flat):
        raise DataError(f"{member.filename} in {path} must hold text, but has signs that no text has. Make it anew.")
    # Torch takes numbers in the machine's own byte order only.
    return found if dtype.isnative else found.astype(dtype.newbyteorder("="))


def _is_text(flat: NDArray[Any]) -> bool:
    """Whether all signs exist; Python does not check this where it makes text of them."""
    signs = flat.view(np.dtype(np.uint32) if flat.dtype.isnative else np.dtype(np.uint32).newbyteorder())
    return bool(((signs < 0xD800) | ((signs > 0xDFFF) & (signs <= 0x10FFFF))).all())


def _read_header(path: Path, file: Any, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except Exception as e:  # the header is a literal of Python, and its parser complains in many ways
        raise DataError(
            f"{name} in {path} must be a numpy array, but is not ({str(e)[:200]}). Make it anew with numpy.savez."
        ) from e
    if any(side < 0 for side in shape):
        raise DataError(f"{name} in {path} claims the shape {shape}, which cannot be. Make it anew with numpy.savez.")
    if dtype.kind not in "biufcSUMm":
        what = "holds Python objects, which can run code when they are read" if dtype.hasobject else "holds no numbers"
        raise DataError(f"{name} in {path} {what}. Save plain numbers or text arrays.")
    return shape, fortran, dtype
