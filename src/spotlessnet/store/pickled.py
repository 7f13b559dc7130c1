"""`.pt` files as data: a reader that knows tensors and plain values, calls nothing else, and trusts no size.

What a file claims (how long a storage is, which part of it a tensor shows) is held against the bytes that are there,
so that a small file cannot become a large tensor, and a tensor cannot show memory that is not its own.
"""

import io
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import torch
from torch import Tensor

from spotlessnet.core.errors import DataError, SpotlessError
from spotlessnet.core.files import opened, read_rest
from spotlessnet.core.pickling import DEEPEST, ShallowUnpickler, Step
from spotlessnet.core.zips import open_zip

LARGEST = 64 * 2**30
"""Bytes; a checkpoint above this is refused before anything is read."""

WRAPPING = ("state_dict", "model_state_dict", "model")
"""Under which name training scripts keep the weights among other things."""

LONGEST_PICKLE = 2**26
"""Bytes of the part that describes the tensors."""

MAGIC = 0x1950A86A20F9469CFC6C
"""How files begin that torch wrote before version 1.6, which are no archives."""

MOST_SIDES = 64
"""Of a tensor's shape; numpy has the same limit, and much of torch."""

STORAGES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}

Fetch = Callable[[str, torch.dtype, int], Tensor]
"""The numbers of a storage by its key: as many of that type as the file claims, or an error."""


