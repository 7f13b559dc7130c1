"""Positions: the tokens of a text or the pixels of an image, each with classes and a label of its own."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from spotlessnet.core.errors import MismatchError


class Positions(NamedTuple):
    """Outputs of some rows, laid out by position with the classes last.

    **Arguments:**

    - `counts`: which positions take part: padding and ignored labels do not.
    - `y`: class numbers, any class where a position does not count.
    """

    logits: Float[Tensor, "N T C"]
    y: Int64[Tensor, "N T"]
    counts: Bool[Tensor, "N T"]

    def mean(self, values: Shaped[Tensor, "N T"]) -> Float[Tensor, " N"]:
        """Over the positions that count, row by row; zero for a row without any."""
        return (values * self.share.to(values)).sum(dim=1)

    @property
    def share(self) -> Float[Tensor, "N T"]:
        """What each position is worth in a mean over its row."""
        return self.counts / self.counts.sum(dim=1, keepdim=True).clamp(min=1)


def positions_of(
    outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"], ignore_index: int, class_axis: int | None, ahead: bool
) -> Positions:
    """The positions of outputs such as `[N, T, V]`, `[N, V, T]` or `[N, V, H, W]`, each with its label.

    **Arguments:**

    - `class_axis`: 1 or -1; found by comparing with the labels' shape unless said.
    - `ahead`: the answer at a position is for the label of the next one, as in causal language models.
    """
    axis = axis_of(outputs.shape, y.shape, class_axis)
    logits = outputs.movedim(axis, -1).flatten(1, -2)
    labels = y.flatten(1).long()
    if ahead:
        logits, labels = logits[:, :-1], labels[:, 1:]
    counts = labels != ignore_index
    return Positions(logits, labels.where(counts, 0), counts)


def laid_back(
    values: Float[Tensor, "N T C"],
    outputs: Float[Tensor, "N *C"],
    y: Shaped[Tensor, "N *d"],
    class_axis: int | None,
    ahead: bool,
) -> Float[Tensor, "N *C"]:
    """Values by position in the layout of the outputs; the last position of a text, which has no next one, is zero."""
    if ahead:
        values = torch.nn.functional.pad(values, (0, 0, 0, 1))
    axis = axis_of(outputs.shape, y.shape, class_axis)
    return values.reshape(outputs.movedim(axis, -1).shape).movedim(-1, axis)


def axis_of(outputs: torch.Size, y: torch.Size, said: int | None) -> int:
    """Where the classes lie: second, as torch has it, or last, as language models answer."""
    fits = {1: outputs[:1] + outputs[2:] == y, -1: outputs[:-1] == y}
    found = [axis for axis, same in fits.items() if same and said in (None, axis)]
    if len(found) == 1:
        return found[0]
    if found:
        raise MismatchError(
            f"Outputs of shape {tuple(outputs)} with labels of shape {tuple(y)} may have their classes on axis 1 or on "
            "the last. Say which: `loss=sn.CrossEntropy(class_axis=-1)`, or `class_axis=1`."
        )
    raise MismatchError(
        f"Cross-entropy needs one label per position, but labels of shape {tuple(y)} do not fit outputs of shape "
        f"{tuple(outputs)}{'' if said is None else f' with classes on axis {said}'}. Give class numbers, -100 where a "
        "position does not count."
    )
