"""A network whose weights are noisy, with the noise drawn where it tells most: on each layer's answer.

Kingma, Salimans and Welling (2015), *Variational Dropout and the Local Reparameterization Trick*.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from spotlessnet.core.data import Batch, Data
from spotlessnet.core.source import Inputs
from spotlessnet.core.trained import Trained


class NoisyNetwork:
    r"""The network at $w + n$, $n \sim N(0, \mathrm{diag}(\sigma^2))$, differentiable in $\sigma$.

    A `Linear` or `Conv2d` layer that takes part once answers $N(Wx + b,\; \sigma_W^2 x^2 + \sigma_b^2)$, drawn anew for
    each sample, which has the same distribution for each sample as noise on the weights and a less noisy gradient. In a
    convolution the draw is new for each position too: each has its variance, but not what they share. All other weights
    (BatchNorm's, tied ones, those of layers called twice) get one draw for each batch.

    **Arguments:**

    - `data`: some rows, to see once which layers take part.
    - `draw`: where the noise comes from; on the network's device.
    """

    def __init__(self, trained: Trained, data: Data, draw: torch.Generator) -> None:
        self.draw = draw
        self.side = 1.0
        self.variances = dict[str, Tensor]()
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
        self.variances = self.trained.unflatten(deviation.square())
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
            weight = self.variances[f"{name}weight"]
            bias = self.variances.get(f"{name}bias")
            variance = _apply(layer, entered[0].square(), weight, bias)
            # The root has no slope at zero, where the input and the bias's variance vanish.
            return answer + (variance + torch.finfo(answer.dtype).tiny).sqrt() * self._noise(answer)

        return add_noise


def _apply(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if isinstance(layer, nn.Conv2d):
        return layer._conv_forward(x, weight, bias)
    return nn.functional.linear(x, weight, bias)


def _local_layers(trained: Trained, data: Data) -> dict[str, nn.Module]:
    """Layers whose weights enter the network in one place only: called once, and not tied. Keyed by prefix."""
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
    calls = dict.fromkeys(layers, 0)

    def counter(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def count(layer: nn.Module, entered: tuple[Tensor, ...], answer: Tensor) -> None:
            calls[name] += 1

        return count

    hooks = [layer.register_forward_hook(counter(name)) for name, layer in layers.items()]
    with torch.no_grad():
        x: Inputs = next(iter(trained.batches(data, 2))).x
        trained.outputs(x)
    for hook in hooks:
        hook.remove()
    return {name: layer for name, layer in layers.items() if calls[name] == 1}
