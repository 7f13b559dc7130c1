"""What was minimised: a loss per sample, its curvature in the outputs, and the labels it would draw."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.func import grad, jvp

from spotlessnet.core.errors import DataError, MismatchError, NeedError, SettingError, shown
from spotlessnet.core.positions import Positions, laid_back, positions_of


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

    def hessian_root(self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, "N K R"]:
        """`S` with `S Sᵀ = H`, sample by sample; the fewer columns, the cheaper an exact Fisher.

        Outputs with several axes count as one vector of `K` numbers.
        """
        units = torch.eye(outputs[0].numel()).to(outputs).unflatten(1, outputs.shape[1:])
        columns = [self.hessian_product(outputs, y, unit.expand_as(outputs)).flatten(1) for unit in units]
        values, vectors = torch.linalg.eigh(torch.stack(columns, dim=2))
        return vectors * values.clamp(min=0).sqrt().unsqueeze(1)

    def score(
        self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"], generator: torch.Generator
    ) -> Float[Tensor, "N *C"]:
        """The slope in the outputs for labels drawn from the model; its outer product is `H` in the mean.

        **Arguments:**

        - `y`: says only where there are labels at all.
        """
        drawn = self.sample(outputs, generator)
        return grad(lambda out: self(out, drawn).sum())(outputs)

    def sample(self, outputs: Float[Tensor, "N *C"], generator: torch.Generator) -> Shaped[Tensor, "N *d"]:
        """Labels drawn from the model's own distribution."""
        raise NeedError(
            f"The loss {self.name!r} has no distribution to draw labels from. "
            'Use the exact Fisher (`kind="exact"`) or a loss that names one.'
        )

    def mistakes(self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, " N"]:
        """The error per sample that people read: wrong or right for classes, the loss otherwise."""
        return self(outputs, y)


