"""Files that are either whole or absent: written beside their place, flushed to the disk, then renamed."""

import hashlib
import os
import uuid
from pathlib import Path

from spotlessnet.core.errors import DataError, ResourceError
from spotlessnet.core.reading import opened

PENDING = ".spotless-"
"""How the name of a file that is still being written begins."""


def write_whole(path: Path, content: bytes, *, replace: bool = False) -> str:
    """Write `content` to `path` so that no crash leaves half of it, and give its SHA-256.

    The bytes go to a file of their own in the same folder, are flushed, read back and compared, and only then
    renamed; the folder is flushed too. An existing file is refused unless `replace` says so.
    """
    path = Path(path)
    if path.exists() and not replace:
        raise DataError(f"{path} exists already, and nothing is ever overwritten. Choose another output.")
    pending = path.parent / f"{PENDING}{os.getpid()}-{uuid.uuid4().hex}"
    digest = hashlib.sha256(content).hexdigest()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_and_flush(pending, content)
        if sha256(pending) != digest:
            raise ResourceError(f"{path} did not read back as written. The disk may be failing; nothing was changed.")
        if not replace:
            # A hard link refuses an existing name, so two writers cannot overwrite each other.
            os.link(pending, path)
        else:
            os.replace(pending, path)
        _flush_folder(path.parent)
    except OSError as e:
        if isinstance(e, ResourceError):
            raise
        if isinstance(e, FileExistsError):
            raise DataError(f"{path} exists already, and nothing is ever overwritten. Choose another output.") from e
        raise ResourceError(
            f"{path} could not be written ({e.strerror or e}). Free space or choose a folder you may write to; "
            "nothing half-written was left."
        ) from e
    finally:
        _remove_quietly(pending)
    return digest


def _write_and_flush(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_quietly(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        # A leftover carries our prefix and is swept by the next run; the error that brought us here matters more.
        return


def sweep(folder: Path) -> int:
    """Remove files that a killed run left half-written in `folder`; those of a living process stay."""
    swept = 0
    for leftover in folder.glob(f"{PENDING}*"):
        owner = leftover.name.removeprefix(PENDING).split("-")[0]
        if not (owner.isdigit() and _is_alive(int(owner))):
            _remove_quietly(leftover)
            swept += 1
    return swept


def _is_alive(pid: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def sha256(path: Path) -> str:
    """The SHA-256 of a plain file, read in pieces; a pipe or a device, which may never end, is refused."""
    digest = hashlib.sha256()
    with opened(path) as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
