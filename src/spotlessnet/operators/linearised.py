"""The network linearised in its weights: linear regression in the features that its Jacobian gives."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn
from torch.func import jvp

from spotlessnet.core.source import Inputs
from spotlessnet.core.trained import Trained
from spotlessnet.operators.jacobian import as_function
from spotlessnet.operators.matrix import check_vector


@dataclass(frozen=True, eq=False)
class Linearised:
    r"""$f_{lin}(x; w) = f_{\bar w}(x) + J_{\bar w}(x)\,(w - \bar w)$ with $\bar w$ the weights of `trained`.

    Equal to the network at $\bar w$ itself, and everywhere if the network is linear in its weights.
    """

    trained: Trained

    def outputs(self, x: Inputs, weights: Float[Tensor, " P"]) -> Float[Tensor, "N *C"]:
        """What the linearised network answers at `weights`; differentiable in them."""
        check_vector("weights", weights, self.trained)
        w = self.trained.weights
        value, move = jvp(as_function(self.trained, x), (w,), (weights.to(w.dtype) - w,))[:2]
        return value + move

    def as_module(self, weights: Float[Tensor, " P"]) -> nn.Module:
        """A module that predicts with the linearised network at `weights`, which are its parameter."""
        check_vector("weights", weights, self.trained)
        return _LinearisedModule(self, weights)


class _LinearisedModule(nn.Module):
    def __init__(self, linearised: Linearised, weights: Float[Tensor, " P"]) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights.detach().clone())
        # A plain attribute: the network around which the expansion is made must not appear among the parameters.
        self._linearised = (linearised,)

    def forward(self, x: Tensor | None = None, **named: Tensor) -> Tensor:
        inputs: Inputs = dict(named) if x is None else x
        return self._linearised[0].outputs(inputs, self.weights)