def wrong_class(outputs: Float[Tensor, "*N C"], y: Shaped[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """One where the largest output is not the label's, zero elsewhere."""
    return (outputs.argmax(dim=-1) != y).to(outputs.dtype)


@dataclass(frozen=True)
class CrossEntropy(Loss):
    r"""Softmax cross-entropy, $-\log p_y$; its output Hessian is $\mathrm{diag}(p) - pp^\top$.

    Outputs may have positions, `[N, T, V]` or `[N, V, H, W]`, with one label each: a text or an image is then one
    example, whose loss is the mean over its positions that count.

    **Arguments:**

    - `label_smoothing`: $s$, as in torch: $-(1 - s) \log p_y - \tfrac{s}{C} \sum_c \log p_c$, with the same Hessian.
    - `ignore_index`: the label of positions that do not count, such as padding.
    - `class_axis`: where outputs with positions have their classes, 1 or -1; seen from the labels where it can be.
    - `ahead`: the answer at a position is for the label of the next one; see `NextToken`.
    """

    name: ClassVar[str] = "cross-entropy"
    is_classification: ClassVar[bool] = True

    label_smoothing: float = 0.0
    ignore_index: int = -100
    class_axis: int | None = None
    ahead: bool = False

    def __post_init__(self) -> None:
        if self.class_axis not in (None, 1, -1):
            raise SettingError(f"`CrossEntropy.class_axis` must be 1, -1 or None, but got {self.class_axis!r}.")

    def __call__(self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, " N"]:
        if not self.has_positions(outputs):
            return self._one(outputs, y)
        at = self.positions(outputs, y)
        return at.mean(self._one(at.logits, at.y))

    def _one(self, logits: Float[Tensor, "*N C"], y: Shaped[Tensor, "*N"]) -> Float[Tensor, "*N"]:
        # Not `nn.functional.cross_entropy`: it refuses float outputs under a nested forward-mode transform.
        right = logits.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)
        if self.label_smoothing:
            right = right.lerp(logits.mean(dim=-1), self.label_smoothing)
        return logits.logsumexp(dim=-1) - right

    def has_positions(self, outputs: Float[Tensor, "N *C"]) -> bool:
        """Whether outputs have more axes than one for the classes."""
        if self.ahead and outputs.ndim != 3:
            raise MismatchError(
                f"The loss {self.name!r} needs the positions of a text, outputs of shape [N, T, V], but the network "
                f"answers with shape {tuple(outputs.shape)}. Use plain cross-entropy."
            )
        return outputs.ndim > 2

    def positions(self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]) -> Positions:
        """The positions of every row, with the classes last."""
        return positions_of(outputs, y, self.ignore_index, self.class_axis, self.ahead)

    def labels_that_count(self, y: Shaped[Tensor, "N *d"]) -> Shaped[Tensor, " M"]:
        """The labels of all rows and positions in one list, without those that a network is never asked for."""
        asked = y[:, 1:] if self.ahead else y
        return asked[asked != self.ignore_index] if y.ndim > 1 else y

    def hessian_product(
        self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"], v: Float[Tensor, "N *C"]
    ) -> Float[Tensor, "N *C"]:
        if not self.has_positions(outputs):
            return _softmax_product(outputs, v)
        at, along = self.positions(outputs, y), self.positions(v, y)
        product = _softmax_product(at.logits, along.logits) * at.share.to(outputs).unsqueeze(2)
        return laid_back(product, outputs, y, self.class_axis, self.ahead)

    def hessian_root(self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, "N K R"]:
        """`C - 1` columns, and as many for each position."""
        if not self.has_positions(outputs):
            return _softmax_root(outputs)
        at = self.positions(outputs, y)
        N, T, C = at.logits.shape
        roots = _softmax_root(at.logits.flatten(0, 1)) * at.share.to(outputs).sqrt().reshape(N * T, 1, 1)
        # A position moves no other: its columns are zero elsewhere.
        whole = roots.new_zeros(N, T, C, T, C - 1)
        t = torch.arange(T, device=outputs.device)
        whole[:, t, :, t] = roots.reshape(N, T, C, C - 1).transpose(0, 1)
        columns = whole.reshape(N, T, C, -1).unbind(dim=3)
        back = [laid_back(column, outputs, y, self.class_axis, self.ahead).flatten(1) for column in columns]
        return torch.stack(back, dim=2)

    def sample(self, outputs: Float[Tensor, "N *C"], generator: torch.Generator) -> Shaped[Tensor, "N *d"]:
        if not self.has_positions(outputs):
            return torch.multinomial(outputs.softmax(dim=1), 1, generator=generator).squeeze(1)
        axis = -1 if self.class_axis is None and self.ahead else self.class_axis
        if axis is None:
            raise NeedError(
                "Labels of outputs with positions can be drawn only where the axis of the classes is known. Say it: "
                "`loss=sn.CrossEntropy(class_axis=-1)`, or `class_axis=1`."
            )
        p = outputs.movedim(axis, -1).softmax(dim=-1)
        drawn = torch.multinomial(p.flatten(0, -2), 1, generator=generator).reshape(p.shape[:-1])
        return drawn.roll(1, dims=1) if self.ahead else drawn

    def score(
        self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"], generator: torch.Generator
    ) -> Float[Tensor, "N *C"]:
        if not self.has_positions(outputs):
            return super().score(outputs, y, generator)
        at = self.positions(outputs, y)
        p = at.logits.softmax(dim=2)
        drawn = torch.multinomial(p.flatten(0, 1), 1, generator=generator).reshape(at.y.shape)
        # Positions are drawn one by one: the root of their share makes the mean of squares the Hessian of their mean.
        slope = (p - torch.nn.functional.one_hot(drawn, p.shape[2])) * at.share.to(p).sqrt().unsqueeze(2)
        return laid_back(slope, outputs, y, self.class_axis, self.ahead)

    def mistakes(self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, " N"]:
        if not self.has_positions(outputs):
            return wrong_class(outputs, y)
        at = self.positions(outputs, y)
        return at.mean(wrong_class(at.logits, at.y))


@dataclass(frozen=True)
class NextToken(CrossEntropy):
    """Cross-entropy of causal language models, whose labels are their inputs: each position answers for the next.

    A document is one example. Give -100 as the label of padding and of prompts that were not learnt.
    """

    name: ClassVar[str] = "next token"

    ahead: bool = True


def _softmax_product(logits: Float[Tensor, "*N C"], v: Float[Tensor, "*N C"]) -> Float[Tensor, "*N C"]:
    p = logits.softmax(dim=-1)
    return p * (v - (p * v).sum(dim=-1, keepdim=True))


def _softmax_root(outputs: Float[Tensor, "N C"]) -> Float[Tensor, "N C R"]:
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


