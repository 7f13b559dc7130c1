"""What was minimised: a loss per sample, its curvature in the outputs, and the labels it would draw."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.func import grad, jvp

from spotlessnet.core.errors import MismatchError, NeedError, SettingError


class Loss(ABC):
    """A loss that comes out **per sample**: outputs `[N, C]` and labels in, `[N]` numbers out.

    The curvature of the loss in the outputs is what turns Jacobians into Gauss-Newton and Fisher
    matrices, so a loss carries it. By default it is found by differentiating twice.
    """

    name: ClassVar[str]
    is_classification: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, " N"]:
        """One number per sample."""

    def hessian_product(
        self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"], v: Float[Tensor, "N *C"]
    ) -> Float[Tensor, "N *C"]:
        """`H v`, sample by sample, with `H` the Hessian of the loss in the outputs."""
        slope = grad(lambda out: self(out, y).sum())
        return jvp(slope, (outputs,), (v,))[1]

    def hessian_root(self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, "N C R"]:
        """`S` with `S Sᵀ = H`, sample by sample; the fewer columns, the cheaper an exact Fisher."""
        columns = [self.hessian_product(outputs, y, _unit(outputs, c)) for c in range(outputs.shape[1])]
        values, vectors = torch.linalg.eigh(torch.stack(columns, dim=2))
        return vectors * values.clamp(min=0).sqrt().unsqueeze(1)

    def sample(self, outputs: Float[Tensor, "N C"], generator: torch.Generator) -> Shaped[Tensor, "N *d"]:
        """Labels drawn from the model's own distribution."""
        raise NeedError(
            f"The loss {self.name!r} has no distribution to draw labels from. "
            'Use the exact Fisher (`kind="exact"`) or a loss that names one.'
        )

    def mistakes(self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, " N"]:
        """The error per sample that people read: wrong or right for classes, the loss otherwise."""
        return self(outputs, y)


def wrong_class(outputs: Float[Tensor, "N C"], y: Shaped[Tensor, " N"]) -> Float[Tensor, " N"]:
    """One where the largest output is not the label's, zero elsewhere."""
    return (outputs.argmax(dim=1) != y).to(outputs.dtype)


def _unit(outputs: Float[Tensor, "N C"], c: int) -> Float[Tensor, "N C"]:
    v = torch.zeros_like(outputs)
    v[:, c] = 1
    return v


@dataclass(frozen=True)
class CrossEntropy(Loss):
    r"""Softmax cross-entropy, $-\log p_y$; its output Hessian is $\mathrm{diag}(p) - pp^\top$.

    **Arguments:**

    - `label_smoothing`: $s$, as in torch: $-(1 - s) \log p_y - \tfrac{s}{C} \sum_c \log p_c$, with the same Hessian.
    """

    name: ClassVar[str] = "cross-entropy"
    is_classification: ClassVar[bool] = True

    label_smoothing: float = 0.0

    def __call__(self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, " N"]) -> Float[Tensor, " N"]:
        # Not `nn.functional.cross_entropy`: it refuses float outputs under a nested forward-mode transform.
        right = outputs.gather(1, y.long().unsqueeze(1)).squeeze(1)
        if self.label_smoothing:
            right = right.lerp(outputs.mean(dim=1), self.label_smoothing)
        return outputs.logsumexp(dim=1) - right

    def hessian_product(
        self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, " N"], v: Float[Tensor, "N C"]
    ) -> Float[Tensor, "N C"]:
        p = outputs.softmax(dim=1)
        return p * (v - (p * v).sum(dim=1, keepdim=True))

    def hessian_root(self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, " N"]) -> Float[Tensor, "N C R"]:
        r"""`R = C - 1` columns: $H = \mathrm{diag}(q)(I - qq^\top)\mathrm{diag}(q)$ with $q = \sqrt p$ of length one.

        The reflection that takes `q` to an axis gives an orthonormal basis of its complement.
        """
        q = (0.5 * outputs.log_softmax(dim=1)).exp()
        # Reflect onto the axis of the largest entry, on the side away from q: no cancellation.
        top = q.argmax(dim=1, keepdim=True)
        u = q.scatter_add(1, top, torch.ones_like(top, dtype=q.dtype))
        u = u / u.norm(dim=1, keepdim=True)
        reflection = torch.eye(q.shape[1], dtype=q.dtype, device=q.device) - 2 * u.unsqueeze(2) * u.unsqueeze(1)
        others = torch.arange(q.shape[1] - 1, device=q.device).expand(len(q), -1)
        others = others + (others >= top).long()  # every column but the axis itself
        basis = reflection.gather(2, others.unsqueeze(1).expand(-1, q.shape[1], -1))
        return q.unsqueeze(2) * basis

    def sample(self, outputs: Float[Tensor, "N C"], generator: torch.Generator) -> Shaped[Tensor, " N"]:
        return torch.multinomial(outputs.softmax(dim=1), 1, generator=generator).squeeze(1)

    def mistakes(self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, " N"]) -> Float[Tensor, " N"]:
        return wrong_class(outputs, y)


