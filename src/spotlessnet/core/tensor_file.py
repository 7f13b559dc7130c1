"""Safetensors files, read and never mapped: a file that is cut short meanwhile is an error and not a killed process."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from spotlessnet.core.errors import DataError
from spotlessnet.core.reading import opened, read_rest

LARGEST = 64 * 2**30
"""Bytes; a checkpoint above this is refused before anything is read."""

LONGEST_HEADER = 2**24
"""Bytes; parsed, a header takes twenty times its length, and one of a hundred thousand tensors stays below this."""

FORMATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
"""The number formats that networks and memories are made of. Others, such as F8_E4M3, need scales kept elsewhere."""


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies among the bytes after the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    with opened(path, "checkpoint", LARGEST) as stream:
        size = _size(stream, path)
        entries, _, begin = _header(stream, path, size)
        # Before the body is read: what the header claims must fill the file exactly.
        _check_covers(path, entries, size - begin)
        body = read_rest(stream, path, "checkpoint")
    return {name: _tensor(body, entry) for name, entry in entries.items()}


def read_text(path: Path) -> dict[str, str]:
    """The text that a safetensors file carries beside its tensors."""
    with opened(path, "checkpoint", LARGEST) as stream:
        return _header(stream, path, _size(stream, path))[1]


def _size(stream: BinaryIO, path: Path) -> int:
    size = stream.seek(0, 2)
    stream.seek(0)
    if size == 0:
        raise DataError(f"The checkpoint {path} is empty. Copy it again.")
    return size


def _header(stream: BinaryIO, path: Path, size: int) -> tuple[dict[str, Entry], dict[str, str], int]:
    """Entries, text, and where the tensors' bytes begin."""
    head = stream.read(40)
    if head.startswith(b"version https://git-lfs"):
        raise DataError(f"{path} is a Git LFS pointer, not the weights themselves. Run `git lfs pull`.")
    if len(head) < 8:
        raise _unreadable(path, "it has less than eight bytes")
    (length,) = struct.unpack("<Q", head[:8])
    # Against the file before memory is asked for: eight bytes can claim any length.
    if length > size - 8:
        raise DataError(
            f"{path} is truncated or not a safetensors file: its header is longer than the file. Copy it again."
        )
    if length > LONGEST_HEADER:
        raise _unreadable(path, f"its header has {length} bytes, more than {LONGEST_HEADER}")
    stream.seek(8)
    try:
        found = json.loads(stream.read(length).decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as e:
        raise _unreadable(path, f"its header is no JSON: {str(e)[:80] or type(e).__name__}") from e
    if not isinstance(found, dict):
        raise _unreadable(path, "its header is no JSON object")
    text = found.pop("__metadata__", None) or {}
    if not isinstance(text, dict) or not all(isinstance(value, str) for value in text.values()):
        raise _unreadable(path, "its __metadata__ must be text by name")
    return {name: _entry(path, name, value) for name, value in found.items()}, text, 8 + length


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice")
    return found


def _entry(path: Path, name: str, value: Any) -> Entry:
    match value:
        case {"dtype": str(kind), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if len(value) == 3:
            pass
        case _:
            raise _unreadable(path, f"the tensor {name[:60]!r} must have dtype, shape and data_offsets")
    if kind not in FORMATS:
        raise DataError(
            f"{path} is not a readable safetensors file of weights: the tensor {name[:60]!r} has the number format "
            f"{kind[:20]!r}, but must have one of {', '.join(FORMATS)}. Save it as F32."
        )
    # `true` is a number to Python, and to nobody else.
    if not all(type(n) is int and 0 <= n < 2**63 for n in (*shape, begin, end)) or begin > end:
        raise _unreadable(path, f"the tensor {name[:60]!r} has a shape or offsets that cannot be")
    if prod(shape) * FORMATS[kind].itemsize != end - begin:
        raise _unreadable(path, f"the tensor {name[:60]!r} must fill its bytes, but does not")
    try:
        name.encode()
    except UnicodeEncodeError as e:
        raise _unreadable(path, "the name of a tensor is not text") from e
    return Entry(FORMATS[kind], tuple(shape), begin, end)


def _check_covers(path: Path, entries: Mapping[str, Entry], size: int) -> None:
    """Each byte must belong to one tensor: a hole could hide something, an overlap could be any number of bytes."""
    at = 0
    for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != at:
            raise _unreadable(path, "its tensors overlap or leave a hole")
        at = entry.end
    if at != size:
        raise _unreadable(path, f"its tensors must fill {size} bytes, but name {at}")


def _tensor(body: bytearray, entry: Entry) -> Tensor:
    if entry.begin == entry.end:
        return torch.empty(entry.shape, dtype=entry.dtype)
    # A number that does not begin where numbers of its size may begin gets memory of its own.
    if entry.begin % entry.dtype.itemsize:
        return torch.frombuffer(body[entry.begin : entry.end], dtype=entry.dtype).reshape(entry.shape)
    count = (entry.end - entry.begin) // entry.dtype.itemsize
    return torch.frombuffer(body, dtype=entry.dtype, count=count, offset=entry.begin).reshape(entry.shape)


def _unreadable(path: Path, why: str) -> DataError:
    return DataError(f"{path} is not a readable safetensors file ({why}). Save it again.")
