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

    def exchange(self, gone: tuple[Tensor, Tensor, Tensor], come: tuple[Tensor, Tensor, Tensor]) -> None:
        """Take examples out and put others in: both or neither.

        **Arguments:**

        - `gone`, `come`: codes, targets and weights.
        """
        total = self.weight + int(come[2].sum()) - int(gone[2].sum())
        if total > MOST_WEIGHT:
            raise SettingError(f"Example weights must sum to at most {MOST_WEIGHT}, but would sum to {total}.")
        self.remove(*gone)
        try:
            self.add(*come)
        except Exception:
            self.add(*gone)
            raise

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
        pieces = [slice(start, start + ROWS) for start in range(0, len(codes), ROWS)]
        steps = [(sums, of, here) for here in pieces for sums, of in ((self.gram, codes), (self.cross, targets))]
        done = 0
        try:
            for sums, of, here in steps:
                _accumulate(sums, codes[here], of[here], w[here], sign)
                done += 1
        except Exception:
            # Memory may run out at any step; whole numbers go back without a trace.
            for sums, of, here in steps[:done]:
                _accumulate(sums, codes[here], of[here], w[here], -sign)
            raise
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


def _accumulate(sums: Tensor, codes: Tensor, by: Tensor, weights: Tensor, sign: int) -> None:
    scaled = codes.to(sums) * weights.to(sums)[:, None]
    sums.addmm_(scaled.T, by.to(sums), alpha=sign)
