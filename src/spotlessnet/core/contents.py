"""What rows hold, as digests: to find copies of a row, and to say later which rows were read."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import UInt8
from torch import Tensor

from spotlessnet.core.data import Batch, Data


@dataclass(frozen=True)
class Contents:
    """What one pass over some rows found.

    **Arguments:**

    - `count`: how many rows there are.
    - `sha256`: of inputs, labels and order, as the loader gave them. It can confirm a guess, so only a keyed digest of
      it is ever written down.
    - `copies`: rows with the very inputs of a row to forget, whatever their label.
    """

    count: int
    sha256: str
    copies: int = 0


def contents_of(data: Data, forget: Data | None = None) -> Contents:
    """Read every row once, and those of `forget` twice.

    >>> data = Data.of((torch.tensor([[1.0], [2.0], [1.0]]), torch.tensor([0, 1, 1])))
    >>> contents_of(data, data.select([0])).copies
    1
    """
    gone = set() if forget is None else {x for batch in forget.batches() for x, _ in _digests(batch)}
    going = set() if forget is None else set(forget.rows.tolist())
    copies, whole = 0, hashlib.sha256()
    for batch in data.batches():
        for row, (x, y) in zip(batch.rows.tolist(), _digests(batch), strict=True):
            whole.update(x + y)
            copies += x in gone and row not in going
    return Contents(len(data), whole.hexdigest(), copies)


def _digests(batch: Batch) -> Iterator[tuple[bytes, bytes]]:
    """For each row a digest of its inputs and one of its label."""
    named = batch.x if isinstance(batch.x, dict) else {"": batch.x}
    names = sorted(named)
    # Shape and number format belong to the contents: the same bytes may mean other numbers.
    head = repr([(name, str(named[name].dtype), tuple(named[name].shape[1:])) for name in names]).encode()
    label = repr((str(batch.y.dtype), tuple(batch.y.shape[1:]))).encode()
    for *x, y in zip(*(_bytes(named[name]) for name in names), _bytes(batch.y), strict=True):
        yield hashlib.sha256(head + b"".join(x)).digest(), hashlib.sha256(label + y).digest()


def _bytes(value: Tensor) -> Iterator[bytes]:
    if not value[0].numel():
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
