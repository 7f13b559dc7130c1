"""Digests of single rows: equal where two rows hold the same numbers, wherever they stand.

Two kinds, for two readers. `content_digests` are plain SHA-256, inputs apart from the label: they find copies of a row
and never leave the process. `keyed_digests` are BLAKE2b under a salt, inputs and label together: they are written to
files, where a plain digest would let anyone test a guess at a row.
"""

import hashlib
from collections.abc import Iterator

import torch
from jaxtyping import UInt8
from torch import Tensor

from spotlessnet.core.data import Batch, Data

WIDTH = 16
"""Bytes of a keyed digest: among 2^32 rows two share one by chance with a probability below 1e-19."""


def content_digests(batch: Batch) -> Iterator[tuple[bytes, bytes]]:
    """For each row a digest of its inputs and one of its label."""
    inputs = _by_name(batch)
    # Shape and number format belong to the contents: the same bytes may mean other numbers.
    head = repr([(name, str(value.dtype), tuple(value.shape[1:])) for name, value in inputs]).encode()
    label_head = repr((str(batch.y.dtype), tuple(batch.y.shape[1:]))).encode()
    columns = [_bytes_of_rows(value) for _, value in inputs]
    for *x, y in zip(*columns, _bytes_of_rows(batch.y), strict=True):
        yield hashlib.sha256(head + b"".join(x)).digest(), hashlib.sha256(label_head + y).digest()


def keyed_digests(data: Data, salt: bytes) -> list[bytes]:
    """The keyed digest of each row's inputs and label, in the order of the rows."""
    found: list[bytes] = []
    for batch in data.batches():
        tensors = [(f"x {name}", value) for name, value in _by_name(batch)] + [("y", batch.y)]
        # As above; files hold these digests, so this spelling of the head may not change.
        head = "\0".join(f"{name} {t.dtype} {tuple(t.shape[1:])}" for name, t in tensors).encode()
        found += (
            hashlib.blake2b(b"".join((head, *parts)), digest_size=WIDTH, key=salt).digest()
            for parts in zip(*(_bytes_of_rows(t) for _, t in tensors), strict=True)
        )
    return found


def _by_name(batch: Batch) -> list[tuple[str, Tensor]]:
    """Inputs in the order of their names: a dictionary's own order is the loader's accident."""
    return sorted(batch.x.items()) if isinstance(batch.x, dict) else [("", batch.x)]


def _bytes_of_rows(value: Tensor) -> Iterator[bytes]:
    if not value[0].numel():  # a row without numbers cannot be viewed as bytes
        return iter([b""] * len(value))
    flat = as_bytes(value).numpy()
    return (row.tobytes() for row in flat)


def as_bytes(value: Tensor) -> UInt8[Tensor, "n b"]:
    """The bytes of each row; minus zero is zero, for both are the same number.

    >>> as_bytes(torch.tensor([[0.0], [-0.0]])).unique(dim=0).shape[0]
    1
    """
    told = value.detach().cpu()
    if told.is_floating_point() or told.is_complex():
        told = torch.where(told == 0, torch.zeros_like(told), told)
    return told.contiguous().reshape(len(value), -1).view(torch.uint8)
