"""Buffers that training moves, BatchNorm's running statistics above all: read, put back, estimated anew."""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from spotlessnet.core.data import Data
from spotlessnet.core.errors import MismatchError

if TYPE_CHECKING:
    from spotlessnet.core.trained import Trained

Buffers = Mapping[str, Tensor]


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """All buffers by name, copied."""
    return {name: value.detach().clone() for name, value in module.named_buffers()}


def put_buffers(module: nn.Module, buffers: Buffers) -> nn.Module:
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


def running_norms(module: nn.Module) -> list[_NormBase]:
    """The layers that keep running statistics."""
    return [m for m in module.modules() if isinstance(m, _NormBase) and m.running_mean is not None]


def same_statistics(module: nn.Module, buffers: Buffers) -> bool:
    """Whether the running statistics of the module are those among the buffers."""
    kept = {id(b) for m in running_norms(module) for b in m.buffers(recurse=False)}
    own = {name: value for name, value in module.named_buffers() if id(value) in kept}
    return all(name in buffers and torch.equal(value, buffers[name].to(value)) for name, value in own.items())


@torch.no_grad()
def reestimated(trained: "Trained", data: Data, batch_size: int = 256) -> dict[str, Tensor]:
    """The buffers with running statistics that are means over the batches of `data`, at the network's own weights.

    Nothing of the old statistics is left in them. Rows are mixed first: batches of one class each would miss what lies
    between classes.
    """
    network = trained.module()
    norms = running_norms(network)
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over batches
        norm.train()
    mixed = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    # Pieces of nearly one size: a last batch of one row has no variance, and a small one would count too much.
    pieces = mixed.tensor_split(max(1, -(-len(data) // batch_size)))
    for piece in pieces:
        batch = trained.fetch(data, data.rows[piece])
        network(**batch.x) if isinstance(batch.x, dict) else network(batch.x)
    return buffers_of(network)
