"""What callers hand in, checked before any work: ids, weights of examples, weights of classes."""

from collections.abc import Hashable, Iterable
from numbers import Real
from operator import index
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from spotlessnet.core.errors import DataError, MismatchError, SettingError, check_positive
from spotlessnet.forgettable.fixed_point import MOST_WEIGHT


def several(ids: Any) -> list[Hashable]:
    """Ids, where one may come alone, as plain values."""
    if isinstance(ids, (bytes, bytearray, memoryview)):
        raise DataError("Ids must be text or whole numbers, but bytes came. Decode them: `ids.decode()`.")
    if isinstance(ids, (str, int, np.generic)):
        return plain_ids([ids])
    if isinstance(ids, (Tensor, np.ndarray)):
        return plain_ids(ids.reshape(-1).tolist())
    if not isinstance(ids, Iterable):
        raise DataError(f"Ids must be one id or a list of them, but got {type(ids).__name__}.")
    return plain_ids(ids)


def plain_ids(ids: Iterable[Any]) -> list[Hashable]:
    """Ids by which examples can be found again: NumPy's scalars become Python's, what equals nothing is refused."""
    if isinstance(ids, (str, bytes)):
        raise DataError(f"Ids must be a list with one id per example, but got {type(ids).__name__}. Put it in a list.")
    found = [one.item() if isinstance(one, np.generic) else one for one in ids]
    for one in found:
        # A tensor is hashed by where it lies, and NaN equals not even itself.
        is_usable = isinstance(one, Hashable) and not isinstance(one, Tensor) and one is not None and one == one
        try:
            is_usable = is_usable and isinstance(hash(one), int)
        except TypeError:  # a tuple that holds a list
            is_usable = False
        if not is_usable:
            raise DataError(
                f"Ids must be hashable and equal to themselves, such as text or whole numbers, but one is of type "
                f"{type(one).__name__}{' (NaN)' if isinstance(one, float) else ''}. Give text or whole numbers."
            )
    return found


def whole_weights(weights: Any, count: int, what: str = "example") -> Int64[Tensor, " n"]:
    """Weights as whole numbers, one each, none beyond what sums can hold."""
    w = torch.as_tensor(weights).detach().cpu()
    if w.shape != (count,):
        raise MismatchError(
            f"Each {what} needs a weight, but {count} {what}{'es' if what == 'class' else 's'} came with "
            f"{w.numel()} weights."
        )
    if w.is_complex() or (w.is_floating_point() and not bool((w == w.round()).all())):
        raise SettingError(
            f"Weights of {what}{'es' if what == 'class' else 's'} must be whole numbers, which keeps sums exact. Scale "
            "and round them."
        )
    if count and (float(w.double().min()) < 0 or float(w.double().max()) > MOST_WEIGHT):
        raise SettingError(
            f"Each weight must lie between 0 and {MOST_WEIGHT}, up to where sums stay exact. Use smaller weights."
        )
    return w.long()


def class_numbers(y: Any, count: int | None = None) -> Tensor:
    """Labels as a tensor, whether they came as one, as a list or from NumPy.

    **Arguments:**

    - `count`: how many are wanted; one label alone then stands for all.
    """
    try:
        labels = y if isinstance(y, Tensor) else torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError) as e:
        raise MismatchError(f"Labels must be whole numbers, one per example, but got {type(y).__name__}.") from e
    return labels.expand(count).clone() if count is not None and not labels.ndim else labels


def class_number(label: Any) -> int:
    """One class, as Python, NumPy or torch give a whole number."""
    try:
        return index(label)
    except TypeError as e:
        raise DataError(f"A class must be a whole number, but got {label!r:.40}.") from e


def ridge_of(ridge: Any) -> float | Literal["loo"]:
    """A share that is a positive number, or leave-one-out."""
    if isinstance(ridge, str) and ridge == "loo":
        return "loo"
    if not isinstance(ridge, (Real, Tensor, np.generic)):
        raise SettingError(f'`ridge` must be a positive number or "loo", but got {ridge!r:.40}.')
    check_positive("ridge", float(ridge))
    return float(ridge)


def check_inputs(x: Any) -> None:
    """Raise unless inputs are tensors."""
    for value in x.values() if isinstance(x, dict) else [x]:
        if not isinstance(value, Tensor):
            raise DataError(
                f"Inputs must be a tensor, or named tensors, but got {type(value).__name__}. Use `torch.as_tensor`."
            )


def class_weights_of(class_weights: Any, classes: int) -> Int64[Tensor, " C"] | None:
    """One whole weight per class, or `None` where all count alike."""
    if class_weights is None:
        return None
    found = whole_weights(class_weights, classes, "class")
    if not bool(found.any()):
        raise SettingError("At least one class must weigh something, but all weights are zero.")
    return found


def weights_by_class(y: Tensor, class_weights: Int64[Tensor, " C"] | None) -> Int64[Tensor, " n"]:
    """The weight of each example, from its class."""
    if class_weights is None:
        return torch.ones(len(y), dtype=torch.long)
    return class_weights[y.cpu().long()]
