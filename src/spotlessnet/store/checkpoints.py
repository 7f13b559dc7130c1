"""Checkpoints: read without running a line of code from them, checked before any work, written whole.

Safetensors files are read and never mapped: one that is cut short meanwhile is an error and not a killed process.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors.torch import save
from torch import Tensor, nn

from spotlessnet.core.data import GoneRows
from spotlessnet.core.errors import DataError, MismatchError, NumericsError, ResourceError
from spotlessnet.core.files import opened, read_rest, read_whole, write_whole
from spotlessnet.store.pickled import LARGEST, MOST_SIDES, is_countable, read_state

LONGEST_HEADER = 2**24
"""Bytes; parsed, a header takes twenty times its length, and one of a hundred thousand tensors stays below this."""

MOST_TENSORS = 2**16
"""In one file, or in one folder of shards. Each takes thirty microseconds before anything is known of it."""

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
"""The number formats that networks and statistics are made of. Others, such as F8_E4M3, need scales kept elsewhere."""


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
    head = stream.read(length)
    # Before it is parsed, which takes a while; each tensor has one, and the text beside them may have some as well.
    if max(head.count(b"{"), head.count(b"[") // 2) > 2 * MOST_TENSORS:
        raise _unreadable(path, f"its header names more than {MOST_TENSORS} tensors")
    try:
        found = json.loads(head.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as e:
        raise _unreadable(path, f"its header is no JSON: {str(e)[:80] or type(e).__name__}") from e
    if not isinstance(found, dict):
        raise _unreadable(path, "its header is no JSON object")
    text = found.pop("__metadata__", None) or {}
    if not isinstance(text, dict) or not all(isinstance(value, str) for value in text.values()):
        raise _unreadable(path, "its __metadata__ must be text by name")
    if len(found) > MOST_TENSORS:
        raise _unreadable(path, f"its header names more than {MOST_TENSORS} tensors")
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
    # Before they are multiplied: a product of many is a number that takes minutes, and no tensor has so many.
    if len(shape) > MOST_SIDES or not is_countable(shape):
        raise _unreadable(path, f"the tensor {name[:60]!r} has a shape that cannot be")
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


def to_bytes(tensors: dict[str, Tensor], text: Mapping[str, str]) -> bytes:
    """Like `safetensors.torch.save`, whose header lists the text in an order that differs from run to run."""
    content = save(tensors, dict(text))
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    # The library's own order of tensors, which is that of their offsets; only the text is put in order.
    ordered = {"__metadata__": dict(sorted(header.pop("__metadata__", {}).items())), **header}
    named = json.dumps(ordered, separators=(",", ":"), ensure_ascii=False).encode()
    named += b" " * (-len(named) % 8)
    return struct.pack("<Q", len(named)) + named + content[8 + length :]


AFTER = "after_requests"
"""What the text of a scrubbed network's file holds, and the module itself as an attribute."""

SINGLE = "model.safetensors"
"""The file of weights in a folder that is not divided into shards."""

