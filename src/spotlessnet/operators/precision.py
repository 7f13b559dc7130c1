"""How exactly float32 matrix products are computed: a choice that is always spelled out.

Operators never change the setting themselves: they compute in the number format of the network's weights, sums over
batches are added in float64, and small factorisations are done in float64. PyTorch's own default is full float32
products and, on NVIDIA cards, TF32 convolutions; `matmul` sets both at once for the length of a block.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from spotlessnet.core.errors import check_choice
from spotlessnet.core.trained import Trained

EXACTNESS = {"float32": "highest", "tf32": "high", "bfloat16": "medium"}
"""How a float32 product may be computed, with PyTorch's word for it: with 23, 10 or 7 bits behind the point."""


@contextmanager
def matmul(exactness: str) -> Iterator[None]:
    """Compute float32 matrix products and convolutions this exactly inside the block, then restore the setting.

    >>> with matmul("tf32"):
    ...     torch.get_float32_matmul_precision()
    'high'
    """
    check_choice("exactness", exactness, tuple(EXACTNESS))
    products = torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision(EXACTNESS[exactness])
        torch.backends.cudnn.allow_tf32 = exactness != "float32"
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


def in_format(trained: Trained, dtype: torch.dtype) -> Trained:
    """The same network computing in another number format, such as `torch.float64` for a check.

    >>> in_format(Trained.of(torch.nn.Linear(2, 1)), torch.float64).dtype
    torch.float64
    """
    start = None if trained.init is None else trained.init.to(dtype)
    return replace(trained, model=trained.module().to(dtype), weights=trained.weights.to(dtype), init=start)
