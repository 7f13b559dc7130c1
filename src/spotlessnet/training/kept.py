"""Finished trainings in a folder: one safetensors file each, written whole, named after all that decided its result.

They were trained with rows that a request may remove, so the folder is for its owner alone and says that it must go.
"""

import hashlib
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from spotlessnet.core.errors import DataError, ResourceError
from spotlessnet.core.files import PENDING, overwrite, sweep, write_whole
from spotlessnet.store.checkpoints import read_tensors, read_text, to_bytes

FORMAT = "spotlessnet kept training 1"
NAME = re.compile(r"[0-9a-f]{64}\.safetensors")
NOTE = "DESTROY.txt"
TEXT = (
    "Networks in this folder were trained, by an audit or as fold models, with rows that may have been forgotten "
    "since.\nThey are here so that an interrupted run can go on. `spotless purge` with this folder destroys them.\n"
)

KNOW_THE_ROWS = (
    "Networks that were kept so that an interrupted audit can go on were trained on the forgotten rows: destroy their "
    "folder with `spotless purge`."
)
"""What reports and receipts say of them."""


@dataclass(frozen=True)
class Kept:
    """The folder; made when the first training is written to it."""

    folder: Path

    def sweep(self) -> None:
        """Remove what a killed run left half-written."""
        if self.folder.is_dir():
            sweep(self.folder)

    def read(self, key: str) -> dict[str, Tensor] | None:
        """What was kept under this key; `None` where nothing was, or where it is damaged, which is said."""
        path = self.path(key)
        if not path.exists():
            return None
        try:
            text = read_text(path)
            tensors = read_tensors(path)
        except (DataError, OSError) as error:
            _say_damaged(path, str(error))
            return None
        if text.get("format") != FORMAT or text.get("key") != key:
            _say_damaged(path, "it is of another training")
        elif text.get("sha256") != _digest(tensors):
            _say_damaged(path, "its numbers are not those that were written")
        else:
            return tensors
        return None

    def write(self, key: str, found: dict[str, Tensor]) -> None:
        """Keep what came of a training."""
        if not (self.folder / NOTE).exists():
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as e:
                raise ResourceError(f"{self.folder} cannot be made ({e.strerror}). Choose another folder.") from e
            write_whole(self.folder / NOTE, TEXT.encode(), replace=True)
        tensors = {name: value.detach().cpu().contiguous().clone() for name, value in found.items()}
        text = {"format": FORMAT, "key": key, "sha256": _digest(tensors)}
        write_whole(self.path(key), to_bytes(tensors, text), replace=True)

    def path(self, key: str) -> Path:
        """The file of a key, whether it is there or not."""
        return self.folder / f"{key}.safetensors"

    @property
    def files(self) -> list[Path]:
        """What was written here; nothing else in the folder is ever touched."""
        inside = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        plain = [p for p in inside if p.is_file() and not p.is_symlink()]
        return [p for p in plain if NAME.fullmatch(p.name) or p.name == NOTE or p.name.startswith(PENDING)]

    @property
    def is_one(self) -> bool:
        """Whether trainings were kept here."""
        return (self.folder / NOTE).is_file()

    def destroy(self) -> list[str]:
        """Overwrite and unlink everything that was kept, and the folder if nothing else is in it; the files' names."""
        files = self.files
        try:
            # The note goes last: a run that was killed before leaves it, and is done again.
            for path in sorted(files, key=lambda p: p.name == NOTE):
                overwrite(path)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()
        except OSError as e:
            raise ResourceError(
                f"{self.folder} could not be destroyed whole ({e.strerror or e}). Some of it is left; run it again."
            ) from e
        return [path.name for path in files]


def _say_damaged(path: Path, why: str) -> None:
    warnings.warn(f"The kept training {path} is damaged ({why}), so it is done again.", stacklevel=3)


def _digest(tensors: dict[str, Tensor]) -> str:
    """Of names, number formats, shapes and bytes."""
    sha = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        sha.update(repr((name, str(value.dtype), tuple(value.shape))).encode())
        sha.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
