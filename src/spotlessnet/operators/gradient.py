"""The gradient of the summed loss over a data set."""

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Batch, Data
from spotlessnet.core.trained import Trained
from spotlessnet.operators.sums import sum_over


def gradient(
    trained: Trained,
    data: Data,
    *,
    sample_weights: Float[Tensor, " N"] | None = None,
    ridge: float = 0.0,
    batch_size: int = 256,
) -> Float[Tensor, " P"]:
    r"""$\sum_i s_i \nabla \ell_i(w) + r\,(w - w_{anchor})$, a sum and not a mean.

    **Arguments:**

    - `sample_weights`: $s$, how often each row counts; ones unless given.
    - `ridge`: $r$; for the gradient of `count` times the training objective, `count * decay`.
    """

    def piece(one: Batch, s: Tensor) -> Tensor:
        with torch.enable_grad():
            w = trained.weights.detach().requires_grad_()
            total = (s * trained.losses(one.x, one.y, w)).sum()
            return torch.autograd.grad(total, w)[0]

    zero = trained.weights.new_zeros(()).expand_as(trained.weights)  # its shape is all that is asked of it
    g = sum_over(
        trained,
        data,
        piece,
        sample_weights=sample_weights,
        batch_size=batch_size,
        vectors=1,  # the gradient itself, by name and flat
        taped=True,
        label="gradient",
        zero=zero,
    )
    return g + ridge * (trained.weights - trained.anchor) if ridge else g
