"""In which number format a network computes its answers: its own, or bfloat16 for the length of a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

HALVED: ContextVar[bool] = ContextVar("passes in bfloat16", default=False)
"""Whether networks answer in bfloat16; whoever may be compiled asks `are_halved`."""


@contextmanager
def bfloat16_passes(on: bool = True) -> Iterator[None]:
    """Within this block, networks answer under bfloat16 autocast: with 7 bits behind the point, in half the memory.

    Weights, vectors, losses and sums keep their own format, and so does whatever is solved or made orthonormal.
    """
    token = HALVED.set(on)
    try:
        yield
    finally:
        HALVED.reset(token)


def are_halved() -> bool:
    """Whether networks answer in bfloat16 now; never what `torch.compile` is made of, which cannot ask."""
    return not torch.compiler.is_compiling() and HALVED.get()


@contextmanager
def passing(model: nn.Module, device: torch.device) -> Iterator[None]:
    """What one pass of a network in bfloat16 runs in."""
    # In forward mode BatchNorm's own weights leave a tangent in float32 beside an answer in bfloat16.
    norms = [one for one in model.modules() if isinstance(one, nn.modules.batchnorm._NormBase)]
    hooks = [one.register_forward_pre_hook(_widen) for one in norms]
    try:
        with torch.autocast(device.type, torch.bfloat16):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _widen(norm: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(one.float() for one in inputs)
