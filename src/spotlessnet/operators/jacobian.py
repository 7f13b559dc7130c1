"""The Jacobian of the outputs in the weights, known by its products over a data set."""

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.func import jacrev, jvp

from spotlessnet.core.data import Batch, Data
from spotlessnet.core.errors import MismatchError, NeedError
from spotlessnet.core.recurrent import stepwise
from spotlessnet.core.source import Inputs
from spotlessnet.core.trained import Trained
from spotlessnet.operators.forward_mode import fewer_passes
from spotlessnet.operators.matrix import check_device, check_vector
from spotlessnet.operators.rows import attention_spelled_out, by_row
from spotlessnet.operators.sums import fill_over, stream, total_of


def as_function(trained: Trained, x: Inputs) -> Callable[[Tensor | dict[str, Tensor]], Tensor]:
    """The outputs on `x` as a function of the weights, flat or by name, that `torch.func` can go through."""

    def outputs(weights: Tensor | dict[str, Tensor]) -> Tensor:
        with attention_spelled_out(), stepwise() if trained.is_recurrent else nullcontext():
            try:
                return trained.outputs(x, weights)
            except NotImplementedError as e:
                if "forward AD" not in str(e):
                    raise
                raise NeedError(_no_forward_mode(str(e))) from e

    return outputs


def _no_forward_mode(said: str) -> str:
    """What torch says of an operation such as that of `nn.EmbeddingBag`, in a sentence with what to do."""
    named = re.search(r"forward AD with (\S+)", said)
    operation = "some operation" if named is None else named[1]
    return (
        f"This method needs products with the Jacobian, but torch has no forward derivative of {operation}, which "
        "this network uses. Take a method of gradients alone, such as `finetune` or `fisher`, or "
        "`short-retrain` where initial weights and training are known."
    )


@dataclass(frozen=True, eq=False)
class Jacobian:
    r"""$J = \partial f_w(x_i) / \partial w$ over all rows of `data`, `[N·C, P]`, never written out."""

    trained: Trained
    data: Data
    batch_size: int = 256

    def multiply(self, v: Float[Tensor, " P"]) -> Float[Tensor, "N *C"]:
        """`J v`: how the outputs of each row move when the weights move along `v`."""
        check_vector("v", v, self.trained)
        w, v = self.trained.weights, v.to(self.trained.dtype)

        def piece(one: Batch, where: Int64[Tensor, " n"]) -> Tensor:
            # Forward mode: one pass for all outputs, where the way back would take one for each.
            with fewer_passes(self.trained.device):
                return jvp(as_function(self.trained, one.x), (w,), (v,))[1]

        return fill_over(
            self.trained, self.data, piece, batch_size=self.batch_size, vectors=1, label="Jacobian product"
        )

    def transpose_multiply(self, u: Float[Tensor, "N *C"]) -> Float[Tensor, " P"]:
        """`Jᵀ u`: the sum over rows of their output gradients weighted by `u`."""
        if len(u) != len(self.data):
            raise MismatchError(f"u must have one row per row of data, {len(self.data)}, but has {len(u)}.")
        check_device("u", u, self.trained)
        w = self.trained.weights

        def parts() -> Iterator[Tensor]:
            everything = torch.arange(len(self.data))
            for one, where in stream(
                self.trained, self.data, everything, batch_size=self.batch_size, vectors=1, taped=True,
                label="Jacobian product",
            ):  # fmt: skip
                with torch.enable_grad():
                    at = w.detach().requires_grad_()
                    outputs = self.trained.outputs(one.x, at)
                yield torch.autograd.grad(outputs, at, u[where.to(u.device)].to(outputs).reshape(outputs.shape))[0]

        return total_of(self.trained, parts(), w.new_zeros(()).expand_as(w)).to(w.dtype)


def jacobian_rows(trained: Trained, x: Inputs) -> Float[Tensor, "n C P"]:
    """The dense Jacobian of a few rows; outputs with more axes than one are flattened."""

    def answer(single: Inputs) -> Callable[[Tensor], Tensor]:
        whole = {k: v.unsqueeze(0) for k, v in single.items()} if isinstance(single, dict) else single.unsqueeze(0)
        return lambda w: as_function(trained, whole)(w)[0].flatten()

    def one_row(single: Inputs) -> Tensor:
        # The way back: there are far fewer outputs than weights.
        return jacrev(answer(single))(trained.weights)

    def one_row_plainly(single: Inputs) -> Tensor:
        w = trained.weights.detach().requires_grad_()
        with torch.enable_grad():
            outputs = answer(single)(w)
        return torch.stack([torch.autograd.grad(one, w, retain_graph=True)[0] for one in outputs])

    return by_row(one_row, x, otherwise=one_row_plainly)
