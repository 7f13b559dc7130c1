"""What rows hold, as digests: to find copies of a row, and to say later which rows were read."""

import hashlib
from dataclasses import dataclass

from spotlessnet.core.data import Batch, Data
from spotlessnet.core.row_digests import content_digests


@dataclass(frozen=True)
class Contents:
    """What one pass over some rows found.

    **Arguments:**

    - `count`: how many rows there are.
    - `sha256`: of inputs, labels and order, as the loader gave them. It can confirm a guess, so only a keyed digest of
      it is ever written down.
    - `copies`: rows with the very inputs of a row to forget, whatever their label.
    - `is_finite`: whether no input or label is NaN or infinite.
    """

    count: int
    sha256: str
    copies: int = 0
    is_finite: bool = True


def contents_of(data: Data, forget: Data | None = None) -> Contents:
    """Read every row once, and those of `forget` twice.

    >>> import torch
    >>> data = Data.of((torch.tensor([[1.0], [2.0], [1.0]]), torch.tensor([0, 1, 1])))
    >>> contents_of(data, data.select([0])).copies
    1
    """
    gone: set[bytes] = set()
    going: set[int] = set()
    if forget is not None:
        gone = {x for batch in forget.batches() for x, _ in content_digests(batch)}
        going = set(forget.rows.tolist())
    copies = 0
    is_finite = True
    whole = hashlib.sha256()
    for batch in data.batches():
        is_finite = is_finite and _is_finite(batch)
        for row, (x, y) in zip(batch.rows.tolist(), content_digests(batch), strict=True):
            whole.update(x + y)
            # A row to forget is not a copy of itself, nor is a second row that goes too.
            copies += x in gone and row not in going
    return Contents(len(data), whole.hexdigest(), copies, is_finite)


def _is_finite(batch: Batch) -> bool:
    values = [*(batch.x.values() if isinstance(batch.x, dict) else [batch.x]), batch.y]
    return all(bool(value.isfinite().all()) for value in values if value.is_floating_point())