@dataclass(frozen=True)
class SquaredError(Loss):
    r"""$\tfrac12\|f - y\|^2$; its output Hessian is the identity. Class numbers become one-hot targets.

    **Half** the square, summed over outputs: half of what `nn.MSELoss(reduction="sum")` gives for one row.
    """

    name: ClassVar[str] = "squared error"

    def __call__(self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, " N"]:
        return 0.5 * (outputs - targets_like(outputs, y)).square().flatten(1).sum(dim=1)

    def hessian_product(
        self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"], v: Float[Tensor, "N *C"]
    ) -> Float[Tensor, "N *C"]:
        return v

    def hessian_root(self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, "N K R"]:
        eye = torch.eye(outputs[0].numel(), dtype=outputs.dtype, device=outputs.device)
        return eye.expand(len(outputs), -1, -1)

    def sample(self, outputs: Float[Tensor, "N *C"], generator: torch.Generator) -> Shaped[Tensor, "N *C"]:
        noise = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype, device=outputs.device)
        return outputs + noise


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    r"""Several yes-or-no labels at once: $\sum_c \mathrm{softplus}(f_c) - y_c f_c$."""

    name: ClassVar[str] = "binary cross-entropy"

    def __call__(self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, " N"]:
        y = y.to(outputs.dtype).reshape(outputs.shape)
        # softplus(f) = max(f, 0) + log(1 + e^{−|f|}): the exponential never overflows.
        return (outputs.clamp(min=0) - y * outputs + torch.log1p((-outputs.abs()).exp())).flatten(1).sum(dim=1)

    def hessian_product(
        self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"], v: Float[Tensor, "N *C"]
    ) -> Float[Tensor, "N *C"]:
        p = outputs.sigmoid()
        return p * (1 - p) * v

    def hessian_root(self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, "N K R"]:
        p = outputs.flatten(1).sigmoid()
        return (p * (1 - p)).sqrt().diag_embed()

    def sample(self, outputs: Float[Tensor, "N *C"], generator: torch.Generator) -> Shaped[Tensor, "N *C"]:
        return torch.bernoulli(outputs.sigmoid(), generator=generator)

    def mistakes(self, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, " N"]:
        wrong = (outputs > 0) != (y.reshape(outputs.shape) > 0.5)
        return wrong.to(outputs.dtype).flatten(1).mean(dim=1)


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


@dataclass(frozen=True)
class Flat(Loss):
    """A loss for outputs with one axis per sample, where the network's own have the shape given."""

    name = "flat"
    loss: Loss
    shape: torch.Size

    def __call__(self, outputs: Float[Tensor, "N K"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, " N"]:
        return self.loss(outputs.unflatten(1, self.shape), y)

    def hessian_product(
        self, outputs: Float[Tensor, "N K"], y: Shaped[Tensor, "N *d"], v: Float[Tensor, "N K"]
    ) -> Float[Tensor, "N K"]:
        shaped, along = (one.unflatten(1, self.shape) for one in (outputs, v))
        return self.loss.hessian_product(shaped, y, along).flatten(1)

    def hessian_root(self, outputs: Float[Tensor, "N K"], y: Shaped[Tensor, "N *d"]) -> Float[Tensor, "N K R"]:
        return self.loss.hessian_root(outputs.unflatten(1, self.shape), y)

    def score(
        self, outputs: Float[Tensor, "N K"], y: Shaped[Tensor, "N *d"], generator: torch.Generator
    ) -> Float[Tensor, "N K"]:
        return self.loss.score(outputs.unflatten(1, self.shape), y, generator).flatten(1)


LOSSES: dict[str, type[Loss]] = {
    "cross-entropy": CrossEntropy,
    "next-token": NextToken,
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
    return replace(loss, label_smoothing=amount)


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


def as_loss(loss: Any) -> Loss:
    """A `Loss` from whatever was given: nothing, a loss, its name, or a function per sample."""
    if loss is None:
        return CrossEntropy()
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str) and loss in LOSSES:
        return LOSSES[loss]()
    if callable(loss):
        return PerSample(loss)
    names = ", ".join(repr(name) for name in LOSSES)
    raise SettingError(
        f"A loss must be a `Loss`, one of {names}, or a function of (outputs, y), but got {shown(repr(loss))}."
    )


def logits_of(answer: Any) -> Float[Tensor, "N *C"]:
    """The logits in whatever a network returned: a tensor, an object or mapping with `logits`, or a tuple."""
    if not isinstance(answer, Tensor):
        if hasattr(answer, "logits"):
            answer = answer.logits
        elif isinstance(answer, Mapping) and "logits" in answer:
            answer = answer["logits"]
        elif isinstance(answer, (tuple, list)) and answer and isinstance(answer[0], Tensor):
            answer = answer[0]
    if not isinstance(answer, Tensor):
        raise DataError(
            f"The network must answer with a tensor or an object with `.logits`, but gave {type(answer).__name__}."
        )
    return answer.unsqueeze(1) if answer.ndim == 1 else answer
