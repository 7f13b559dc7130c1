"""The Gauss-Newton matrix over a data set, which for a likelihood is the Fisher matrix."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.func import jvp, linearize, vjp, vmap

from spotlessnet.core.data import Data
from spotlessnet.core.errors import check_choice
from spotlessnet.core.source import Inputs
from spotlessnet.core.trained import Trained
from spotlessnet.operators.jacobian import as_function
from spotlessnet.operators.matrix import check_vector
from spotlessnet.operators.room import vectors_at_once
from spotlessnet.operators.sums import counted, stream, total_of

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
        parts = self._products(rows, together)
        product = total_of(self.trained, parts, torch.zeros_like(rows)).to(v.dtype).reshape(v.shape)
        return product + self.ridge * v if self.ridge else product

    def _products(self, rows: Float[Tensor, "K P"], together: int) -> Iterator[Float[Tensor, "K P"]]:
        for at in self._linearised(together):
            product = self._product(at, rows, together)
            del at  # or what one batch keeps for its way back would lie beside the next one's
            yield product

    def _linearised(self, vectors: int = 1) -> Iterator[Kept]:
        if self._kept:
            yield from self._kept
            return
        positions = counted(self.data, self.sample_weights)
        made = []
        weights = torch.ones(len(self.data)) if self.sample_weights is None else self.sample_weights.detach().cpu()
        batches = stream(
            self.trained,
            self.data,
            positions,
            batch_size=self.batch_size,
            vectors=vectors,
            taped=not self.keep,
            label="Gauss-Newton product",
        )
        for one, where in batches:
            s = weights[where].to(self.trained.weights)
            if self.keep:
                made.append(_linearise(self.trained, one.x, one.y, s))
                yield made[-1]
            else:
                yield _taped(self.trained, one.x, one.y, s, vectors)
        self._kept.extend(made)  # only a sweep that came to its end is worth keeping

    def _product(self, at: Kept, rows: Float[Tensor, "K P"], together: int) -> Float[Tensor, "K P"]:
        def pushed(v: Tensor) -> Tensor:
            hv = self.output_product(at.outputs, at.y, at.push(v))
            return hv * at.s.reshape(-1, *[1] * (hv.ndim - 1))

        if together == 1:  # one by one, without what `vmap` asks of the network
            found = [at.pull(pushed(v).unsqueeze(0)) for v in rows]
        else:
            found = [at.pull(vmap(pushed)(some)) for some in rows.split(together)]
        return torch.cat(found) if len(found) != 1 else found[0]

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


def _taped(trained: Trained, x: Inputs, y: Tensor, s: Tensor, vectors: int) -> Kept:
    """By autograd's own tape, on which a network may compute activations anew; forward mode runs the network again."""
    f = as_function(trained, x)
    w = trained.weights.detach()
    with torch.enable_grad():
        at = w.clone().requires_grad_()
        # One vector may come back through fused attention: only several at once, and forward mode, need it spelled out.
        outputs = trained.outputs(x, at) if vectors == 1 else f(at)

    def pull(u: Tensor) -> Tensor:
        if len(u) > 1:
            return torch.autograd.grad(outputs, at, u, retain_graph=True, is_grads_batched=True)[0]
        return torch.autograd.grad(outputs, at, u[0], retain_graph=True)[0].unsqueeze(0)

    return Kept(lambda v: jvp(f, (w,), (v,))[1], pull, outputs.detach(), y, s)


def _push(f: Callable[[Tensor], Tensor], w: Tensor) -> Callable[[Tensor], Tensor]:
    with warnings.catch_warnings():
        # Folding constants in the traced graph warns about its own get_attr nodes.
        warnings.filterwarnings("ignore", message="Attempted to insert a get_attr Node")
        return linearize(f, w)[1]
