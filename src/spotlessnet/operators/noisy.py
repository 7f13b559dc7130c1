"""A network whose weights are noisy, with the noise drawn where it tells most: on each layer's answer.

Kingma, Salimans and Welling (2015), *Variational Dropout and the Local Reparameterization Trick*; Wen et al. (2018),
*Flipout: Efficient Pseudo-Independent Weight Perturbations on Mini-Batches*.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from spotlessnet.core.data import Batch, Data
from spotlessnet.core.trained import Trained

AT_ONCE = 2**22
"""Entries of noise that are drawn for one layer whose positions share it."""

DRAWS = 64
"""The most draws of such a layer for a batch: more hardly lower what it errs by, and are slow in convolutions."""


class NoisyNetwork:
    r"""The network at $w + n$, $n \sim N(0, \mathrm{diag}(\sigma^2))$, differentiable in $\sigma$.

    A `Linear` layer that takes part once, on one vector a sample, answers $N(Wx + b,\; \sigma_W^2 x^2 + \sigma_b^2)$,
    drawn anew for each sample, which has the same distribution for each sample as noise on the weights and a less noisy
    gradient. Where a sample has many positions (`Conv2d`, or `Linear` on tokens) they share their weights and so their
    noise: there the weights are drawn for a few groups of samples, with signs of its own for each sample, input and
    output, which is again the distribution for each sample. All other weights (BatchNorm's, tied ones, those of layers
    called twice or whose input does not begin with the samples) get one draw for each batch.

    **Arguments:**

    - `data`: some rows, to see once which layers take part.
    - `draw`: where the noise comes from; on the network's device.
    """

    def __init__(self, trained: Trained, data: Data, draw: torch.Generator) -> None:
        self.draw = draw
        self.side = 1.0
        self.deviations = dict[str, Tensor]()
        network = trained.module()
        self.trained = replace(trained, model=network)
        local = _local_layers(self.trained, data)
        self.shared = torch.ones_like(trained.weights)
        for name, layer in local.items():
            layer.register_forward_hook(self._hook(name))
            for part in (f"{name}weight", f"{name}bias"):
                if part in trained.names:
                    trained.unflatten(self.shared)[part].zero_()

    def losses(self, batch: Batch, deviation: Float[Tensor, " P"]) -> Float[Tensor, " n"]:
        """The loss per sample, averaged over a draw and its mirror image; differentiable in the deviation.

        What is odd in the noise cancels, above all the loss's slope, which at a small deviation outweighs its
        curvature by far.
        """
        self.deviations = self.trained.unflatten(deviation)
        # The mirror image needs the same draws, layer by layer in the same order: the stream is set back.
        before = self.draw.get_state()
        there = self._one_side(batch, deviation, 1.0)
        self.draw.set_state(before)
        return 0.5 * (there + self._one_side(batch, deviation, -1.0))

    def _one_side(self, batch: Batch, deviation: Float[Tensor, " P"], side: float) -> Float[Tensor, " n"]:
        self.side = side
        n = self.shared * deviation * self._noise(deviation)
        return self.trained.losses(batch.x, batch.y, self.trained.weights + n)

    def _noise(self, like: Float[Tensor, "*d"]) -> Float[Tensor, "*d"]:
        return self.side * torch.randn(like.shape, generator=self.draw, dtype=like.dtype, device=like.device)

    def _hook(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def add_noise(layer: nn.Module, entered: tuple[Tensor, ...], answer: Tensor) -> Tensor:
            weight = self.deviations[f"{name}weight"]
            bias = self.deviations.get(f"{name}bias")
            if entered[0].ndim > 2:
                return answer + self._shared_by_positions(layer, entered[0], weight, bias)
            variance = _apply(layer, entered[0].square(), weight.square(), None if bias is None else bias.square())
            # The root has no slope at zero, where the input and the bias's variance vanish.
            return answer + (variance + torch.finfo(answer.dtype).tiny).sqrt() * self._noise(answer)

        return add_noise

    def _shared_by_positions(
        self, layer: nn.Module, x: Tensor, weight: Float[Tensor, "O ..."], bias: Float[Tensor, " O"] | None
    ) -> Tensor:
        """What noise on the weights adds to the layer's answer: the same at every position of a sample."""
        # Channels come second in a convolution, and last where a linear layer answers position by position.
        channels = (lambda v: v[:, :, None, None]) if isinstance(layer, nn.Conv2d) else (lambda v: _amid(v, x.ndim))
        enters = channels(self._signs(x, x.shape[1 if isinstance(layer, nn.Conv2d) else -1]))
        leaves = channels(self._signs(x, len(weight)))
        draws, each = _groups(len(x), weight.numel())
        noise = weight * self._noise(weight.expand(draws, *weight.shape))
        entering = enters * x
        if short := draws * each - len(x):
            entering = torch.cat([entering, x.new_zeros(short, *x.shape[1:])])
        groups = entering.unflatten(0, (draws, each))
        added = torch.vmap(lambda some, w: _apply(layer, some, w, None))(groups, noise).flatten(0, 1)
        added = leaves * added[: len(x)]
        if bias is None:
            return added
        return added + channels(bias * self._noise(bias.expand(len(x), -1)))

    def _signs(self, x: Tensor, count: int) -> Float[Tensor, "n C"]:
        """The same on both sides: the mirror image is of the noise, not of its signs."""
        return torch.randint(0, 2, (len(x), count), generator=self.draw, device=x.device).to(x.dtype) * 2 - 1


def _groups(samples: int, weights: int) -> tuple[int, int]:
    """How often a layer's weights are drawn for so many samples, and how many share a draw; the last group has less."""
    most = max(1, min(samples, DRAWS, AT_ONCE // weights))
    each = math.ceil(samples / most)
    return math.ceil(samples / each), each


def _amid(v: Float[Tensor, "n C"], dimensions: int) -> Float[Tensor, "n ... C"]:
    return v.reshape(len(v), *[1] * (dimensions - 2), v.shape[1])


def _apply(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if isinstance(layer, nn.Conv2d):
        return layer._conv_forward(x, weight, bias)
    return nn.functional.linear(x, weight, bias)


def _local_layers(trained: Trained, data: Data) -> dict[str, nn.Module]:
    """Layers whose weights enter the network in one place only, sample by sample: called once, not tied. By prefix."""
    network = trained.model
    names = [n for n, _ in network.named_parameters(remove_duplicate=False)]
    own = [id(p) for _, p in network.named_parameters(remove_duplicate=False)]
    once = {n for n, p in zip(names, own, strict=True) if own.count(p) == 1}
    named = {f"{name}." if name else "": layer for name, layer in network.named_modules()}
    layers = {
        name: layer
        for name, layer in named.items()
        if type(layer) in (nn.Linear, nn.Conv2d)
        and f"{name}weight" in set(trained.names) & once
        and (layer.bias is None or f"{name}bias" in once)
    }
    firsts: dict[str, list[int]] = {name: [] for name in layers}

    def counter(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def count(layer: nn.Module, entered: tuple[Tensor, ...], answer: Tensor) -> None:
            firsts[name].append(len(entered[0]))

        return count

    hooks = [layer.register_forward_hook(counter(name)) for name, layer in layers.items()]
    counts = []
    # Twice: what begins with two positions, not with two samples, does not begin with three of them.
    for most in (2, 3):
        with torch.no_grad():
            batch = next(iter(trained.batches(data, most)))
            trained.outputs(batch.x)
            counts.append(len(batch.y))
    for hook in hooks:
        hook.remove()
    return {name: layer for name, layer in layers.items() if firsts[name] == counts}
