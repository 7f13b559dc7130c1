"""The Hessian of the summed loss over a data set."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, jvp, vmap

from spotlessnet.core.data import Batch, Data
from spotlessnet.core.trained import Trained
from spotlessnet.operators.jacobian import as_function
from spotlessnet.operators.matrix import check_vector
from spotlessnet.operators.room import vectors_at_once
from spotlessnet.operators.sums import sum_over

TOGETHER = 8
"""How many vectors go through the network at once where memory holds them."""


@dataclass(frozen=True, eq=False)
class Hessian:
    r"""$H = \sum_i s_i \nabla^2 \ell_i(w) + r I$, a sum over rows, by products alone; may be indefinite.

    **Arguments:**

    - `sample_weights`: $s$; a row with weight zero costs nothing.
    - `ridge`: $r$, as a rule `count * decay`.
    """

    trained: Trained
    data: Data
    sample_weights: Float[Tensor, " N"] | None = None
    ridge: float = 0.0
    batch_size: int = 256

    @property
    def size(self) -> int:
        """`P`."""
        return self.trained.size

    def multiply(self, v: Float[Tensor, "*K P"]) -> Float[Tensor, "*K P"]:
        """`H v`, for one vector or rows of vectors, by forward over reverse mode."""
        check_vector("v", v, self.trained)
        rows = v.detach().to(self.trained.dtype).reshape(-1, self.size)
        w = self.trained.weights
        together = vectors_at_once(self.trained, min(TOGETHER, len(rows)))

        def piece(one: Batch, s: Tensor) -> Tensor:
            f = as_function(self.trained, one.x)
            loss = self.trained.loss
            # Forward over reverse: the graph of the gradient is never kept, so memory is that of one gradient.
            slope = grad(lambda weights: (s * loss(f(weights), one.y)).sum())
            if together == 1:
                return torch.stack([jvp(slope, (w,), (row,))[1] for row in rows])
            return vmap(lambda row: jvp(slope, (w,), (row,))[1], chunk_size=together)(rows)

        product = sum_over(
            self.trained,
            self.data,
            piece,
            sample_weights=self.sample_weights,
            batch_size=self.batch_size,
            # The way back carries a tangent of its own for every vector.
            vectors=2 * together,
            label="Hessian product",
            zero=torch.zeros_like(rows),
        )
        product = product.to(v.dtype).reshape(v.shape)
        return product + self.ridge * v if self.ridge else product


def dense_hessian(
    trained: Trained,
    data: Data,
    ridge: float = 0.0,
    *,
    sample_weights: Float[Tensor, " N"] | None = None,
    batch_size: int = 256,
) -> Float[Tensor, "P P"]:
    """The whole Hessian, symmetric to the last bit: for small networks."""
    eye = torch.eye(trained.size, dtype=trained.dtype, device=trained.device)
    H = Hessian(trained, data, sample_weights, ridge, batch_size).multiply(eye)
    return 0.5 * (H + H.T)
