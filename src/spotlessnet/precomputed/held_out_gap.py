"""How fold models differ from the network on rows that nobody saw, and in what having seen a row does to them."""

from jaxtyping import Bool, Float
from torch import Tensor

LOWEST = 0.05
"""So many rows may have wrong labels, which networks learn late or never."""

LEAST = 0.5
"""The least ratio: fold models saw half of the rows at least."""


def lead(answers: Float[Tensor, "*K n C"]) -> Float[Tensor, "*K"]:
    """By how much the largest logit exceeds the second, in the mean over rows."""
    first, second = answers.topk(2, dim=-1).values.unbind(dim=-1)
    return (first - second).mean(dim=-1)


def gap_ratio(
    own: Float[Tensor, " n"],
    held: Float[Tensor, " m"],
    folds: Float[Tensor, "K n"],
    missed: Bool[Tensor, "K n"],
) -> float:
    r"""What having seen a row does to the network's margin, as a share of what it does to a fold model's.

    $$\rho = \frac{\overline m_{own} - \overline m_{held}}{\overline m_{in} - \overline m_{out}}$$

    from margins of rows that the network was trained on, under it and under fold models, and of held-out rows under the
    network, each mean without the lowest twentieth, where wrong labels are. Fold models saw fewer rows, so each row
    taught them more: 1 at most. And a half at least, for where a gap is hardly there the quotient is chance.
    """
    sides = [side.to(folds) for side in (~missed, missed)]
    inside, outside = ((side * folds).sum(dim=0) / side.sum(dim=0) for side in sides)
    taught = trimmed(inside) - trimmed(outside)
    return min(1.0, max(LEAST, (trimmed(own) - trimmed(held)) / taught)) if taught > 0 else 1.0


def trimmed(margins: Float[Tensor, " n"]) -> float:
    """The mean without the lowest twentieth."""
    return float(margins.sort().values[int(LOWEST * len(margins)) :].mean())
