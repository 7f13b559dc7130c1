"""Buffers of several networks beside each other, and BatchNorm's running statistics estimated anew."""

from collections.abc import Sequence

import torch
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import takes_generator
from spotlessnet.core.source import Inputs
from spotlessnet.core.trained import Trained, buffers_of, running_norms

MOST = 10_000
"""Rows that they are means of at most: each has as many entries as pixels, so more rows would hardly move them."""


@torch.no_grad()
def reestimated(trained: Trained, data: Data, batch_size: int = 256) -> dict[str, Tensor]:
    """The buffers with running statistics that are means over the batches of `data`, at the network's own weights.

    Nothing of the old statistics is left in them. Rows are mixed first: batches of one class each would miss what lies
    between classes. They are augmented where training did so: its statistics are those of augmented rows.
    """
    network = trained.module()
    norms = running_norms(network)
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over batches
        norm.train()
    mixed = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:MOST]
    # Pieces of nearly one size: a last batch of one row has no variance, and a small one would count too much.
    pieces = mixed.tensor_split(max(1, -(-len(mixed) // batch_size)))
    cuda = [trained.device] if trained.device.type == "cuda" else []
    draw = torch.Generator(trained.device).manual_seed(0)
    with torch.random.fork_rng(cuda):
        torch.manual_seed(0)
        for piece in pieces:
            x = _augmented(trained, trained.fetch(data, data.rows[piece]).x, draw)
            network(**x) if isinstance(x, dict) else network(x)
    return buffers_of(network)


def _augmented(trained: Trained, x: Inputs, draw: torch.Generator) -> Inputs:
    transform = None if trained.recipe is None else trained.recipe.augment
    if transform is None:
        return x
    made: Inputs = transform(x, draw) if takes_generator(transform) else transform(x)
    return made


def share_buffers(group: Sequence[Trained]) -> bool:
    """Whether networks of one kind differ by their weights alone."""
    first = dict(group[0].model.named_buffers())
    return all(torch.equal(value, first[name]) for one in group[1:] for name, value in one.model.named_buffers())
