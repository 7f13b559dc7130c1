"""BatchNorm's running statistics, estimated anew."""

import torch
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.trained import Trained, buffers_of, running_norms


@torch.no_grad()
def reestimated(trained: Trained, data: Data, batch_size: int = 256) -> dict[str, Tensor]:
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
