"""The Hessian of the summed loss over a data set."""

from collections.abc import Callable, Iterator
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
from spotlessnet.operators.sums import Rows, counted, stream, total_by_rows

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
        # Its shape is all that is asked of a zero.
        zero = rows.new_zeros(()).expand_as(rows)
        product = total_by_rows(self.trained, self._products(rows), zero).to(v.dtype).reshape(v.shape)
        return product + self.ridge * v if self.ridge else product

    def _products(self, rows: Float[Tensor, "K P"]) -> Iterator[Rows]:
        """Of each batch, a few vectors at a time."""
        s = torch.ones(len(self.data)) if self.sample_weights is None else self.sample_weights.detach().cpu()
        together = vectors_at_once(self.trained, min(TOGETHER, len(rows)))
        batches = stream(
            self.trained,
            self.data,
            counted(self.data, self.sample_weights),
            batch_size=self.batch_size,
            # The way back carries a tangent of its own for every vector.
            vectors=2 * together,
            tangents=together,
            label="Hessian product",
        )
        for one, where in batches:
            slope = self._slope(one, s[where].to(self.trained.weights))
            for i in range(0, len(rows), together):
                yield i, self._along(slope, rows[i : i + together])

    def _slope(self, one: Batch, s: Float[Tensor, " n"]) -> Callable[[Tensor], Tensor]:
        """The gradient as a function of the weights."""
        f = as_function(self.trained, one.x)
        loss = self.trained.loss
        return grad(lambda weights: (s * loss(f(weights), one.y)).sum())

    def _along(self, slope: Callable[[Tensor], Tensor], rows: Float[Tensor, "k P"]) -> Float[Tensor, "k P"]:
        """Forward over reverse: the graph of the gradient is never kept, only that of the answers, with tangents."""

        def product(row: Tensor) -> Tensor:
            return jvp(slope, (self.trained.weights,), (row,))[1]

        # One by one, without what `vmap` asks of the network.
        return product(rows[0]).unsqueeze(0) if len(rows) == 1 else vmap(product)(rows)


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