@dataclass(frozen=True)
class SquaredError(Loss):
    r"""$\tfrac12\|f - y\|^2$; its output Hessian is the identity. Class numbers become one-hot targets."""

    name: ClassVar[str] = "squared error"

    def __call__(self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, " N"]:
        return 0.5 * (outputs - targets_like(outputs, y)).square().flatten(1).sum(dim=1)

    def hessian_product(
        self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"], v: Float[Tensor, "N *C"]
    ) -> Float[Tensor, "N *C"]:
        return v

    def hessian_root(self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, "N C R"]:
        eye = torch.eye(outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
        return eye.expand(len(outputs), -1, -1)

    def sample(self, outputs: Float[Tensor, "N C"], generator: torch.Generator) -> Shaped[Tensor, "N C"]:
        noise = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype, device=outputs.device)
        return outputs + noise


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    r"""Several yes-or-no labels at once: $\sum_c \mathrm{softplus}(f_c) - y_c f_c$."""

    name: ClassVar[str] = "binary cross-entropy"

    def __call__(self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, " N"]:
        y = y.to(outputs.dtype).reshape(outputs.shape)
        # softplus(f) = max(f, 0) + log(1 + e^{−|f|}): the exponential never overflows.
        return (outputs.clamp(min=0) - y * outputs + torch.log1p((-outputs.abs()).exp())).sum(dim=1)

    def hessian_product(
        self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, "N *d"], v: Float[Tensor, "N C"]
    ) -> Float[Tensor, "N C"]:
        p = outputs.sigmoid()
        return p * (1 - p) * v

    def hessian_root(self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, "N C R"]:
        p = outputs.sigmoid()
        return (p * (1 - p)).sqrt().diag_embed()

    def sample(self, outputs: Float[Tensor, "N C"], generator: torch.Generator) -> Shaped[Tensor, "N C"]:
        return torch.bernoulli(outputs.sigmoid(), generator=generator)

    def mistakes(self, outputs: Float[Tensor, "N C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, " N"]:
        wrong: Bool[Tensor, "N C"] = (outputs > 0) != (y.reshape(outputs.shape) > 0.5)
        return wrong.to(outputs.dtype).mean(dim=1)


@dataclass(frozen=True)
class PerSample(Loss):
    """A loss of the user's own, as `function(outputs, y) -> [N]`.

    Its curvature is found by differentiating twice, so the function must be smooth in the outputs.
    """

    function: Callable[[Tensor, Tensor], Tensor]
    name: ClassVar[str] = "given per sample"

    def __call__(self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, " N"]:
        values = self.function(outputs, y)
        if values.shape != outputs.shape[:1]:
            raise MismatchError(
                f"A loss must give one number per sample, shape ({len(outputs)},), but gave {tuple(values.shape)}. "
                'Build it with `reduction="none"` and sum over everything but the first axis.'
            )
        return values


LOSSES: dict[str, type[Loss]] = {
    "cross-entropy": CrossEntropy,
    "squared-error": SquaredError,
    "binary-cross-entropy": BinaryCrossEntropy,
}
"""By the names that flags, case files and calls may give."""


def smoothed(loss: Loss, amount: float) -> Loss:
    """The loss with labels smoothed by so much; cross-entropy only."""
    if not amount:
        return loss
    if not isinstance(loss, CrossEntropy):
        raise SettingError(
            f"`Recipe.label_smoothing` needs softmax cross-entropy, but the loss is {loss.name!r}. Set it to zero."
        )
    return CrossEntropy(label_smoothing=amount)


def targets_like(outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, "N *C"]:
    """`y` in the shape of the outputs: class numbers become one-hot rows."""
    if y.shape == outputs.shape:
        return y.to(outputs.dtype)
    if y.ndim == 1 and not y.is_floating_point() and outputs.ndim == 2 and outputs.shape[1] > 1:
        return torch.nn.functional.one_hot(y.long(), outputs.shape[1]).to(outputs.dtype)
    if y.numel() == outputs.numel():
        return y.to(outputs.dtype).reshape(outputs.shape)
    raise MismatchError(
        f"Targets of shape {tuple(y.shape)} do not fit outputs of shape {tuple(outputs.shape)}. "
        "Give targets of the outputs' shape, or class numbers."
    )
