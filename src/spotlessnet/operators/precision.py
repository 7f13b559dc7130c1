"""How exactly float32 matrix products are computed: a choice that is always spelled out.

Operators never change the setting themselves: they compute in the number format of the network's weights, sums over
batches are added in float64, and small factorisations are done in float64. PyTorch's own default is full float32
products and, on NVIDIA cards, TF32 convolutions; `matmul` sets both at once for the length of a block. `"bfloat16"`
lets the network itself answer under bfloat16 autocast, as mixed-precision training does; vectors, losses and sums stay
as they are, and all else is as for `"tf32"`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from spotlessnet.core.errors import check_choice
from spotlessnet.core.passes import bfloat16_passes
from spotlessnet.core.trained import Trained

EXACTNESS = {"float32": "highest", "tf32": "high", "bfloat16": "high"}
"""How exactly a network answers, with PyTorch's word for other float32 products: 23, 10 or 7 bits behind the point."""


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
        with bfloat16_passes(exactness == "bfloat16"):
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
