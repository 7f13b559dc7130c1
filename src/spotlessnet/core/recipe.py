"""`Recipe`: how a network was trained, as a value, so that retraining and relearning can repeat it."""

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from numbers import Real
from typing import Any, Literal

from torch import nn

from spotlessnet.core.deprecated import AcceptsOldNames, OldName
from spotlessnet.core.errors import SettingError, check_choice, check_not_negative, check_positive, shown

Schedule = Literal["constant", "cosine", "one-cycle", "step", "linear"]
SCHEDULES = ("constant", "cosine", "one-cycle", "step", "linear")
OPTIMIZERS = ("sgd", "adam", "adamw")


@dataclass(frozen=True)
class Recipe(metaclass=AcceptsOldNames):
    """The settings of the package's own training loop: an optimiser of `torch.optim` and what goes with it.

    **Arguments:**

    - `epochs`: passes over the data, or the cap when `patience` is set.
    - `patience`: stop this many epochs after the training error first reached zero; `None` never stops early.
    - `optimizer`: `"sgd"` with `momentum`, or `"adam"` or `"adamw"` with `betas` and `eps`.
    - `lr`, `momentum`, `batch_size`: as usual.
    - `schedule`: of the learning rate; `"linear"` and `"cosine"` fall to zero, `"step"` divides by ten at half and at
      three quarters.
    - `warmup_ratio`: the share of all steps over which the rate first climbs linearly to `lr`.
    - `weight_decay`: for `"sgd"` and `"adam"` the weight of `½‖w − start‖²`, added to the **mean** loss; `"adamw"`
      instead subtracts `lr · weight_decay · (w − start)` at each step.
    - `decay_toward`: what the decay pulls to, the `"init"`ial weights or `"zero"`.
    - `decay_on`: `"all"` weights, or `"matrices"`: biases and normalisation layers are then left free.
    - `max_grad_norm`: gradients longer than this are scaled down to it, as `torch.nn.utils.clip_grad_norm_` does.
    - `label_smoothing`: as in `torch.nn.CrossEntropyLoss`.
    - `augment`: a transform of a batch's inputs, `x -> x` (such as those of `torchvision.transforms.v2`) or
      `(x, generator) -> x`. The first kind must draw from torch's own generators, which follow the seed.
    - `bf16`: the forward pass under bfloat16 autocast; weights stay in their own number format.
    - `freeze_statistics`: BatchNorm keeps the running statistics it came with; its scale and shift still train.
      `Trained.of` sees from the buffers of `init` where training moved them, and then repeats that.
    - `dropout`: whether dropout layers are active while training.
    """

    epochs: int = 30
    lr: float = 0.01
    momentum: float = 0.9
    batch_size: int = 128
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    patience: int | None = None
    freeze_statistics: bool = True
    dropout: bool = True
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    warmup_ratio: float = 0.0
    decay_toward: Literal["init", "zero"] = "init"
    decay_on: Literal["all", "matrices"] = "all"
    max_grad_norm: float | None = None
    label_smoothing: float = 0.0
    augment: Callable[..., Any] | None = None
    bf16: bool = False

    rate = OldName("lr")
    batch = OldName("batch_size")
    decay = OldName("weight_decay")

    def __post_init__(self) -> None:
        check_not_negative("Recipe.epochs", self.epochs)
        check_positive("Recipe.lr", self.lr)
        check_positive("Recipe.batch", self.batch_size)
        check_not_negative("Recipe.decay", self.weight_decay)
        check_choice("Recipe.schedule", self.schedule, SCHEDULES)
        check_choice("Recipe.optimizer", self.optimizer, OPTIMIZERS)
        check_choice("Recipe.decay_toward", self.decay_toward, ("init", "zero"))
        check_choice("Recipe.decay_on", self.decay_on, ("all", "matrices"))
        check_positive("Recipe.eps", self.eps)
        shares: dict[str, Any] = {
            "momentum": self.momentum,
            "warmup_ratio": self.warmup_ratio,
            "label_smoothing": self.label_smoothing,
        }
        if not isinstance(self.betas, (tuple, list)) or len(self.betas) != 2:
            raise SettingError(f"`Recipe.betas` must be two numbers in [0, 1), but got {shown(repr(self.betas))}.")
        shares |= {"betas[0]": self.betas[0], "betas[1]": self.betas[1]}
        for name, value in shares.items():
            if not isinstance(value, Real) or not 0 <= float(value) < 1:
                raise SettingError(f"`Recipe.{name}` must be in [0, 1), but got {shown(value)}.")
        if self.warmup_ratio and self.schedule == "one-cycle":
            raise SettingError(
                "`Recipe.warmup_ratio` must be zero with the one-cycle schedule, which climbs by itself. Use "
                '`schedule="cosine"`.'
            )
        if self.patience is not None:
            check_not_negative("Recipe.patience", self.patience)
        if self.max_grad_norm is not None:
            check_positive("Recipe.max_grad_norm", self.max_grad_norm)
        if self.augment is not None and not callable(self.augment):
            raise SettingError(f"`Recipe.augment` must be callable, but got {type(self.augment).__name__}.")

    @property
    def penalty(self) -> float | None:
        """The weight of `½‖w − anchor‖²` in what training minimises; `None` where the decay is no such penalty.

        AdamW's decay is not the gradient of any penalty, and one that spares some weights has not one weight.
        """
        if not self.weight_decay:
            return 0.0
        return None if self.optimizer == "adamw" or self.decay_on != "all" else self.weight_decay

    def but(self, **changes: Any) -> "Recipe":
        """The same recipe with some fields changed.

        >>> Recipe(epochs=30).but(epochs=3).epochs
        3
        """
        return replace(self, **changes)

    def time(self, steps: int) -> float:
        r"""The gradient-flow time of `steps` updates of SGD, $t = \eta T / (1 - m)$.

        >>> round(Recipe(lr=0.1, momentum=0.9).time(100), 6)
        100.0
        """
        if self.optimizer != "sgd":
            raise SettingError(f'Gradient-flow time is defined for `optimizer="sgd"`, but got {self.optimizer!r}.')
        return self.lr * steps / (1 - self.momentum)

    def described(self) -> dict[str, Any]:
        """The settings as plain values; those that a first version did not have only where they are not the usual.

        So the digest of a training that uses none of them is what it was, and its checkpoint is still its own.

        >>> Recipe(epochs=3, optimizer="adam").described()["optimizer"], "betas" in Recipe().described()
        ('adam', False)
        """
        values = asdict(replace(self, augment=None)) | {"augment": _told(self.augment)}
        first = [f.name for f in fields(self)][: [f.name for f in fields(self)].index("optimizer")]
        usual = {f.name: f.default for f in fields(self)}
        return {name: value for name, value in values.items() if name in first or value != usual[name]}


def takes_generator(transform: Callable[..., Any]) -> bool:
    """Whether a transform of inputs asks for a generator as its second argument."""
    if isinstance(transform, nn.Module):  # torchvision's are modules with `forward(*inputs)`
        transform = transform.forward
    try:
        parameters = list(inspect.signature(transform).parameters.values())
    except (TypeError, ValueError):  # written in C, without a signature
        return False
    named = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(named) > 1 and (named[1].name == "generator" or named[1].default is inspect.Parameter.empty)


def _told(augment: Callable[..., Any] | None) -> str | None:
    """What tells one transform from another in writing; an address in memory would differ at every start."""
    if augment is None:
        return None
    said = repr(augment)
    if " at 0x" not in said:
        return said
    kind = augment if hasattr(augment, "__qualname__") else type(augment)
    return f"{kind.__module__}.{kind.__qualname__}"
