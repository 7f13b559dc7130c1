"""Files, read with care and written whole.

Written: beside their place, flushed to the disk, then renamed, so that they are either whole or absent. Read, since
strangers may have made them: plain files only, through one held descriptor, no more bytes than were looked at. A named
pipe or a device would never end, and a file that is cut short while it is mapped kills the process. So nothing here is
mapped, and size and kind are asked of the very descriptor that is read.
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from spotlessnet.core.errors import DataError, IntegrityError, ResourceError

PENDING = ".spotless-"
"""How the name of a file that is still being written begins."""


def write_whole(path: Path, content: bytes, *, replace: bool = False, shared: bool = False) -> str:
    """Write `content` to `path` so that no crash leaves half of it, and give its SHA-256.

    The bytes go to a file of their own in the same folder, are flushed, read back and compared, and only then
    renamed; the folder is flushed too. An existing file is refused unless `replace` says so.

    **Arguments:**

    - `shared`: others may read it as far as the umask lets them, such as the server that runs a network. Otherwise
      it is for its owner alone: it holds or betrays rows.
    """
    path = Path(path)
    if path.exists() and not replace:
        raise _exists(path)
    pending = path.parent / f"{PENDING}{os.getpid()}-{uuid.uuid4().hex}"
    digest = hashlib.sha256(content).hexdigest()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_and_flush(pending, content, 0o666 if shared else 0o600)
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
            raise _exists(path) from e
        raise ResourceError(
            f"{path} could not be written ({e.strerror or e}). Free space or choose a folder you may write to; "
            "nothing half-written was left."
        ) from e
    finally:
        _remove_quietly(pending)
    return digest


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files so that it is there with all of them or not at all; an existing one must be empty.

    As one file is: in a folder of its own beside its place, flushed, read back, and renamed only then.
    """
    check_free(path)
    pending = path.parent / f"{PENDING}{os.getpid()}-{uuid.uuid4().hex}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
        pending.mkdir(mode=0o700)
        for name, content in files.items():
            write_whole(pending / name, content)
        os.replace(pending, path)
        _flush_folder(path.parent)
    except OSError as e:
        if isinstance(e, ResourceError):
            raise
        check_free(path)  # another writer may have come first
        raise ResourceError(
            f"{path} could not be written ({e.strerror or e}). Free space or choose a folder you may write to; "
            "nothing half-written was left."
        ) from e
    finally:
        shutil.rmtree(pending, ignore_errors=True)


def check_free(path: Path) -> None:
    """Raise unless a folder may be written at `path`: there is none, or it is empty."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise DataError(f"{path} must be a folder that is new or empty, but is a file or a link. Choose another one.")
    if path.is_dir() and any(path.iterdir()):
        raise DataError(f"{path} holds files already, and nothing is ever overwritten. Choose another folder.")


def _exists(path: Path) -> DataError:
    return DataError(
        f"{path} exists already, and nothing is overwritten unasked. Choose another output, or in Python give "
        "`replace=True`."
    )


def _write_and_flush(path: Path, content: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
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
    found = _leftovers(folder)
    for leftover in found:
        # Of a folder that was being written, nothing was ever seen under its own name.
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            _remove_quietly(leftover)
    return len(found)


def overwrite_leftovers(folder: Path) -> list[str]:
    """As `sweep`, but random bytes go over them first; gives their names."""
    found = _leftovers(folder)
    for leftover in found:
        is_folder = leftover.is_dir() and not leftover.is_symlink()
        for path in leftover.iterdir() if is_folder else [leftover]:
            # A run that was killed between link and unlink left a second name of a file that is to stay.
            if path.lstat().st_nlink > 1:
                path.unlink()
            else:
                overwrite(path)
        if is_folder:
            leftover.rmdir()
    return [leftover.name for leftover in found]


def _leftovers(folder: Path) -> list[Path]:
    """Pending files and folders whose process is gone."""
    found = []
    for path in sorted(folder.glob(f"{PENDING}*")):
        owner = path.name.removeprefix(PENDING).split("-")[0]
        if not (owner.isdigit() and _is_alive(int(owner)) and not _began_after(int(owner), path)):
            found.append(path)
    return found


def overwrite(path: Path) -> None:
    """Put random bytes over a plain file and unlink it; a link is unlinked, and where it leads is left alone."""
    if not path.is_symlink() and path.is_file():
        with path.open("r+b", buffering=0) as stream:
            left = path.stat().st_size
            while left > 0:
                left -= stream.write(secrets.token_bytes(min(left, 1 << 20))) or 0
            os.fsync(stream.fileno())
    path.unlink()


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


SLACK = 2.0
"""Seconds by which clocks of the kernel and of a file system may differ."""


def _began_after(pid: int, path: Path) -> bool:
    """Whether a process began after a file was last written: its number was given anew, and it wrote another."""
    try:
        # After the name, which may hold blanks, the twentieth field: ticks from the machine's start.
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
        return began > path.lstat().st_mtime + SLACK
    except (OSError, ValueError, IndexError, AttributeError):
        return False  # where the system does not tell, a living process keeps its files


def sha256(path: Path) -> str:
    """The SHA-256 of a plain file, read in pieces; a pipe or a device, which may never end, is refused."""
    digest = hashlib.sha256()
    with opened(path) as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def folder_sha256(path: Path) -> str:
    """One SHA-256 for a folder of plain files, the same as `sha256sum * | sha256sum` gives inside it.

    Links and folders in it are refused: what they lead to could change, and the digest would not.
    """
    lines = []
    for file in sorted(path.iterdir(), key=lambda one: one.name.encode()):
        if file.is_symlink() or not file.is_file():
            raise DataError(f"{path} must hold plain files alone, but {file.name[:60]!r} is none. Remove it.")
        lines.append(f"{sha256(file)}  {file.name}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
SPARE = 2
"""How many times a file's size must be free before it is read: once for its bytes, once for what is made of them."""

