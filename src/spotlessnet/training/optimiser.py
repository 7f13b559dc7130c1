"""The update rules and schedules of `torch.optim` on flat weights, for one network `[P]` or many `[S, P]` at once."""

from dataclasses import dataclass, replace
from math import cos, pi

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)

WARM_UP = 0.3
"""The share of a one-cycle schedule that climbs."""


@dataclass(eq=False)
class Optimiser:
    r"""SGD, Adam or AdamW: the state that a step needs beside weights and gradient, and the step itself.

    Not `torch.optim` itself, because networks that share a program may sit steps out one by one, and because the state
    must lie in plain tensors that can be written without pickle. The rules are the same, as the tests show.

    **Arguments:**

    - `decay`: $\lambda$, one number, or one per weight where some are spared.
    - `anchor`: what the decay pulls to.
    - `slots`: momentum, or the two moments of Adam and the count of steps, each with the leading axes of the weights.
    """

    recipe: Recipe
    decay: float | Float[Tensor, " P"]
    anchor: Float[Tensor, "*S P"]
    slots: dict[str, Tensor]

    @staticmethod
    def of(trained: Trained, recipe: Recipe, w: Float[Tensor, "*S P"], anchor: Float[Tensor, "*S P"]) -> "Optimiser":
        """Before the first step."""
        if recipe.optimizer == "sgd":
            slots = {"momentum": torch.zeros_like(w)}
        else:
            # In float64: 1 - 0.999 in float32 is wrong in the fifth digit, and everything is divided by it.
            count = torch.zeros(*w.shape[:-1], 1, dtype=torch.float64, device=w.device)
            slots = {"exp_avg": torch.zeros_like(w), "exp_avg_sq": torch.zeros_like(w), "count": count}
        toward = torch.zeros_like(anchor) if recipe.decay_toward == "zero" else anchor
        return Optimiser(recipe, decay_of(trained, recipe), toward, slots)

    def take(self, which: Bool[Tensor, " S"]) -> "Optimiser":
        """That of some of the networks."""
        slots = {name: value[which] for name, value in self.slots.items()}
        return replace(self, anchor=self.anchor[which], slots=slots)

    def prepare_(self, g: Float[Tensor, "*S P"], w: Float[Tensor, "*S P"]) -> None:
        """Clip the gradient, then add that of the penalty, in the order of a loop around `torch.optim`."""
        if self.recipe.max_grad_norm is not None:
            length = g.norm(dim=-1, keepdim=True)
            g.mul_((self.recipe.max_grad_norm / (length + 1e-6)).clamp(max=1.0))
        if not self.recipe.weight_decay or self.recipe.optimizer == "adamw":
            return
        if isinstance(self.decay, Tensor):
            g.addcmul_(w - self.anchor, self.decay)
        else:
            g.add_(w - self.anchor, alpha=self.decay)

    def step_(
        self,
        w: Float[Tensor, "*S P"],
        g: Float[Tensor, "*S P"],
        lr: float,
        moves: Bool[Tensor, "S 1"] | None = None,
    ) -> None:
        """One update in place. Networks for which `moves` is false stay as they are, state included."""
        before = None if moves is None else [value.clone() for value in (w, *self.slots.values())]
        if self.recipe.optimizer == "sgd":
            self.slots["momentum"].mul_(self.recipe.momentum).add_(g)
            w.sub_(self.slots["momentum"], alpha=lr)
        else:
            self._adam_(w, g, lr)
        if moves is not None and before is not None:
            for now, then in zip((w, *self.slots.values()), before, strict=True):
                now.copy_(torch.where(moves, now, then))

    def _adam_(self, w: Float[Tensor, "*S P"], g: Float[Tensor, "*S P"], lr: float) -> None:
        mean, square, count = self.slots["exp_avg"], self.slots["exp_avg_sq"], self.slots["count"]
        first, second = self.recipe.betas
        count.add_(1)
        if self.recipe.optimizer == "adamw" and self.recipe.weight_decay:
            w.sub_((w - self.anchor) * self.decay, alpha=lr)
        mean.lerp_(g, 1 - first)
        square.mul_(second).addcmul_(g, g, value=1 - second)
        unbiased = (1 - second**count).sqrt().to(w.dtype)
        size = square.sqrt().div_(unbiased).add_(self.recipe.eps)
        w.sub_((lr / (1 - first**count)).to(w.dtype) * (mean / size))


def decay_of(trained: Trained, recipe: Recipe) -> float | Float[Tensor, " P"]:
    """The decay, or one number per weight: zero for biases and normalisation layers where the recipe spares them."""
    if recipe.decay_on == "all" or not recipe.weight_decay:
        return recipe.weight_decay
    spared = {
        f"{path}.{name}" if path else name
        for path, module in trained.model.named_modules()
        if isinstance(module, NORMS)
        for name, _ in module.named_parameters(recurse=False)
    }
    each = trained.weights.new_full((trained.size,), recipe.weight_decay)
    for name, piece in trained.unflatten(each).items():
        if piece.ndim < 2 or name in spared:
            piece.zero_()
    return each


def lr_at(recipe: Recipe, step: int, total: int) -> float:
    r"""The learning rate of update `step`, counted from zero, out of `total`.

    Constant: $\eta$. Cosine: $\tfrac\eta2(1 + \cos\frac{\pi t}{T})$. Linear: $\eta (1 - t / T)$. Step: a tenth from
    half, a hundredth from three quarters. One-cycle: a cosine climb from $\eta / 25$ over the first 30 %, then a cosine
    fall to $\eta / 250000$. With a warm-up of $W$ steps the rate is $\eta (t + 1) / (W + 1)$ at first, and the
    schedule fills the steps that are left: torch's `SequentialLR` of a `LinearLR` and the schedule.

    >>> [lr_at(Recipe(lr=1.0, schedule="step"), t, 8) for t in (0, 3, 4, 6)]
    [1.0, 1.0, 0.1, 0.01]
    """
    lr = recipe.lr
    warm = round(recipe.warmup_ratio * total)
    if step < warm:
        return lr * (step + 1) / (warm + 1)
    step, total = step - warm, total - warm
    if recipe.schedule == "linear":
        return lr * (total - step) / total
    if recipe.schedule == "cosine":
        return _between(lr, 0.0, step / total)
    if recipe.schedule == "step":
        if 4 * step >= 3 * total:
            return lr / 100
        return lr / 10 if 2 * step >= total else lr
    if recipe.schedule == "one-cycle":
        peak = WARM_UP * total - 1
        if step <= peak:
            return _between(lr / 25, lr, step / peak)
        return _between(lr, lr / 25e4, (step - peak) / (total - 1 - peak))
    return lr


def _between(a: float, b: float, share: float) -> float:
    return b + (a - b) / 2 * (1 + cos(pi * share))