PREFIXES = ("model.", "module.", "_orig_mod.", "network.", "net.")
"""What Lightning, DataParallel and torch.compile put before every name."""


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The named tensors of a checkpoint: `.safetensors`, a folder of shards, or a `.pt` file of plain tensors.

    Plain files only, and what they claim is compared with their size before memory is asked for. A `.pt` file is
    taken apart by a reader that knows tensors and plain values and nothing else: one that would run code is refused.
    """
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    if not path.exists():
        raise DataError(
            f"There is no checkpoint at {path}. Give a .safetensors file, a .pt file or a folder of shards."
        )
    if path.suffix == ".safetensors":
        return read_tensors(path)
    if path.suffix in {".pt", ".pth", ".bin", ".ckpt"}:
        return read_state(path)
    raise DataError(
        f"The checkpoint {path} must end in .safetensors, .pt, .pth, .bin or .ckpt, but ends in {path.suffix!r}."
    )


def read_metadata(path: Path) -> dict[str, str]:
    """The text that a safetensors file carries beside its tensors."""
    return read_text(path)


def _read_folder(folder: Path) -> dict[str, Tensor]:
    """A folder as Hugging Face writes it: one `model.safetensors`, or shards with an index."""
    single, index = folder / SINGLE, folder / "model.safetensors.index.json"
    if single.is_file():
        return read_tensors(single)
    if not index.is_file():
        raise DataError(
            f"The folder {folder} holds neither model.safetensors nor an index of shards. Give the file itself."
        )
    try:
        shards = set(json.loads(read_whole(index, "index", LONGEST_HEADER))["weight_map"].values())
    except (DataError, ResourceError):
        raise
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as e:
        raise DataError(f"{index} is not a readable index of shards ({_first_line(e)}). Save the model again.") from e
    tensors: dict[str, Tensor] = {}
    for name in sorted(str(shard) for shard in shards):
        # Before anything is opened: an index must not lead out of its own folder.
        if Path(name).name != name:
            raise DataError(
                f"{index} points outside its folder ({name[:60]!r}), which is refused. Save the model again."
            )
        if not (folder / name).is_file():
            raise DataError(f"The shard {name} named in {index} is missing. Copy the whole folder.")
        tensors |= read_tensors(folder / name)
        if len(tensors) > MOST_TENSORS:
            raise DataError(f"The shards in {folder} hold more than {MOST_TENSORS} tensors. Give fewer.")
    return tensors


def load_into(model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Put a checkpoint's weights into a module, after checking names, shapes, number formats and finiteness.

    Prefixes that wrappers add are taken off where that makes the names fit.
    """
    wanted = model.state_dict()
    named = fit_names(tensors, wanted)
    missing = [n for n in wanted if n not in named]
    extra = [n for n in named if n not in wanted]
    if missing or extra:
        raise MismatchError(
            f"The checkpoint does not fit the network: {len(missing)} parameters missing"
            f"{f' (first {missing[0]!r})' if missing else ''}, {len(extra)} unknown"
            f"{f' (first {extra[0][:60]!r})' if extra else ''}. Build the network that the checkpoint was trained with."
        )
    for name, value in named.items():
        if value.shape != wanted[name].shape:
            raise MismatchError(
                f"Parameter {name!r} has shape {tuple(value.shape)} in the checkpoint and {tuple(wanted[name].shape)} "
                "in the network. Build the network that the checkpoint was trained with."
            )
        kinds = [(v.is_floating_point(), v.is_complex()) for v in (value, wanted[name])]
        if kinds[0] != kinds[1]:
            raise MismatchError(
                f"Parameter {name!r} is {value.dtype} in the checkpoint, {wanted[name].dtype} in the network."
            )
        # After shape and format, so that the message names the first thing that is wrong; before any weight is changed.
        if any(kinds[0]) and not bool(value.isfinite().all()):
            raise NumericsError(
                f"Parameter {name!r} of the checkpoint is not finite. Use a checkpoint before it diverged."
            )
    # Only now, when every tensor has passed: a refused checkpoint leaves the module as it was.
    model.load_state_dict(named)
    return model


def fit_names(tensors: Mapping[str, Tensor], wanted: Mapping[str, Any]) -> dict[str, Tensor]:
    """The same tensors under the network's names, prefixes of wrappers taken off or put on where that helps."""
    named = dict(tensors)
    for _ in range(len(PREFIXES)):
        if any(name in wanted for name in named):
            break
        prefix = next((p for p in PREFIXES if all(name.startswith(p) for name in named)), None)
        if prefix is None:
            break
        named = {name.removeprefix(prefix): value for name, value in named.items()}
    if not any(name in wanted for name in named):
        for prefix in PREFIXES:
            if all(prefix + name in wanted for name in named):
                return {prefix + name: value for name, value in named.items()}
    return named


def write_weights(
    path: str | Path, model: nn.Module, text: Mapping[str, str] | None = None, *, replace: bool = False
) -> str:
    """Write a module's state as safetensors, whole or not at all, and give the file's SHA-256."""
    return write_whole(Path(path), weights_as_bytes(model, text), replace=replace, shared=True)


def weights_as_bytes(model: nn.Module, text: Mapping[str, str] | None = None) -> bytes:
    """A module's state as the bytes of a safetensors file; refused if it is not finite."""
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    for name, value in state.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise NumericsError(
                f"Parameter {name!r} is not finite, so nothing was written. Lower the noise or the step."
            )
    usual = {"format": "pt", **({AFTER: "1"} if is_following(model) else {})}
    return to_bytes(_untied(state), dict(text or usual))


class Follows:
    """A module's mark that a request gave it, with the rows that this request and those before it forgot.

    Copies of the module share it. In a pickle it is `True` and nothing else: digests, with the salt beside them, would
    let whoever gets the file test a guess at a row.
    """

    def __init__(self, gone: Sequence[GoneRows] = ()) -> None:
        self.gone = tuple(gone)

    def __copy__(self) -> "Follows":
        return self

    def __deepcopy__(self, memo: object) -> "Follows":
        return self

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return bool, (1,)


def following(model: nn.Module, gone: GoneRows | None = None) -> nn.Module:
    """The module, of which `write_weights` says that it follows a request: that there was one, and nothing else."""
    vars(model)[AFTER] = Follows([*forgotten_by(model), *([] if gone is None else [gone])])
    return model


def is_following(model: nn.Module) -> bool:
    """Whether a request gave the module, or the one that it is a copy of."""
    return bool(vars(model).get(AFTER))


def forgotten_by(model: nn.Module) -> tuple[GoneRows, ...]:
    """The rows that requests of this process forgot, which led to the module."""
    mark = vars(model).get(AFTER)
    return mark.gone if isinstance(mark, Follows) else ()


def _untied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share memory as copies of their own: the format refuses shared ones."""
    seen: set[int] = set()
    out = {}
    for name, value in state.items():
        out[name] = value.clone() if value.data_ptr() in seen else value
        seen.add(value.data_ptr())
    return out


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:160]
