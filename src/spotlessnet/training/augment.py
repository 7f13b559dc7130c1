"""Augmentation: a transform of a batch's inputs that draws the same under the same seed."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from spotlessnet.core.errors import DataError
from spotlessnet.core.source import Inputs
from spotlessnet.training.order import mixed


def augmented(transform: Callable[..., Any] | None, x: Inputs, seed: int, step: int) -> Inputs:
    """The inputs of this step's batch, transformed.

    A transform with a second argument is given a generator that follows from seed and step alone, so that batches
    before this one do not matter. One without draws from torch's global generators, which training has seeded.
    """
    if transform is None:
        return x
    count = len(next(iter(x.values())) if isinstance(x, dict) else x)
    if takes_generator(transform):
        device = next(iter(x.values())).device if isinstance(x, dict) else x.device
        made = transform(x, torch.Generator(device).manual_seed(mixed(seed, step, "augment")))
    else:
        made = transform(x)
    first = next(iter(made.values())) if isinstance(made, dict) and made else made
    if not isinstance(first, Tensor) or len(first) != count:
        raise DataError(
            f"`Recipe.augment` must return the {count} inputs of a batch, but gave {type(made).__name__}"
            f"{f' of {len(first)}' if isinstance(first, Tensor) else ''}. It is called with a whole batch, not one row."
        )
    return made


def takes_generator(transform: Callable[..., Any]) -> bool:
    """Whether the transform asks for a generator as its second argument."""
    if isinstance(transform, nn.Module):  # torchvision's are modules with `forward(*inputs)`
        transform = transform.forward
    try:
        parameters = list(inspect.signature(transform).parameters.values())
    except (TypeError, ValueError):  # written in C, without a signature
        return False
    named = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(named) > 1 and (named[1].name == "generator" or named[1].default is inspect.Parameter.empty)
