"""`Source`: what rows must be able to do before anything can be forgotten from them."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Int64
from torch import Tensor

Inputs = Tensor | dict[str, Tensor]
"""What a network is called with: one tensor, or named ones (`model(**inputs)`)."""


@runtime_checkable
class Source(Protocol):
    """Where rows lie: something with a length that can fetch any of them."""

    def __len__(self) -> int: ...

    def fetch(self, rows: Int64[Tensor, " n"]) -> tuple[Inputs, Tensor]:
        """Inputs and labels of these rows, in this order."""
        ...

    def column(self, name: str) -> Sequence[Any] | None:
        """A named column of the source, one entry per row, or `None`."""
        ...


@runtime_checkable
class HasLabels(Protocol):
    """A source that can tell labels without reading inputs."""

    def labels(self, rows: Int64[Tensor, " n"]) -> Tensor:
        """The labels of these rows, in this order."""
        ...
