"""`Matrix`: what every curvature and every solver agrees on, a square matrix known by its products."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import MismatchError
from spotlessnet.core.trained import Trained


@runtime_checkable
class Matrix(Protocol):
    """A symmetric matrix `[P, P]` that is never written out."""

    @property
    def size(self) -> int:
        """`P`."""
        ...

    def multiply(self, v: Float[Tensor, "*K P"]) -> Float[Tensor, "*K P"]:
        """`M v`, for one vector or rows of vectors."""
        ...


def check_vector(name: str, v: Float[Tensor, "*K P"], trained: Trained) -> None:
    """Raise unless `v` holds vectors over the weights of `trained`, on the same device."""
    if v.ndim not in (1, 2) or v.shape[-1] != trained.size:
        raise MismatchError(
            f"{name} must have shape ({trained.size},) or (K, {trained.size}), one number per weight, "
            f"but has {tuple(v.shape)}. Build it from the same network."
        )
    check_device(name, v, trained)


def check_device(name: str, v: Tensor, trained: Trained) -> None:
    """Raise unless `v` lives where the network lives."""
    if v.device != trained.device:
        raise MismatchError(
            f"{name} must lie on the network's device {trained.device}, but lies on {v.device}. "
            f'Move it: `v.to("{trained.device}")`.'
        )
