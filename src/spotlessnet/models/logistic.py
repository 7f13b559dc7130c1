"""Logistic regression: the network whose risk is convex, so that forgetting has one right answer."""

from jaxtyping import Float
from torch import Tensor, nn

from spotlessnet.models.seeded import seeded


class Logistic(nn.Module):
    """One linear layer on the flattened input; `(inputs + 1) · classes` parameters.

    >>> sum(p.numel() for p in Logistic(64, 10).parameters())
    650
    """

    def __init__(self, inputs: int, classes: int, *, bias: bool = True, seed: int = 0) -> None:
        super().__init__()
        with seeded(seed):
            self.head = nn.Linear(inputs, classes, bias=bias)

    def forward(self, x: Float[Tensor, "N *d"]) -> Float[Tensor, "N C"]:
        """Logits."""
        return self.head(x.flatten(1))
