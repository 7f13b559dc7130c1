"""What could have hidden: rows that are planted as the original knows them; does the audit notice?"""

from collections.abc import Callable

import torch
from jaxtyping import Bool
from torch import Tensor

from spotlessnet.auditing.verdict import CouldHide

SINGLE = 24
"""Rows that are planted one at a time, each by itself: 0 of 24 unnoticed says that fewer than 12 % could be."""

SHARES = (0.1, 0.25, 0.5)
TRIES = 3
"""Shares of the rows that are planted together, and how often each."""


def could_hide(notices: Callable[[Bool[Tensor, " T"]], bool], count: int) -> CouldHide:
    """Plant some of `count` forgotten rows, one at a time and many together, and see whether that is noticed.

    **Arguments:**

    - `notices`: whether the audit would have, had the candidates known these rows as the original does.
    """
    generator = torch.Generator().manual_seed(0)

    def hides(rows: Tensor) -> bool:
        return not notices(torch.zeros(count, dtype=torch.bool).index_fill(0, rows, True))

    some = torch.randperm(count, generator=generator)[:SINGLE]
    single = sum(hides(row.unsqueeze(0)) for row in some)
    share = 0.0
    for part in SHARES:
        many = max(1, round(part * count))
        if any(hides(torch.randperm(count, generator=generator)[:many]) for _ in range(TRIES)):
            share = part
    return CouldHide(single, len(some), share, count)
