"""What a method costs, by count: floating-point operations, and bytes that must be held at once."""

import math
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained

BACK_AND_FORTH = 3
"""A gradient in units of an answer, where the counter sees neither: once through the network, and twice back."""


@dataclass(frozen=True)
class Work:
    """How much is to be done.

    >>> Work.sure(2.0) + Work(1.0, 5.0, bytes=8)
    Work(usual=3.0, most=7.0, bytes=8)

    **Arguments:**

    - `usual`, `most`: floating-point operations (FLOPs) as a rule, and if every solver runs to its limit. NaN where
      nobody has counted.
    - `bytes`: held at once, beside the network itself.
    """

    usual: float
    most: float
    bytes: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        # One thing is done after the other, so operations add up; memory is given back in between.
        return Work(self.usual + other.usual, self.most + other.most, max(self.bytes, other.bytes))

    @staticmethod
    def sure(flops: float, bytes: float = 0.0) -> "Work":
        """Work that does not depend on what is met on the way."""
        return Work(flops, flops, bytes)

    @staticmethod
    def unknown() -> "Work":
        """What nobody has counted: not a number, so that no plan takes it for one."""
        return Work(math.nan, math.nan)


@dataclass(frozen=True)
class Sizes:
    """What counts are made of.

    **Arguments:**

    - `n`, `k`: retained and forgotten rows; no retained ones where they are not at hand.
    - `P`, `C`: weights, and outputs of a row.
    - `answer`, `gradient`: FLOPs of one row's outputs, and of its loss gradient, the outputs included.
    - `bytes`: of one weight.
    """

    n: int
    k: int
    P: int
    C: int
    answer: float
    gradient: float
    bytes: int

    @staticmethod
    def of(trained: Trained, split: Split) -> "Sizes":
        """Count the operations of one row on the network itself."""
        data = split.forget if len(split.forget) else split.whole
        batch = next(iter(trained.batches(data, 1)))
        with torch.no_grad(), FlopCounterMode(display=False) as forward:
            C = int(trained.outputs(batch.x)[0].numel())
        w = trained.weights.clone().requires_grad_()
        with torch.enable_grad(), FlopCounterMode(display=False) as both:
            trained.losses(batch.x, batch.y, w).sum().backward()
        # Networks of elementwise pieces count as nothing; every weight then takes part about once.
        answer = float(max(forward.get_total_flops(), 2 * trained.size))
        counted = float(both.get_total_flops())
        gradient = counted if counted > answer else BACK_AND_FORTH * answer
        n = 0 if split.kept is None else len(split.kept)
        return Sizes(n, len(split.forget), trained.size, C, answer, gradient, trained.weights.element_size())

    @property
    def columns(self) -> int:
        """Backward passes for the exact Fisher matrix of a row."""
        return max(1, self.C - 1)

    def diagonal(self, kind: str = "exact") -> float:
        """FLOPs of one row's Fisher diagonal."""
        return self.answer + self.gradient * (self.columns if kind == "exact" else 1)


def gradients(trained: Trained, split: Split, count: float) -> Work:
    """The work of so many loss gradients of one row, which is all that most methods do."""
    return Work.sure(count * Sizes.of(trained, split).gradient)
