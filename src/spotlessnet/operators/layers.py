"""Layers whose per-sample gradients have a closed form: what entered times what came back.

For a layer that is linear in its weights, the gradient of one sample is a product of its input and the gradient at
its output, so a whole batch of them costs one batched matrix product.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from spotlessnet.core.trained import Trained

UNFOLDED = {"cpu": 2**20, "cuda": 2**27}
"""How many entries of unfolded images are written out at a time; on the CPU, what stays in the cache."""

CONVOLVED = 2**16
"""From how many entries of one unfolded image on a convolution per sample pays for being called so often."""


@dataclass(frozen=True, eq=False)
class Layer(ABC):
    """A module whose per-sample gradients have a closed form; `weight` and `bias` name what takes part."""

    module: Any
    weight: str | None
    bias: str | None

    columns_together: ClassVar[bool] = True
    """Whether several columns at once cost less than one after the other."""

    def parts(self, most: int) -> list[slice]:
        """Pieces of the weight's input axis, with at most `most` weights each if that can be had."""
        return [slice(None)]

    @abstractmethod
    def weight_rows(
        self, entered: Float[Tensor, "n *a"], returned: Float[Tensor, "n R *b"], part: slice
    ) -> Float[Tensor, "n R *w"]:
        """One gradient of a piece of the weight per sample and per column of what came back."""

    def weight_squares(
        self, entered: Float[Tensor, "n *a"], returned: Float[Tensor, "n R *b"]
    ) -> Float[Tensor, "*w"] | None:
        """`Σ g²` over samples and columns, where no gradient need be written out for it; `None` elsewhere."""
        return None

    @abstractmethod
    def bias_rows(self, returned: Float[Tensor, "n R *b"]) -> Float[Tensor, "n R *w"]:
        """One gradient of the bias per sample and column."""


class LinearLayer(Layer):
    """`nn.Linear`, on vectors or on any number of positions."""

    # Together they would have to be copied side by side, with as many numbers in a line as there are positions.
    columns_together = False

    def parts(self, most: int) -> list[slice]:
        return _pieces(self.module.in_features, self.module.out_features, most)

    def weight_rows(
        self, entered: Float[Tensor, "n *a"], returned: Float[Tensor, "n R *b"], part: slice
    ) -> Float[Tensor, "n R *w"]:
        # Positions of one row share the weight, so their outer products are summed: a product over that axis.
        A = entered[..., part].to(returned.dtype)
        A = A.reshape(len(A), -1, A.shape[-1])
        G = returned.reshape(*returned.shape[:2], -1, returned.shape[-1]).transpose(2, 3)
        rows = torch.bmm(G.reshape(len(G), -1, G.shape[-1]), A)
        return rows.reshape(*G.shape[:3], A.shape[-1])

    def weight_squares(
        self, entered: Float[Tensor, "n *a"], returned: Float[Tensor, "n R *b"]
    ) -> Float[Tensor, "*w"] | None:
        if entered.ndim != 2:
            return None  # a sum over positions, and its square is not the sum of theirs
        # The gradient is an outer product, so its squares are the outer product of squares.
        return returned.square().sum(dim=1).T @ entered.to(returned.dtype).square()

    def bias_rows(self, returned: Float[Tensor, "n R *b"]) -> Float[Tensor, "n R *w"]:
        return returned.reshape(*returned.shape[:2], -1, returned.shape[-1]).sum(dim=2)


