"""Recurrent layers one step after the other: fused ones know no forward mode, nor on a GPU the way back in eval."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def stepwise() -> Iterator[None]:
    """Where derivatives are asked of a network with recurrent layers, no fused kernel is: oneDNN's or cuDNN's."""
    backends: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.mkldnn)
    before = [one.enabled for one in backends]
    try:
        for one in backends:
            one.enabled = False
        yield
    finally:
        for one, was in zip(backends, before, strict=True):
            one.enabled = was
