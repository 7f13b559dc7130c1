"""What an attack came to: area under the curve and true positives at few false ones, each with limits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from spotlessnet.core.errors import MismatchError
from spotlessnet.core.intervals import Array, Interval, auc, bootstrap, finest_rate, tpr_at_fpr
from spotlessnet.core.readout import Reading


@dataclass(frozen=True)
class Attack:
    """How well scores tell members from non-members.

    **Arguments:**

    - `auc`: area under the curve; one half is blind guessing.
    - `tpr`: true positive rate at a false positive rate of `rate`; `None` where the sample resolves none.
    - `rate`: the finest of 0.1 %, 1 % and 10 % that the number of non-members resolves.
    - `note`: what could not be printed, and why.
    """

    auc: Interval
    tpr: Interval | None
    rate: float | None
    members: int
    non_members: int
    note: str = ""

    def reading(self) -> Reading:
        """The area under the curve, as a readout would give it."""
        return Reading(*self.auc, note=self.note)

    def __str__(self) -> str:
        area = f"AUC {self.auc.value:.3f} [{self.auc.low:.3f}, {self.auc.high:.3f}]"
        if self.tpr is None:
            return area
        low, high = self.tpr.low, self.tpr.high
        return f"{area}, TPR@{self.rate:.1%} {self.tpr.value:.1%} [{low:.1%}, {high:.1%}]"


def attack_over_models(
    scores: Float[Tensor, "S T"],
    member: Bool[Tensor, "S T"],
    *,
    wanted: Sequence[float] = (0.001, 0.01, 0.1),
    together: int = 1,
    draws: int = 300,
    seed: int = 0,
) -> Attack:
    """Pool the scores of all rows under all models; limits by drawing **models** anew.

    Scores of one model hang together, so intervals that treat them as independent would be far too narrow.

    **Arguments:**

    - `member`: whether the row was among the model's training rows.
    - `wanted`: false positive rates; the finest one that the sample resolves is reported.
    - `together`: models that belong together (complementary halves) and are drawn together.
    """
    if scores.shape != member.shape or len(scores) % together:
        raise MismatchError(
            f"Scores {tuple(scores.shape)} and membership {tuple(member.shape)} must have one shape, with a number of "
            f"models that {together} divides."
        )
    s, m = scores.detach().cpu().double().numpy(), member.cpu().numpy()
    count = int((~member).sum())
    rate = finest_rate(count, wanted)
    groups = np.arange(len(s)).reshape(-1, together)

    def area(chosen: Array) -> float:
        values, inside = s[chosen.ravel()], m[chosen.ravel()]
        return auc(values[inside], values[~inside])

    def hits(chosen: Array) -> float:
        values, inside = s[chosen.ravel()], m[chosen.ravel()]
        # A draw of models may hold fewer non-members than the sample; where they resolve less, it says nothing.
        fits = finest_rate(int((~inside).sum()), [rate or 1.0]) is not None
        return tpr_at_fpr(values[inside], values[~inside], rate or 1.0) if fits else math.nan

    return Attack(
        auc=bootstrap(groups, area, draws=draws, seed=seed),
        tpr=None if rate is None else bootstrap(groups, hits, draws=draws, seed=seed),
        rate=rate,
        members=int(member.sum()),
        non_members=count,
        note=resolution_note(count, rate, wanted),
    )


def resolution_note(non_members: int, rate: float | None, wanted: Sequence[float]) -> str:
    """Why a finer rate is not printed, or nothing."""
    finer = [w for w in sorted(wanted) if rate is None or w < rate]
    if not finer:
        return ""
    needed = ", ".join(f"{3 / w:.0f} for {w:g}" for w in finer)
    return f"{non_members} non-members do not resolve a false positive rate of {finer[-1]:g} or less (needed: {needed})"
