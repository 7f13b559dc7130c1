"""Moments: the sums over examples that a ridge problem consists of, exact in float64."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int16, Shaped
from torch import Tensor

from spotlessnet.core.errors import MismatchError, SettingError
from spotlessnet.forgettable.fixed_point import LARGEST, MOST_WEIGHT
from spotlessnet.operators.sums import add_up

ROWS = 4096
"""Examples that are widened to float64 at a time."""


@dataclass(eq=False)
class Moments:
    r"""$G = \sum_i w_i q_i q_i^\top$ and $C = \sum_i w_i q_i t_i^\top$, all whole numbers below 2⁵³.

    Addition and subtraction are exact, so after `remove` the moments are bit for bit those of the other examples.

    **Arguments:**

    - `gram`: $G$, `[d, d]`.
    - `cross`: $C$, `[d, C]`.
    - `weight`: $\sum_i w_i$.
    - `count`: how many examples are inside.
    """

    gram: Float[Tensor, "d d"]
    cross: Float[Tensor, "d C"]
    weight: int = 0
    count: int = 0

    @staticmethod
    def zero(features: int, outputs: int, device: torch.device | str = "cpu") -> "Moments":
        """No example."""
        wide = torch.float64
        return Moments(
            torch.zeros(features, features, dtype=wide, device=device),
            torch.zeros(features, outputs, dtype=wide, device=device),
        )

    def add(
        self, codes: Int16[Tensor, "n d"], targets: Shaped[Tensor, "n C"], weights: Shaped[Tensor, " n"] | None = None
    ) -> None:
        """Put examples in.

        **Arguments:**

        - `codes`, `targets`: whole numbers of at most 16 bits.
        - `weights`: whole numbers too, one unless said.
        """
        self._shift(codes, targets, weights, 1)

    def remove(
        self, codes: Int16[Tensor, "n d"], targets: Shaped[Tensor, "n C"], weights: Shaped[Tensor, " n"] | None = None
    ) -> None:
        """Take examples out, exactly."""
        self._shift(codes, targets, weights, -1)

    def check_room(self, weights: Shaped[Tensor, " n"], instead_of: Shaped[Tensor, " n"]) -> None:
        """Raise unless examples of these weights can come in for others."""
        total = self.weight + int(weights.sum()) - int(instead_of.sum())
        if total > MOST_WEIGHT:
            raise SettingError(f"Example weights must sum to at most {MOST_WEIGHT}, but would sum to {total}.")

    def _shift(self, codes: Tensor, targets: Tensor, weights: Tensor | None, sign: int) -> None:
        if codes.shape[1:] != self.cross.shape[:1] or targets.shape[1:] != self.cross.shape[1:]:
            raise MismatchError(
                f"These moments have {self.cross.shape[0]} features and {self.cross.shape[1]} outputs, but got codes "
                f"of shape {tuple(codes.shape)} and targets of shape {tuple(targets.shape)}."
            )
        w = torch.ones(len(codes), dtype=torch.int64) if weights is None else weights.cpu()
        # Looked at first: the sum of larger ones could wrap around and look small.
        if len(w) and float(w.double().max()) > MOST_WEIGHT:
            raise SettingError(
                f"Example weights must sum to at most {MOST_WEIGHT}, where sums stay exact, but one alone is "
                f"{float(w.double().max()):.0f}. Use smaller weights."
            )
        if w.is_floating_point() and not bool((w == w.round()).all()):
            raise SettingError("Example weights must be whole numbers, which keeps sums exact. Scale and round them.")
        total = self.weight + sign * int(w.sum())
        if total > MOST_WEIGHT or bool((w < 0).any()):
            raise SettingError(
                f"Example weights must be positive and sum to at most {MOST_WEIGHT}, where sums stay exact; they would "
                f"sum to {total}. Use smaller weights or fewer examples."
            )
        if len(targets) and float(targets.abs().max()) > LARGEST:
            raise SettingError(
                f"Targets must be whole numbers of at most 16 bits, but one is {float(targets.abs().max())}."
            )
        for start in range(0, len(codes), ROWS):
            here = slice(start, start + ROWS)
            q = codes[here].to(self.gram)
            scaled = q if weights is None else q * w[here].to(q)[:, None]
            self.gram.addmm_(scaled.T, q, alpha=sign)
            self.cross.addmm_(scaled.T, targets[here].to(q), alpha=sign)
        self.weight, self.count = total, self.count + sign * len(codes)

    def all_reduce(self) -> None:
        """Sum over the processes of `torch.distributed`; every process then holds the same."""
        add_up(self.gram)
        add_up(self.cross)
        both = add_up(torch.tensor([self.weight, self.count], dtype=torch.float64, device=self.gram.device))
        self.weight, self.count = int(both[0]), int(both[1])
        if self.weight > MOST_WEIGHT:
            raise SettingError(f"The processes' weights sum to {self.weight}, but must stay below {MOST_WEIGHT}.")

    def clone(self) -> "Moments":
        """A copy that shares nothing."""
        return Moments(self.gram.clone(), self.cross.clone(), self.weight, self.count)
