"""The Gauss-Newton matrix over a data set, which for a likelihood is the Fisher matrix."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.func import jvp, linearize, vjp, vmap

from spotlessnet.core.data import Batch, Data
from spotlessnet.core.errors import check_choice
from spotlessnet.core.source import Inputs
from spotlessnet.core.trained import Trained
from spotlessnet.operators.forward_mode import fewer_passes
from spotlessnet.operators.jacobian import as_function
from spotlessnet.operators.matrix import check_vector
from spotlessnet.operators.room import in_parts, vectors_at_once
from spotlessnet.operators.sums import Rows, counted, stream, total_by_rows

OutputHessian = Callable[[Tensor, Tensor, Tensor], Tensor]
"""`H v` in the outputs, sample by sample: `(outputs [n, C], y, v [n, C]) -> [n, C]`."""

TOGETHER = 8
"""How many vectors go through the network at once where memory holds them."""


class Kept(NamedTuple):
    """The network linearised on one batch: both products, the second for several vectors `[K, n, *C]` at once."""

    push: Callable[[Tensor], Tensor]
    pull: Callable[[Tensor], Tensor]
    outputs: Float[Tensor, "n *C"]
    y: Shaped[Tensor, "n *d"]
    s: Float[Tensor, " n"]


@dataclass(frozen=True, eq=False)
class GaussNewton:
    r"""$G = \sum_i s_i J_i^\top H_i J_i + r I$, a sum over rows, by products alone.

    $J_i$ is the Jacobian of the outputs and $H_i$ the Hessian of the loss in them. For softmax cross-entropy and
    squared error $G$ is the Fisher matrix; for a network linear in its weights it is the Hessian.

    **Arguments:**

    - `output`: $H$: `"loss"` for that of the network's own loss, `"identity"`, or a function `(outputs, y, v) -> H v`.
    - `sample_weights`: $s$; a row with weight zero costs nothing.
    - `ridge`: $r$, as a rule `count * decay`.
    - `keep`: keep the network linearised batch by batch after the first product. Later products then take about half
      the time, and memory grows with every row, whatever the budget: use it for many products over little data.
    - `batch_size`: rows that are read at once; they pass in parts where the memory budget holds fewer.
    """

    trained: Trained
    data: Data
    output: str | OutputHessian = "loss"
    sample_weights: Float[Tensor, " N"] | None = None
    ridge: float = 0.0
    keep: bool = False
    batch_size: int = 256
    _kept: list[Kept] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.output, str):
            check_choice("output", self.output, ("loss", "identity"))

    @property
    def size(self) -> int:
        """`P`."""
        return self.trained.size

    def multiply(self, v: Float[Tensor, "*K P"]) -> Float[Tensor, "*K P"]:
        """`G v`, for one vector or rows of vectors."""
        check_vector("v", v, self.trained)
        rows = v.detach().to(self.trained.dtype).reshape(-1, self.size)
        together = vectors_at_once(self.trained, min(TOGETHER, len(rows)))
        parts = self._from_kept(rows, together) if self.keep else self._there_and_back(rows, together)
        # Its shape is all that is asked of a zero.
        zero = rows.new_zeros(()).expand_as(rows)
        product = total_by_rows(self.trained, parts, zero).to(v.dtype).reshape(v.shape)
        return product + self.ridge * v if self.ridge else product

    def _there_and_back(self, rows: Float[Tensor, "K P"], together: int) -> Iterator[Rows]:
        """Forward mode keeps nothing, so many rows go there at once; as few as the tape leaves room for come back."""
        for one, where in self._stream(together, forward=True):
            u = self._pushed(one, self._counts(where), rows, together)
            for part, place in in_parts(self.trained, one, together, taped=True):
                yield from self._pulled(part.x, u[:, place], together)

    def _pushed(self, one: Batch, s: Float[Tensor, " n"], rows: Tensor, together: int) -> Float[Tensor, "K n *C"]:
        """`s H J v` of a batch for every vector."""
        f = as_function(self.trained, one.x)
        w = self.trained.weights.detach()

        def push(v: Tensor) -> Tensor:
            outputs, jv = jvp(f, (w,), (v,))[:2]
            return self._weighed(outputs.detach(), one.y, jv, s)

        if together == 1:  # one by one, without what `vmap` asks of the network
            with fewer_passes(self.trained.device):
                return torch.stack([push(v) for v in rows])
        return torch.cat([vmap(push)(some) for some in rows.split(together)])

    def _pulled(self, x: Inputs, u: Float[Tensor, "K n *C"], together: int) -> Iterator[Rows]:
        """`Jᵀ u` by autograd's own tape, on which a network may compute activations anew; a few vectors at a time."""
        with torch.enable_grad():
            at = self.trained.weights.detach().requires_grad_()
            # One vector may come back through fused attention, which knows no `vmap`.
            outputs = self.trained.outputs(x, at) if together == 1 else as_function(self.trained, x)(at)
        for i in range(0, len(u), together):
            some, again = u[i : i + together], i + together < len(u)
            if len(some) > 1:
                yield i, torch.autograd.grad(outputs, at, some, retain_graph=again, is_grads_batched=True)[0]
            else:
                yield i, torch.autograd.grad(outputs, at, some[0], retain_graph=again)[0].unsqueeze(0)

    def _from_kept(self, rows: Float[Tensor, "K P"], together: int) -> Iterator[Rows]:
        for at in self._linearised(together):
            for i in range(0, len(rows), together):
                yield i, at.pull(self._pushed_again(at, rows[i : i + together], together))

    def _pushed_again(self, at: Kept, some: Float[Tensor, "k P"], together: int) -> Float[Tensor, "k n *C"]:
        def push(v: Tensor) -> Tensor:
            return self._weighed(at.outputs, at.y, at.push(v), at.s)

        return push(some[0]).unsqueeze(0) if together == 1 else vmap(push)(some)

    def _linearised(self, vectors: int = 1) -> Iterator[Kept]:
        if self._kept:
            yield from self._kept
            return
        made = []
        for one, where in self._stream(vectors):
            made.append(_linearise(self.trained, one.x, one.y, self._counts(where)))
            yield made[-1]
        self._kept.extend(made)  # only a sweep that came to its end is worth keeping

    def _stream(self, vectors: int, *, forward: bool = False) -> Iterator[tuple[Batch, Tensor]]:
        return stream(
            self.trained, self.data, counted(self.data, self.sample_weights), batch_size=self.batch_size,
            vectors=vectors, forward=forward, label="Gauss-Newton product",
        )  # fmt: skip

    def _counts(self, where: Tensor) -> Float[Tensor, " n"]:
        s = torch.ones(len(where)) if self.sample_weights is None else self.sample_weights.detach().cpu()[where]
        return s.to(self.trained.weights)

    def _weighed(self, outputs: Tensor, y: Tensor, jv: Tensor, s: Tensor) -> Float[Tensor, "n *C"]:
        hv = self.output_product(outputs, y, jv)
        return hv * s.reshape(-1, *[1] * (hv.ndim - 1))

    def output_product(
        self, outputs: Float[Tensor, "n *C"], y: Shaped[Tensor, "n *d"], jv: Float[Tensor, "n *C"]
    ) -> Float[Tensor, "n *C"]:
        """`H v`, sample by sample, in the outputs."""
        if self.output == "identity":
            return jv
        H = self.trained.loss.hessian_product if isinstance(self.output, str) else self.output
        return H(outputs, y, jv)


def _linearise(trained: Trained, x: Inputs, y: Tensor, s: Tensor) -> Kept:
    """To be kept: one pass serves all products there and back."""
    f = as_function(trained, x)
    w = trained.weights
    outputs, pull = vjp(f, w)[:2]
    return Kept(_push(f, w), lambda u: vmap(lambda one: pull(one)[0])(u), outputs.detach(), y, s)


def _push(f: Callable[[Tensor], Tensor], w: Tensor) -> Callable[[Tensor], Tensor]:
    with warnings.catch_warnings():
        # Folding constants in the traced graph warns about its own get_attr nodes.
        warnings.filterwarnings("ignore", message="Attempted to insert a get_attr Node")
        try:
            return linearize(f, w)[1]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            # A network that looks at values (`.item()`) leaves no graph; what is wrong with it otherwise is said below.
            return lambda v: jvp(f, (w,), (v,))[1]
