"""Names of version 0.1, accepted for one release: each use warns and says the new name."""

import functools
import warnings
from abc import ABCMeta
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

GOES = "the old name goes with version 0.3."


def warn_old(old: str, new: str, level: int = 3) -> None:
    """Say, at the caller's line, what a name is called now."""
    warnings.warn(f"{old} is now called {new}; {GOES}", DeprecationWarning, stacklevel=level + 1)


class OldName:
    """An attribute under its former name: `rate = OldName("lr")` in a class whose metaclass is `AcceptsOldNames`."""

    def __init__(self, new: str) -> None:
        self.new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self.old = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        warn_old(f"`{owner.__name__}.{self.old}`", f"`{self.new}`", level=2)
        return getattr(instance, self.new)


class AcceptsOldNames(ABCMeta):
    """Classes whose keywords may also be given by the names that `OldName` lists.

    An old name that is now a function of the class stands in its `old_keywords`: only the keyword keeps its meaning.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            kwargs = {_translated(cls, name): value for name, value in kwargs.items()}
        return super().__call__(*args, **kwargs)


def _translated(cls: type, name: str) -> str:
    for base in cls.__mro__:
        new = vars(base).get("old_keywords", {}).get(name)
        if new is not None:
            warn_old(f"`{cls.__name__}({name}=...)`", f"`{new}`", level=4)
            return new
        found = vars(base).get(name)
        if isinstance(found, OldName):
            warn_old(f"`{cls.__name__}({name}=...)`", f"`{found.new}`", level=4)
            return found.new
    return name


def accepts_old_names(**renamed: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function whose keywords may also be given by their former names: `@accepts_old_names(start="init")`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            for old, new in renamed.items():
                if old in kwargs:
                    warn_old(f"`{function.__name__}({old}=...)`", f"`{new}`", level=2)
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return called

    return decorate
