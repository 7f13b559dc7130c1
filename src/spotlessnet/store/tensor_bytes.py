"""Tensors as the bytes of a safetensors file: the same tensors and text are always the same bytes."""

import json
import struct
from collections.abc import Mapping

from safetensors.torch import save
from torch import Tensor


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
