"""A linear probe: whether the last hidden layer still tells the forgotten rows from others.

Masking a logit, or lowering its bias, leaves every hidden layer as it was; a probe sees that (arXiv 2604.08271).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from spotlessnet.core.data import Data, evenly
from spotlessnet.core.errors import DataError, NeedError, check_positive
from spotlessnet.core.intervals import auc_interval
from spotlessnet.core.readout import READOUTS, Ideal, Reading, Readout
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained

MOST = 2000
"""Rows of either kind that are looked at."""


@torch.no_grad()
def hidden(network: Trained, data: Data) -> Float[Tensor, "N d"]:
    """What enters the last layer that has weights, in float64; over positions of an image or a text, the mean."""
    found = []
    for batch in network.batches(data, 256):
        with _entering(network.model) as entered:
            network.outputs(batch.x)
        if not entered:
            raise NeedError("A linear probe needs a last layer with weights, but the network has none.")
        found.append(_pooled(entered[-1]))
    return torch.cat(found).double().cpu()


def _pooled(x: Tensor) -> Float[Tensor, "n d"]:
    if x.ndim == 4:  # an image: channels come first
        return x.flatten(2).mean(dim=2)
    return x.flatten(1, -2).mean(dim=1) if x.ndim > 2 else x


@contextmanager
def _entering(model: nn.Module) -> Iterator[list[Tensor]]:
    """Inputs of layers that multiply by a matrix, in the order in which they are called."""
    entered: list[Tensor] = []
    layers = [m for m in model.modules() if isinstance(w := getattr(m, "weight", None), Tensor) and w.ndim > 1]
    hooks = [layer.register_forward_pre_hook(lambda _, given: entered.append(given[0])) for layer in layers]
    try:
        yield entered
    finally:
        for hook in hooks:
            hook.remove()


def probe(
    members: Float[Tensor, "n d"], others: Float[Tensor, "m d"], ridge: float
) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
    r"""The direction $w = (\Sigma + \rho \bar\sigma I)^{-1} (\mu_f - \mu_r)$ of Fisher's discriminant, and the centre.

    $\Sigma$ is the mean of both kinds' covariances, so that few forgotten rows count as much as many others, and
    $\bar\sigma$ the mean of its diagonal.
    """
    means = [part.mean(dim=0) for part in (members, others)]
    spread = sum(
        (part - mean).T @ (part - mean) / len(part) for part, mean in zip((members, others), means, strict=True)
    )
    assert isinstance(spread, Tensor)
    spread = spread / 2
    floor = ridge * spread.diagonal().mean().clamp(min=1e-12)
    w = torch.linalg.solve(spread + floor * torch.eye(len(spread), dtype=spread.dtype), means[0] - means[1])
    return w, (means[0] + means[1]) / 2


@READOUTS.register(
    "linear-probe",
    paper="this package, after arXiv 2604.08271",
    needs=("retained data",),
)
@dataclass(frozen=True)
class LinearProbe(Readout):
    """Area under the curve of a linear probe on the last hidden layer that tells forgotten from retained rows.

    Fitted on every second row of either kind and judged on the others. For a class: whether the network still knows it
    inside, whatever its answers say. Retrained networks know unseen classes in part, too: compare with theirs.

    **Arguments:**

    - `ridge`: added to the variances, as a share of their mean.
    """

    unit: ClassVar[str] = "AUC"
    ideal: ClassVar[Ideal] = "as retrained"

    ridge: float = 0.01

    def __post_init__(self) -> None:
        check_positive("LinearProbe.ridge", self.ridge)

    @property
    def name(self) -> str:
        return "linear probe"

    def __call__(self, network: Trained, split: Split) -> Reading:
        if min(len(split.forget), len(split.retain)) < 4:
            raise DataError(
                f"A linear probe needs four rows of either kind, but there are {len(split.forget)} forgotten and "
                f"{len(split.retain)} retained ones."
            )
        found = [hidden(network, data.select(evenly(len(data), MOST))) for data in (split.forget, split.retain)]
        w, centre = probe(found[0][::2], found[1][::2], self.ridge)
        members, others = ((part[1::2] - centre) @ w for part in found)
        return Reading(*auc_interval(members, others))