NOTABLE = 2**26
"""Bytes below which nobody needs to ask whether they are free."""

HOLLOW = 100
"""A large file with less than this fraction of its bytes on the disk is a hole; no trained weights pack so well."""


@contextmanager
def opened(path: Path, what: str = "file", limit: int | None = None) -> Iterator[BinaryIO]:
    """A plain file, open for reading; whatever else stands at `path` is refused, and so is a file above `limit`.

    **Arguments:**

    - `what`: how errors call the file, such as "checkpoint".
    - `limit`: bytes that a file of this kind may have.
    """
    try:
        # Without O_NONBLOCK the opening of a named pipe would wait for a writer, perhaps for ever.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except (FileNotFoundError, NotADirectoryError, ValueError) as e:
        raise DataError(f"There is no {what} at {path}. Check the path.") from e
    except OSError as e:
        # A socket, a circle of links, a name too long: the path is wrong. Anything else is the machine's trouble.
        if e.errno not in (errno.ENXIO, errno.ENODEV, errno.ELOOP, errno.ENAMETOOLONG):
            raise
        raise DataError(f"The {what} {path} cannot be opened ({e.strerror}). Give a plain file.") from e
    try:
        _check(handle, path, what, limit)
        stream = os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise
    with stream:
        yield stream


def _check(handle: int, path: Path, what: str, limit: int | None) -> None:
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        came = KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise DataError(f"The {what} {path} must be a plain file, but is {came}. Save it to a file first.")
    if limit is not None and found.st_size > limit:
        raise DataError(f"The {what} {path} is longer than {limit} bytes (it has {found.st_size}), so it is not one.")
    if found.st_size > NOTABLE and _is_hollow(handle, found):
        raise DataError(
            f"The {what} {path} claims {found.st_size} bytes, but hardly any of them are on the disk. Copy it again."
        )


def _is_hollow(handle: int, found: os.stat_result) -> bool:
    """Whether a file is almost all hole: such a one claims any size and takes none."""
    blocks = getattr(found, "st_blocks", None)
    if blocks:
        return 512 * blocks * HOLLOW < found.st_size
    try:  # some systems do not count blocks; no data at all is a hole for certain
        os.lseek(handle, 0, getattr(os, "SEEK_DATA", os.SEEK_SET))
    except OSError as e:
        return e.errno == errno.ENXIO
    os.lseek(handle, 0, os.SEEK_SET)
    return False


def read_whole(path: Path, what: str = "file", limit: int | None = None) -> bytearray:
    """All bytes of a plain file, as many as it had when it was opened; one that changes meanwhile is refused."""
    with opened(path, what, limit) as stream:
        return read_rest(stream, path, what)


def free_bytes() -> float:
    """Bytes that this process may still ask for."""
    # Imports torch, which a desk's own process does without: it reads no large files.
    from spotlessnet.core.progress import free_bytes as left

    return left()


def read_rest(stream: BinaryIO, path: Path, what: str = "file") -> bytearray:
    """What is left of an open file, into memory that was seen to be free."""
    size = max(os.fstat(stream.fileno()).st_size - stream.tell(), 0)
    if size > NOTABLE and SPARE * size > (free := free_bytes()):
        raise ResourceError(
            f"The {what} {path} has {size / 2**30:.3g} GiB, but only {free / 2**30:.3g} GiB of memory are free. "
            "Read it on a larger machine."
        )
    # As many bytes as were checked above, allocated once: a file that grows meanwhile is refused, not followed.
    content = bytearray(size)
    view = memoryview(content)
    got = 0
    while got < size and (piece := stream.readinto(view[got:])):  # type: ignore[attr-defined]  # buffered, so it has it
        got += piece
    if got < size or stream.read(1):
        raise DataError(f"The {what} {path} changed while it was read. Wait until nobody writes to it, and try again.")
    return content


@dataclass(frozen=True)
class Look:
    """A file or folder as it was found: digests of the file, or of each in a folder, and the file system's marks."""

    path: Path
    digests: Mapping[str, str]
    marks: Mapping[str, tuple[int, ...]]

    @staticmethod
    def at(path: Path) -> "Look":
        """Read it all once."""
        # Of a folder only shards and their index are ever read.
        inside = sorted(path.iterdir()) if path.is_dir() else []
        shards = [p for p in inside if p.is_file() and p.suffix in (".safetensors", ".json")]
        chosen = shards if path.is_dir() else [path]
        marks = {p.name: _marks(p) for p in chosen}
        return Look(path, {p.name: sha256(p) for p in chosen}, marks)

    @property
    def sha256(self) -> str:
        """Of a file's bytes; of a folder, of the list of its files' digests."""
        if not self.path.is_dir():
            return next(iter(self.digests.values()))
        return hashlib.sha256(json.dumps(dict(self.digests), sort_keys=True).encode()).hexdigest()

    def check_unchanged(self, flag: str) -> None:
        """Raise if it is not what it was: what was read in between may have been something else."""
        try:
            same = Look.at(self.path) == self
        except (FileNotFoundError, NotADirectoryError):
            same = False  # any other trouble is the machine's, and says nothing of the file
        if not same:
            raise IntegrityError(
                f"{flag} {self.path} changed while it was read, so nobody could say what was used. Nothing "
                "was written; run the request again when nobody writes to it."
            )


def _marks(path: Path) -> tuple[int, ...]:
    found = os.stat(path)
    # The last is set by the system alone: a file that was exchanged and put back has another.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
