"""Buffers of one module: put in place, and compared."""

import copy
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from spotlessnet.core.errors import MismatchError


def put_buffers(module: nn.Module, buffers: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the module with these buffers; all that it has must be among them."""
    made = copy.deepcopy(module)
    with torch.no_grad():
        for name, value in made.named_buffers():
            if name not in buffers or buffers[name].shape != value.shape:
                what = "is missing" if name not in buffers else f"has shape {tuple(buffers[name].shape)}"
                raise MismatchError(
                    f"Buffers must be those of this network, but {name!r} {what}. Give the whole state dict."
                )
            value.copy_(buffers[name])
    return made


def same_statistics(module: nn.Module, norms: Iterable[nn.Module], buffers: Mapping[str, Tensor]) -> bool:
    """Whether the running statistics of these layers of a module are those among the buffers."""
    kept = {id(b) for m in norms for b in m.buffers(recurse=False)}
    own = {name: value for name, value in module.named_buffers() if id(value) in kept}
    return all(name in buffers and torch.equal(value, buffers[name].to(value)) for name, value in own.items())
