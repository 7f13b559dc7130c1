"""`Recipe`: how a network was trained, as a value, so that retraining and relearning can repeat it."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from spotlessnet.core.deprecated import AcceptsOldNames, OldName
from spotlessnet.core.errors import SettingError, check_choice, check_not_negative, check_positive

Schedule = Literal["constant", "cosine", "one-cycle", "step"]


@dataclass(frozen=True)
class Recipe(metaclass=AcceptsOldNames):
    """Stochastic gradient descent, spelt out.

    **Arguments:**

    - `epochs`: passes over the data, or the cap when `patience` is set.
    - `patience`: stop this many epochs after the training error first reached zero; `None` never stops early.
    - `lr`, `momentum`, `batch_size`, `schedule`: as usual; `step` divides the rate by ten at half and three quarters.
    - `weight_decay`: the weight of `½‖w − start‖²`, added to the **mean** loss. It pulls toward the start, not to zero.
    - `freeze_statistics`: BatchNorm keeps the running statistics it came with; its scale and shift still train.
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

    rate = OldName("lr")
    batch = OldName("batch_size")
    decay = OldName("weight_decay")

    def __post_init__(self) -> None:
        check_not_negative("Recipe.epochs", self.epochs)
        check_positive("Recipe.lr", self.lr)
        check_positive("Recipe.batch", self.batch_size)
        check_not_negative("Recipe.decay", self.weight_decay)
        check_choice("Recipe.schedule", self.schedule, ("constant", "cosine", "one-cycle", "step"))
        if not 0 <= self.momentum < 1:
            raise SettingError(f"`Recipe.momentum` must be in [0, 1), but got {self.momentum}.")
        if self.patience is not None:
            check_not_negative("Recipe.patience", self.patience)

    def but(self, **changes: Any) -> "Recipe":
        """The same recipe with some fields changed.

        >>> Recipe(epochs=30).but(epochs=3).epochs
        3
        """
        return replace(self, **changes)

    def time(self, steps: int) -> float:
        r"""The gradient-flow time of `steps` updates, $t = \eta T / (1 - m)$.

        >>> round(Recipe(lr=0.1, momentum=0.9).time(100), 6)
        100.0
        """
        return self.lr * steps / (1 - self.momentum)
