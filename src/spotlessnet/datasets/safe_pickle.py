"""Reading pickles as data: plain values and byte arrays, and nothing that could run."""

import io
import pickle
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spotlessnet.core.errors import DataError
from spotlessnet.core.pickling import ShallowUnpickler


class ByteArray:
    """What a pickled numpy array of bytes is read into; its state is checked before it becomes an array."""

    __slots__ = ("value",)

    def __init__(self, *_: Any) -> None:
        self.value: NDArray[Any] = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        match state:
            case (int(), tuple(shape), ByteType(), bool() | int() as fortran, bytes(raw)):
                counts = len(shape) <= 2 and all(isinstance(n, int) and n >= 0 for n in shape)
                if counts and prod(shape) == len(raw):
                    flat = np.frombuffer(raw, np.uint8)
                    self.value = flat.reshape(shape, order="F" if fortran else "C")
                    return
        raise pickle.UnpicklingError("an array that is not made of bytes, or whose shape does not fit its content")


class ByteType:
    """Stands for numpy's type of bytes; every other type is refused."""

    __slots__ = ()

    def __init__(self, name: Any, *_: Any) -> None:
        if name not in ("u1", b"u1", "|u1", b"|u1"):
            raise pickle.UnpicklingError(f"an array of type {str(name)[:40]!r} in place of bytes")

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment: bytes have none."""


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("text in an encoding other than latin1")
    return text.encode("latin1")


class _Name:
    """A name that the file may mention and that does nothing."""


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): ByteArray,
    ("numpy._core.multiarray", "_reconstruct"): ByteArray,
    ("numpy", "ndarray"): _Name,
    ("numpy", "dtype"): ByteType,
    ("_codecs", "encode"): _encode,
}
"""All that a file may name, each with the harmless stand-in that it gets."""


class _Reader(ShallowUnpickler):
    def find_class(self, module: str, name: str) -> Any:
        return ALLOWED[module, name] if (module, name) in ALLOWED else super().find_class(module, name)


def read_pickle(path: Path, content: bytes, remedy: str) -> dict[str, Any]:
    """The dictionary in a pickle, with text keys. Names other than numpy's byte arrays are refused, never looked up."""
    try:
        found = _Reader(io.BytesIO(content), encoding="bytes").load()
    except (Exception, RecursionError) as e:  # a broken pickle can fail in any way
        what = str(e) or type(e).__name__
        raise DataError(f"{path} must be a pickle of plain values and byte arrays, but holds {what}. {remedy}") from e
    if not isinstance(found, dict):
        raise DataError(f"{path} must hold a dictionary, but holds {type(found).__name__}. {remedy}")
    named = {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}
    return {key: value.value if isinstance(value, ByteArray) else value for key, value in named.items()}