class ConvLayer(Layer):
    """`nn.Conv2d` with zero padding, grouped or not."""

    def parts(self, most: int) -> list[slice]:
        m = self.module
        inputs = m.in_channels // m.groups
        return _pieces(inputs, m.out_channels * m.kernel_size[0] * m.kernel_size[1], most)

    def weight_rows(
        self, entered: Float[Tensor, "n *a"], returned: Float[Tensor, "n R *b"], part: slice
    ) -> Float[Tensor, "n R *w"]:
        m, (n, R) = self.module, returned.shape[:2]
        A = entered.to(returned.dtype).unflatten(1, (m.groups, -1))[:, :, part].flatten(1, 2)
        shape = (m.out_channels, A.shape[1] // m.groups, *m.kernel_size)
        unfolded = A[0].numel() * math.prod(m.kernel_size)
        # Unfolding copies each pixel once per tap; for one column of a large image the backward convolution is cheaper.
        if R == 1 and unfolded >= CONVOLVED and self._convolves(A):
            rows = A.new_empty(n, 1, *shape)
            for i in range(n):
                rows[i, 0] = conv2d_weight(A[i : i + 1], shape, returned[i], m.stride, m.padding, m.dilation)
            return rows
        G = returned.unflatten(2, (m.groups, -1)).transpose(1, 2).reshape(n * m.groups, R * shape[0] // m.groups, -1)
        rows = A.new_empty(*G.shape[:2], math.prod(shape[1:]))
        step = max(1, UNFOLDED.get(A.device.type, 2**20) // unfolded)
        for i in range(0, n, step):
            few = slice(i * m.groups, (i + step) * m.groups)
            torch.bmm(G[few], self._unfolded(A[i : i + step]).transpose(1, 2), out=rows[few])
        return rows.reshape(n, m.groups, R, -1, rows.shape[-1]).transpose(1, 2).reshape(n, R, *shape)

    def _convolves(self, A: Float[Tensor, "n c h w"]) -> bool:
        """Whether the backward convolution of one sample, which unfolds nothing, is as fast as a product."""
        m = self.module
        # oneDNN is made for channels in blocks of 16; with others it can be sixty times slower than unfolding.
        blocks = A.shape[1] % 16 == 0 and m.out_channels % 16 == 0
        return A.device.type == "cpu" and m.groups == 1 and m.kernel_size != (1, 1) and blocks

    def _unfolded(self, A: Float[Tensor, "n c h w"]) -> Float[Tensor, "n_groups c_kernel T"]:
        m, each = self.module, len(A) * self.module.groups
        # A pointwise convolution is a linear layer over pixels: a strided view, and no copy.
        if m.kernel_size == (1, 1) and m.padding == (0, 0):
            return A[..., :: m.stride[0], :: m.stride[1]].reshape(each, A.shape[1] // m.groups, -1)
        U = nn.functional.unfold(A, m.kernel_size, m.dilation, m.padding, m.stride)
        return U.reshape(each, -1, U.shape[-1])

    def bias_rows(self, returned: Float[Tensor, "n R *b"]) -> Float[Tensor, "n R *w"]:
        return returned.flatten(3).sum(dim=3)


class BatchNormLayer(Layer):
    """`nn.BatchNorm1d/2d/3d` whose statistics stand still."""

    def weight_rows(
        self, entered: Float[Tensor, "n *a"], returned: Float[Tensor, "n R *b"], part: slice
    ) -> Float[Tensor, "n R *w"]:
        m = self.module
        x = entered.reshape(*entered.shape[:2], -1)
        # Statistics are constants here, so that a row does not depend on its batch; only then are there gradients per
        # row.
        x = (x - m.running_mean[:, None]) * (m.running_var[:, None] + m.eps).rsqrt()
        return (returned.reshape(*returned.shape[:3], -1) * x.unsqueeze(1)).sum(dim=3)

    def bias_rows(self, returned: Float[Tensor, "n R *b"]) -> Float[Tensor, "n R *w"]:
        return returned.reshape(*returned.shape[:3], -1).sum(dim=3)


class LayerNormLayer(Layer):
    """`nn.LayerNorm`."""

    def weight_rows(
        self, entered: Float[Tensor, "n *a"], returned: Float[Tensor, "n R *b"], part: slice
    ) -> Float[Tensor, "n R *w"]:
        m = self.module
        x = nn.functional.layer_norm(entered, m.normalized_shape, eps=m.eps)
        return self.bias_rows(returned * x.unsqueeze(1))

    def bias_rows(self, returned: Float[Tensor, "n R *b"]) -> Float[Tensor, "n R *w"]:
        shape = self.module.normalized_shape
        return returned.reshape(*returned.shape[:2], -1, *shape).sum(dim=2)


class LentLayer(Layer):
    """A parameter whose first axis has one entry, such as a class token or places: each row is lent a copy of its own.

    What comes back to the copy of a row is the row's gradient. Only where the network takes such copies and answers the
    same: `per_sample.plan` sees to that.
    """

    def weight_rows(
        self, entered: Float[Tensor, "n *a"], returned: Float[Tensor, "n R *b"], part: slice
    ) -> Float[Tensor, "n R *w"]:
        return returned.unsqueeze(2).clone()  # the gradient may be shared with another place

    def bias_rows(self, returned: Float[Tensor, "n R *b"]) -> Float[Tensor, "n R *w"]:
        raise NotImplementedError("a parameter that is lent has no bias")


KINDS: dict[type[nn.Module], type[Layer]] = {
    nn.Linear: LinearLayer,
    nn.Conv2d: ConvLayer,
    nn.BatchNorm1d: BatchNormLayer,
    nn.BatchNorm2d: BatchNormLayer,
    nn.BatchNorm3d: BatchNormLayer,
    nn.LayerNorm: LayerNormLayer,
}
"""Which modules have a closed form; subclasses do not count, since they may compute something else."""


def layers_of(trained: Trained) -> list[Layer]:
    """The layers that may have a closed form, in the order of the modules; tied weights are left out."""
    # A weight used in two places collects gradients from both; no closed form of one layer is then its own.
    places = Counter(id(p) for _, p in trained.model.named_parameters(remove_duplicate=False))
    found = []
    for path, module in trained.model.named_modules():
        kind = KINDS.get(type(module))
        if kind is None or not _has_closed_form(module):
            continue
        own = {name: p for name, p in module.named_parameters(recurse=False) if places[id(p)] == 1}
        full = {name: f"{path}.{name}" if path else name for name in own}
        weight, bias = (full[n] if n in full and full[n] in trained.names else None for n in ("weight", "bias"))
        if weight is not None or bias is not None:
            found.append(kind(module, weight, bias))
    return found


def _has_closed_form(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv2d):
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return module.running_mean is not None
    return True


def _pieces(inputs: int, per_input: int, most: int) -> list[slice]:
    width = max(1, min(inputs, most // per_input))
    return [slice(i, min(i + width, inputs)) for i in range(0, inputs, width)]
