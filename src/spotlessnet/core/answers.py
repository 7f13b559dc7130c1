"""What a network's answers come to, row by row: by how much the right class wins, and whether it is wrong at all.

Every layer reads margins and error rates here: methods, readouts, guards and experiments then mean the same by them.
"""

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.trained import Trained


def margin(logits: Float[Tensor, "N C"], y: Int[Tensor, " N"]) -> Float64[Tensor, " N"]:
    r"""$\varphi = \log p_y - \log \sum_{c \ne y} p_c$ of each row, in float64.

    Computed from the logits, $z_y - \mathrm{logsumexp}_{c \ne y} z_c$, so that it neither saturates nor cancels where
    the network is certain.

    >>> margin(torch.tensor([[1000.0, 0.0]]), torch.tensor([0])).tolist()
    [1000.0]
    """
    z = logits.double()
    right = y.long().unsqueeze(1)
    others = z.scatter(1, right, -torch.inf)
    return z.gather(1, right).squeeze(1) - others.logsumexp(dim=1)


@torch.no_grad()
def mistakes(network: Trained, data: Data) -> Float64[Tensor, " N"]:
    """The error of each row as its loss counts it: one or zero for classes, the loss itself otherwise; on the CPU."""
    found = [network.loss.mistakes(network.outputs(b.x), b.y).double().cpu() for b in network.batches(data)]
    return torch.cat(found)


def error_rate(network: Trained, data: Data) -> float:
    """The mean of `mistakes`: for classes, the share of wrong answers."""
    return float(mistakes(network, data).mean())
