"""The Gauss-Newton product compiled for this network: worth it where a great many products follow."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.func import jvp, vjp, vmap

from spotlessnet.core.data import Batch
from spotlessnet.core.source import Inputs
from spotlessnet.operators.gauss_newton import TOGETHER, GaussNewton
from spotlessnet.operators.matrix import check_vector
from spotlessnet.operators.rows import attention_spelled_out
from spotlessnet.operators.sums import sum_over


@dataclass(frozen=True, eq=False)
class Compiled:
    """A `GaussNewton` matrix whose product `torch.compile` fuses: same numbers, fewer passes through memory.

    Forward mode spends most of its time on the small operations between the layers, which a compiler melts into one.
    The first product pays for it with a minute or so. Only full batches of vectors and rows are compiled for; others
    take the plain way.

    **Arguments:**

    - `plain`: the matrix; its `keep` is not used.
    - `backend`: of `torch.compile`.
    """

    plain: GaussNewton
    backend: str = "inductor"

    @property
    def size(self) -> int:
        """`P`."""
        return self.plain.size

    def multiply(self, v: Float[Tensor, "*K P"]) -> Float[Tensor, "*K P"]:
        """`G v`, for one vector or rows of vectors."""
        G, trained = self.plain, self.plain.trained
        check_vector("v", v, trained)
        rows = v.detach().to(trained.dtype).reshape(-1, self.size)
        w = trained.weights

        def piece(one: Batch, s: Tensor) -> Tensor:
            full = len(s) == G.batch_size
            with torch.no_grad(), attention_spelled_out():
                parts = [
                    (self._compiled if full and len(part) == TOGETHER else self._by_hand)(w, part, one.x, one.y, s)
                    for part in rows.split(TOGETHER)
                ]
            return torch.cat(parts)

        product = sum_over(
            trained, G.data, piece, sample_weights=G.sample_weights, batch_size=G.batch_size,
            label="Gauss-Newton product",
            zero=torch.zeros_like(rows),
        )  # fmt: skip
        return product.to(v.dtype).reshape(v.shape) + G.ridge * v

    @cached_property
    def _compiled(self) -> Callable[..., Tensor]:
        compiled: Callable[..., Tensor] = torch.compile(
            self._by_hand, fullgraph=True, dynamic=False, backend=self.backend
        )
        return compiled

    def _by_hand(
        self, w: Float[Tensor, " P"], rows: Float[Tensor, "K P"], x: Inputs, y: Shaped[Tensor, "n *d"], s: Tensor
    ) -> Float[Tensor, "K P"]:
        def f(weights: Tensor) -> Tensor:
            return self.plain.trained.outputs(x, weights)

        outputs, pull = vjp(f, w)[:2]

        def one(v: Tensor) -> Tensor:
            hv = self.plain.output_product(outputs, y, jvp(f, (w,), (v,))[1])
            return pull(hv * s.reshape(-1, *[1] * (hv.ndim - 1)))[0]

        return vmap(one)(rows)
