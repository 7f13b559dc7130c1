"""Memories on disk: one safetensors file each, written whole."""

from pathlib import Path

from spotlessnet.core.errors import DataError, NumericsError
from spotlessnet.core.files import write_whole
from spotlessnet.core.memory import Memory
from spotlessnet.store.checkpoints import read_metadata, read_weights
from spotlessnet.store.tensor_bytes import to_bytes


def write_memory(path: str | Path, memory: Memory, *, replace: bool = False) -> str:
    """Write a memory and give the file's SHA-256."""
    tensors, text = memory.tensors()
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise NumericsError(f"The memory's {name!r} is not finite, so nothing was written. Check the training run.")
    return write_whole(Path(path), to_bytes(tensors, text), replace=replace)


def read_memory(path: str | Path) -> Memory:
    """Read a memory; nothing in the file is executed."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise DataError(f"A memory is a .safetensors file, but {path} ends in {path.suffix!r}.")
    tensors = read_weights(path)
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise NumericsError(f"The memory's {name[:60]!r} in {path} is not finite. Write it anew with `remember`.")
    return Memory.from_tensors(tensors, read_metadata(path))
