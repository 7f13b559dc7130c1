"""The linearised network of *Mixed-Privacy Forgetting* as features: the whole Jacobian, one row per class."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from spotlessnet.core.errors import ResourceError
from spotlessnet.core.loss import logits_of

MOST_WEIGHTS = 30_000


class Linearised(nn.Module):
    r"""$J(x) = \partial f(x) / \partial w$, shape `[N, C, P]`, beside the network's own answer $f(x)$.

    A ridge problem on these features with the targets $a\,(e_y - \tfrac1C) - f(x)$ is the user problem of the paper.
    Classes share one weight vector, and each example is `C` rows of the problem.

    **Arguments:**

    - `network`: a classifier trained on core data; frozen. It must answer each example by itself (no BatchNorm in
      training mode).
    - `layers`: beginnings of the names of the parameters that are linearised; all unless said.
    """

    def __init__(self, network: nn.Module, layers: tuple[str, ...] = ("",)) -> None:
        super().__init__()
        self.network = network.eval().requires_grad_(False)
        self.names = [n for n, _ in network.named_parameters() if n.startswith(layers)]
        size = sum(p.numel() for n, p in network.named_parameters() if n in set(self.names))
        if not 0 < size <= MOST_WEIGHTS:
            raise ResourceError(
                f"A linearised network must have between 1 and {MOST_WEIGHTS} weights, as the problem holds their "
                f"number squared, but these layers have {size}. Name fewer `layers`, or use TangentSketch."
            )

    def train(self, mode: bool = True) -> "Linearised":
        """Frozen features never train."""
        return super().train(False)

    def base(self, x: Tensor) -> Float[Tensor, "N C"]:
        """What the network answers by itself."""
        with torch.no_grad():
            return logits_of(self.network(x)).float()

    def forward(self, x: Tensor) -> Float[Tensor, "N C P"]:
        weights = {n: p.detach() for n, p in self.network.named_parameters() if n in set(self.names)}

        def answer(w: dict[str, Tensor], one: Tensor) -> Tensor:
            return logits_of(functional_call(self.network, w, (one[None],)))[0]

        slopes = vmap(jacrev(answer), in_dims=(None, 0))(weights, x)
        return torch.cat([slopes[n].flatten(2) for n in self.names], dim=2).float()
