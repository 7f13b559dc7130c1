"""Zip archives that strangers made: what one claims is held against its size before memory is asked for."""

import os
import zipfile
from pathlib import Path
from typing import BinaryIO

from spotlessnet.core.errors import DataError

DIRECTORY = 2**24
"""Bytes that the list of an archive's members may have; read, it takes ten times as much memory."""

RATIO = 100
SMALL = 2**26
"""How many times its size an archive may unpack to; one that unpacks to less than `SMALL` bytes may do as it likes."""


def open_zip(stream: BinaryIO, path: Path, *, ratio: int = RATIO) -> zipfile.ZipFile:
    """An archive whose list of members has been looked at.

    **Arguments:**

    - `ratio`: refuse an archive that would unpack to more than so many times its size; 1 allows no compression.
    """
    size = os.fstat(stream.fileno()).st_size
    # The class below reads the whole list at once, so its length must be known before.
    end = zipfile._EndRecData(stream)  # type: ignore[attr-defined]  # private, but as old as the module
    if end is None:
        raise zipfile.BadZipFile("it has no list of members")
    if end[zipfile._ECD_SIZE] > DIRECTORY:  # type: ignore[attr-defined]
        raise DataError(f"{path} lists more members than any file of its kind has. Make it anew.")
    stream.seek(0)
    archive = zipfile.ZipFile(stream)
    members = archive.infolist()
    names = {member.filename for member in members}
    if len(names) < len(members):
        raise DataError(f"{path} has two members of one name, so it is not clear what it holds. Make it anew.")
    packed, unpacked = sum(m.compress_size for m in members), sum(m.file_size for m in members)
    if packed > size:
        raise DataError(f"The members of {path} overlap: they claim {packed} of its {size} bytes. Make it anew.")
    if unpacked > max(SMALL if ratio > 1 else 0, ratio * size):
        raise DataError(
            f"{path} has {size} bytes and would unpack to {unpacked}, more than {ratio} times as much. Unpack it "
            "yourself if you trust it, and save it without compression."
        )
    return archive
