"""Requests of one model take turns, and one that breaks off in the middle of writing is never built upon."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar, runtime_checkable

import torch

from spotlessnet.core.errors import IntegrityError, SettingError


class Turn:
    """Whose turn it is, and whether the last one was broken off between the sums and the list of examples.

    `torn` is set before the first number is written and taken back after the last one, or once everything is as it
    was. An interrupt (Ctrl-C) may come between any two lines; sums and list would then disagree, and taking the same
    example out twice would be certified like any other request.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.torn = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for requests of other threads; raise if one of them tore the model."""
        with self._lock:
            if self.torn:
                raise IntegrityError(
                    "A request to this model was broken off while it was written, so that its sums may not be those of "
                    "its examples. Load the last saved state, or fit anew."
                )
            yield

    def __getstate__(self) -> dict[str, bool]:
        """A lock belongs to one process and is not copied."""
        return {"torn": self.torn}

    def __setstate__(self, state: dict[str, bool]) -> None:
        self.__init__()  # type: ignore[misc]  # a new lock, and what was known
        self.torn = state["torn"]


@runtime_checkable
class HasTurn(Protocol):
    """Whatever takes turns."""

    turn: Turn


P = ParamSpec("P")
M = TypeVar("M", bound=HasTurn)
R = TypeVar("R")


def in_turn(method: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], R]:
    """A method that runs while no other of its kind does."""

    @wraps(method)
    def waiting(self: M, /, *args: P.args, **kwargs: P.kwargs) -> R:
        check_mode()
        with self.turn.taken():
            return method(self, *args, **kwargs)

    return waiting


def check_mode() -> None:
    """Raise inside `torch.inference_mode`: what is made there refuses later changes, some only half-way through."""
    if torch.is_inference_mode_enabled():
        raise SettingError(
            "A forgettable model must be made and changed outside `torch.inference_mode`, as tensors made there cannot "
            "be changed in place later. Use `torch.no_grad`."
        )
