"""Losses made from others: turned round, weighted by row, or taught by another network."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from spotlessnet.core.loss import CrossEntropy, Loss


@dataclass(frozen=True)
class Distillation(Loss):
    r"""$T^2\, KL(\mathrm{softmax}(t/T) \,\|\, \mathrm{softmax}(f/T))$ with the teacher's logits $t$ as labels.

    At an infinite temperature its limit, squared error on centred logits:
    $\frac{1}{2C} \|(t - \bar t) - (f - \bar f)\|^2$, which sees every margin alike, however sure it is.
    """

    name: ClassVar[str] = "distillation"
    temperature: float = 1.0

    def __call__(self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, "N C"]) -> Float[Tensor, " N"]:
        T = self.temperature
        if math.isinf(T):
            return (y - outputs).var(dim=1, correction=0) / 2
        teacher, student = (y / T).log_softmax(dim=1), (outputs / T).log_softmax(dim=1)
        return T**2 * (teacher.exp() * (teacher - student)).sum(dim=1)


@dataclass(frozen=True)
class Weighted(Loss):
    """Cross-entropy with labels `[class, weight]`: a negative weight turns going down into going up."""

    name: ClassVar[str] = "weighted cross-entropy"

    def __call__(self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, "N 2"]) -> Float[Tensor, " N"]:
        return y[:, 1].to(outputs.dtype) * CrossEntropy()(outputs, y[:, 0].long())


@dataclass(frozen=True)
class WeightedDistillation(Loss):
    """Distillation with labels `[teacher's logits, temperature, weight]`, a temperature for every row."""

    name: ClassVar[str] = "weighted distillation"

    def __call__(self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, "N D"]) -> Float[Tensor, " N"]:
        teacher, T, weight = (part.to(outputs.dtype) for part in (y[:, :-2], y[:, -2:-1], y[:, -1]))
        is_finite = T.isfinite()
        T = torch.where(is_finite, T, 1.0)
        log_p, log_q = (teacher / T).log_softmax(dim=1), (outputs / T).log_softmax(dim=1)
        kl = T.squeeze(1) ** 2 * (log_p.exp() * (log_p - log_q)).sum(dim=1)
        return weight * torch.where(is_finite.squeeze(1), kl, Distillation(math.inf)(outputs, teacher))


@dataclass(frozen=True)
class TaughtAndTold(Loss):
    r"""$\alpha\, KL(teacher \| f) + \gamma\, \ell(f, class)$ with labels `[teacher's logits, class]`."""

    name: ClassVar[str] = "distillation and cross-entropy"
    alpha: float = 0.5
    gamma: float = 1.0

    def __call__(self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, "N D"]) -> Float[Tensor, " N"]:
        taught = Distillation()(outputs, y[:, :-1].to(outputs.dtype))
        return self.alpha * taught + self.gamma * CrossEntropy()(outputs, y[:, -1].long())


@dataclass(frozen=True)
class Negated(Loss):
    """A loss with its sign turned, so that going down is going up."""

    name = "negated"
    loss: Loss

    def __call__(self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, " N"]:
        return -self.loss(outputs, y)

    def mistakes(self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, " N"]:
        return self.loss.mistakes(outputs, y)


def with_weights(labels: Shaped[Tensor, "N *d"], weights: Float[Tensor, " N"]) -> Float[Tensor, "N D"]:
    """Labels for `Weighted`; for `WeightedDistillation` the temperature goes before the weight."""
    return torch.cat([labels.to(weights).reshape(len(weights), -1), weights.unsqueeze(1)], dim=1)
