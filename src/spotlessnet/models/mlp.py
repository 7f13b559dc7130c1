"""The multi-layer perceptron: small enough for dense references and hundreds of copies."""

from collections.abc import Sequence
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from spotlessnet.core.errors import check_choice
from spotlessnet.models.seeded import seeded

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


class MLP(nn.Module):
    """Linear layers with an activation between them, on the flattened input.

    **Arguments:**

    - `hidden`: the widths between input and head.
    - `activation`: `"relu"`, `"tanh"` or `"gelu"`.
    - `dropout`: the share dropped after each activation.

    >>> sum(p.numel() for p in MLP(64, 10, hidden=(32,)).parameters()) == 64 * 32 + 32 + 32 * 10 + 10
    True
    """

    def __init__(
        self,
        inputs: int,
        classes: int,
        *,
        hidden: Sequence[int] = (64,),
        activation: str = "relu",
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_choice("MLP.activation", activation, tuple(ACTIVATIONS))
        widths = [inputs, *hidden]
        layers: list[nn.Module] = []
        with seeded(seed):
            for a, b in pairwise(widths):
                layers += [nn.Linear(a, b), ACTIVATIONS[activation]()]
                # Left out where it would do nothing, so that names of layers stay those of a plain MLP.
                layers += [nn.Dropout(dropout)] if dropout else []
            self.features = nn.Sequential(*layers)
            self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Float[Tensor, "N *d"]) -> Float[Tensor, "N C"]:
        """Logits."""
        return self.head(self.features(x.flatten(1)))