class _Thing:
    """Stands for whatever a file names that is no tensor (a device, a number format); it does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


class _Dictionary(dict[Any, Any]):
    """Stands for the ordered dictionary, whose attributes, such as `_metadata`, are dropped."""

    def __setstate__(self, state: Any) -> None: ...


class _Storage(str):
    """The name of a type of storage; calling it is refused, since it is a name."""


def read_state(path: Path) -> dict[str, Tensor]:
    """The named tensors of a `.pt`, `.pth`, `.bin` or `.ckpt` file."""
    return _named_tensors(path, read_content(path))


def read_content(path: Path) -> Any:
    """All that such a file holds: tensors and plain values, whatever else it names as things that do nothing."""
    try:
        with opened(path, "checkpoint", LARGEST) as stream:
            head = stream.read(4)
            stream.seek(0)
            if not head:
                raise DataError(f"The checkpoint {path} is empty. Copy it again.")
            # By the first bytes and not by the name: torch writes both formats under any ending.
            return _from_archive(stream, path) if head == b"PK\x03\x04" else _from_stream(stream, path)
    except SpotlessError:
        raise
    except Exception as e:  # a damaged pickle or archive fails in many ways; all of them mean: not plain weights
        lines = str(e).strip().splitlines()
        raise DataError(
            f"{path} holds more than plain tensors, or is damaged ({(lines[0] if lines else type(e).__name__)[:160]}), "
            "and code in a checkpoint is never run. Convert it: "
            "`safetensors.torch.save_file(model.state_dict(), 'model.safetensors')`."
        ) from e


def _named_tensors(path: Path, content: Any) -> dict[str, Tensor]:
    for _ in range(DEEPEST):  # a file may wrap itself in itself
        if not isinstance(content, Mapping) or any(isinstance(v, Tensor) for v in content.values()):
            break
        inner = next((content[name] for name in WRAPPING if isinstance(content.get(name), Mapping)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, Mapping):
        raise DataError(
            f"{path} must hold a state dict, but holds {type(content).__name__}. Save `model.state_dict()`."
        )
    tensors = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise DataError(f"{path} holds no tensor. Save `model.state_dict()`.")
    if not all(isinstance(name, str) and _is_text(name) for name in tensors):
        raise DataError(f"{path} must name its tensors by text, but does not. Save `model.state_dict()`.")
    return tensors


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _from_archive(stream: BinaryIO, path: Path) -> Any:
    archive = open_zip(stream, path, ratio=1)
    members = {member.filename: member for member in archive.infolist()}
    pickles = [name for name in members if name.rpartition("/")[2] == "data.pkl"]
    # Two descriptions would let one be checked and the other be used.
    if len(pickles) != 1:
        raise zipfile.BadZipFile("it is an archive, but not one that torch.save writes")
    root = pickles[0].removesuffix("data.pkl")
    order = f"{root}byteorder"
    if order in members and archive.read(order) != b"little":
        raise pickle.UnpicklingError("numbers in another byte order")
    # Before it is unpacked: a description unfolds into objects many times its own size.
    if members[pickles[0]].file_size > LONGEST_PICKLE:
        raise pickle.UnpicklingError("a description longer than any network has")
    seen: dict[str, Tensor] = {}

    def fetch(key: str, dtype: torch.dtype, count: int) -> Tensor:
        member = members[f"{root}data/{key}"]
        # The archive says how long a member is; only if the description agrees is memory asked for.
        if member.file_size != count * dtype.itemsize:
            raise pickle.UnpicklingError(f"a storage of {member.file_size} bytes that claims {count} numbers")
        if key not in seen:
            seen[key] = _flat(bytearray(archive.read(member)), dtype)
        return seen[key].view(dtype)

    return _Reader(io.BytesIO(archive.read(pickles[0])), fetch).load()


def _from_stream(stream: BinaryIO, path: Path) -> Any:
    """The older format: five pickles, then each storage as its length and its numbers."""
    content = io.BytesIO(read_rest(stream, path, "checkpoint"))
    size = content.getbuffer().nbytes
    wanted: dict[str, Tensor] = {}
    claimed = 0

    def fetch(key: str, dtype: torch.dtype, count: int) -> Tensor:
        nonlocal claimed
        if key not in wanted:
            # In the older format numbers follow their description, so its claims are added up against the whole file.
            claimed += count * dtype.itemsize
            if claimed > size:
                raise pickle.UnpicklingError("storages that are longer than the file")
            wanted[key] = torch.empty(count, dtype=dtype)
        if wanted[key].dtype != dtype or wanted[key].numel() != count:
            raise pickle.UnpicklingError("a storage with two sizes")
        return wanted[key]

    reader = _Reader(content, fetch)  # one for all five, so that their work is counted together
    if (began := reader.load()) != MAGIC:
        raise pickle.UnpicklingError(f"a pickle of {type(began).__name__} that torch.save did not write")
    _version, system, found, keys = (reader.load() for _ in range(4))
    if not (isinstance(system, Mapping) and system.get("little_endian") is True):
        raise pickle.UnpicklingError("numbers in another byte order")
    if not isinstance(keys, list) or not all(isinstance(k, str) for k in keys) or set(keys) != set(wanted):
        raise pickle.UnpicklingError("storages that do not belong to its tensors")
    for key in keys:
        flat = wanted[key]
        head, raw = content.read(8), content.read(flat.numel() * flat.element_size())
        if len(head) < 8 or struct.unpack("<q", head)[0] != flat.numel() or len(raw) < flat.nbytes:
            raise pickle.UnpicklingError("a storage that is cut short")
        flat.copy_(_flat(bytearray(raw), flat.dtype))
    return found


def _flat(raw: bytearray, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)


def is_countable(shape: Sequence[int]) -> bool:
    """Whether torch can number the entries of a tensor, also of one without any: it multiplies sides all the same."""
    return prod(max(side, 1) for side in shape) < 2**59


def _rebuild(flat: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> Tensor:
    """The part of a storage that a tensor shows; one that shows a number twice could be any size, and is refused."""
    if not isinstance(flat, Tensor) or not isinstance(shape, tuple) or not isinstance(stride, tuple):
        raise pickle.UnpicklingError("a tensor without a storage")
    numbers = (offset, *shape, *stride)
    if len(shape) != len(stride) or not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
        raise pickle.UnpicklingError("a tensor with a shape that cannot be")
    if len(shape) > MOST_SIDES or not is_countable(shape):
        raise pickle.UnpicklingError("a tensor with a shape that cannot be")
    if 0 in shape:
        return torch.empty(shape, dtype=flat.dtype)
    # Sorted by stride, each axis must step over all that the ones before it span: then no number is shown twice.
    span = 1
    for step, side in sorted((step, side) for step, side in zip(stride, shape, strict=True) if side > 1):
        if step < span:
            raise pickle.UnpicklingError(f"a tensor of shape {shape} that shows the same numbers again and again")
        span = step * (side - 1) + span
    if offset + span > flat.numel():
        raise pickle.UnpicklingError("a tensor that reaches beyond its storage")
    return flat.as_strided(shape, stride, offset)


def _first(*parts: Any) -> Any:
    return parts[0]


def _of_type(rebuild: Any, _kind: Any, parts: Any, _state: Any) -> Any:
    if rebuild not in (_rebuild, _first) or not isinstance(parts, tuple):
        raise pickle.UnpicklingError("a tensor of a kind of its own")
    return rebuild(*parts)


def _encode(text: Any, _encoding: Any = None) -> bytes:
    if not isinstance(text, str):
        raise pickle.UnpicklingError("bytes that are not written as text")
    return text.encode("latin1")


KNOWN: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_parameter"): _first,
    ("torch._utils", "_rebuild_parameter_with_state"): _first,
    ("torch._tensor", "_rebuild_from_type_v2"): _of_type,
    ("torch.nn.parameter", "Parameter"): _Thing,
    ("torch", "Tensor"): _Thing,
    ("torch", "Size"): _Thing,
    ("torch", "device"): _Thing,
    ("torch.serialization", "_get_layout"): _Thing,
    ("collections", "OrderedDict"): _Dictionary,
    ("collections", "Counter"): _Dictionary,
    ("_codecs", "encode"): _encode,
    **{(module, name): _Thing for module in ("builtins", "__builtin__") for name in ("set", "complex", "bytearray")},
    **{("torch", name): _Storage(name) for name in (*STORAGES, "UntypedStorage")},
    **{("torch", str(dtype).removeprefix("torch.")): _Thing for dtype in STORAGES.values()},
}
"""All that a file may name, each with what it gets in its place."""


def _only(step: Step, kinds: tuple[type, ...], place: int | None) -> Step:
    """Change what stands at `place` of the stack, or below its mark, if it is of these kinds.

    A tensor can be indexed and set as well, and may become any size by that.
    """

    def checked(reader: "_Reader") -> None:
        changed = reader.metastack[-1][-1] if place is None else reader.stack[place]
        if not isinstance(changed, kinds):
            raise pickle.UnpicklingError(f"a change to a {type(changed).__name__}")
        step(reader)

    return checked


SAFE = ShallowUnpickler.dispatch

CHECKED = {
    pickle.BUILD[0]: _only(SAFE[pickle.BUILD[0]], (_Thing, _Dictionary), -2),
    pickle.SETITEM[0]: _only(SAFE[pickle.SETITEM[0]], (dict,), -3),
    pickle.SETITEMS[0]: _only(SAFE[pickle.SETITEMS[0]], (dict,), None),
    pickle.APPEND[0]: _only(SAFE[pickle.APPEND[0]], (list,), -2),
    pickle.APPENDS[0]: _only(SAFE[pickle.APPENDS[0]], (list,), None),
    pickle.ADDITEMS[0]: _only(SAFE[pickle.ADDITEMS[0]], (set,), None),
}


class _Reader(ShallowUnpickler):
    dispatch: ClassVar[dict[int, Step]] = {**SAFE, **CHECKED}

    def __init__(self, file: Any, fetch: Fetch) -> None:
        super().__init__(file, encoding="utf-8")
        self._fetch = fetch

    def find_class(self, module: str, name: str) -> Any:
        # Only names on the list reach anything at all; what a file calls is never imported.
        if (module, name) in KNOWN:
            return KNOWN[module, name]
        if module.startswith("torch") and "_rebuild_" in name:
            raise pickle.UnpicklingError(f"a tensor of a kind that networks here are not made of: {name[:60]}")
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Tensor:
        match pid:
            case ("storage", _Storage() as kind, str(key), str(), int(count), *views) if views in ([], [None]):
                if kind in STORAGES and 0 <= count < 2**60:
                    return self._fetch(key, STORAGES[kind], count)
                raise pickle.UnpicklingError(f"numbers of a kind that networks are not made of ({kind})")
        raise pickle.UnpicklingError("a storage that is not described as torch.save does")
