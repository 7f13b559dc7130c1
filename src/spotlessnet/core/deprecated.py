"""Names of before: how they keep working for one release, each saying its new name."""

import functools
import inspect
import warnings
from abc import ABCMeta
from collections.abc import Callable, Mapping
from dataclasses import fields
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


class OldPart:
    """A setting that is now part of a value: `rank = OldPart("solver", solver_of)` where `solver` has a `rank`.

    **Arguments:**

    - `of`: the setting that holds it now.
    - `build`: makes that value from the usual one and the old settings that were given.
    - `read`: how the old attribute is read from the value; by its own name unless said.
    """

    def __init__(
        self, of: str, build: Callable[[Any, dict[str, Any]], Any], read: Callable[[Any], Any] | None = None
    ) -> None:
        self.of = of
        self.build = build
        self.read = read

    @property
    def is_word(self) -> bool:
        """Whether it said the kind of the value, which in text is now a setting by the value's own name."""
        return self.read is not None

    def __set_name__(self, owner: type, name: str) -> None:
        self.old = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        warn_old(f"`{owner.__name__}.{self.old}`", f"`{self.of}.{self.old}`", level=2)
        value = getattr(instance, self.of)
        return self.read(value) if self.read else getattr(value, self.old)


class AcceptsOldNames(ABCMeta):
    """Classes whose keywords may also be given by the names that `OldName` lists.

    An old name that is now a function of the class stands in its `old_keywords`: only the keyword keeps its meaning.
    """

    @property
    def __signature__(cls) -> inspect.Signature:
        """That of the class itself, which `__call__` below would hide from help and editors."""
        init = cls.__init__  # type: ignore[misc]  # this very class's
        if init is object.__init__:
            return inspect.Signature()
        own = inspect.signature(init)
        return own.replace(parameters=[*own.parameters.values()][1:], return_annotation=inspect.Signature.empty)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            kwargs = _gathered(cls, {_translated(cls, name): value for name, value in kwargs.items()})
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


def _gathered(cls: type, given: dict[str, Any]) -> dict[str, Any]:
    """Keywords with the old settings among them put together to the values that they are part of now."""
    parts = {name: found for name in given if isinstance(found := getattr(cls, name, None), OldPart)}
    kept = {name: value for name, value in given.items() if name not in parts}
    for of in {part.of for part in parts.values()}:
        old = {name: given[name] for name, part in parts.items() if part.of == of}
        usual = kept[of] if of in kept else _default(cls, of)
        kept[of] = next(part.build for part in parts.values() if part.of == of)(usual, old)
        shown = ", ".join(f"{name}=..." for name in old)
        warn_old(f"`{cls.__name__}({shown})`", f"`{of}={kept[of]!r}`", level=3)
    return kept


def _default(cls: type, name: str) -> Any:
    [found] = [f for f in fields(cls) if f.name == name]
    return found.default


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


COMMANDS = {"remember": "precompute"}

FIELDS = {
    "rate": "lr",
    "batch": "batch_size",
    "decay": "weight_decay",
    "start": "init",
    "memory": "statistics",
    "tutors": "fold_models",
}
"""Fields of a case, which are flags too."""

FLAGS = {f"--{old}": f"--{new.replace('_', '-')}" for old, new in FIELDS.items()} | {
    "--parts": "--folds",
    "--divisions": "--repeats",
    "--strong": "--shadow-attack",
}

METHODS = {
    "student": "scrub",
    "saliency": "salun",
    "selective-dampening": "ssd",
    "sparse-finetune": "l1-sparse",
    "negative-gradient": "gradient-ascent",
    "unlabel": "out-of-fold-distillation",
    "respond-and-polish": "respond-and-finetune",
}


def arguments_now(given: list[str]) -> list[str]:
    """The words of a command by their new names.

    >>> arguments_now(["scrub", "--lr=0.1", "--out", "run"])
    ['scrub', '--lr=0.1', '--out', 'run']
    """
    flags = [_flag_now(word) for word in given]
    command = next((i for i, word in enumerate(flags) if not word.startswith("-")), None)
    if command is not None and flags[command] in COMMANDS:
        flags[command] = _now(flags[command], COMMANDS, "spotless {}")
    return flags


def _flag_now(word: str) -> str:
    flag, equals, value = word.partition("=")
    return _now(flag, FLAGS, "{}") + equals + value


def field_now(name: str) -> str:
    """A field of a case file by its new name."""
    return _now(name, FIELDS, "the field {!r}")


def methods_now(text: str) -> str:
    """Methods, joined by `+` or listed with commas, by their new names.

    >>> methods_now("ntk+finetune,fisher")
    'ntk+finetune,fisher'
    """
    several = [one.split("+") for one in text.split(",")]
    return ",".join("+".join(_now(part.strip(), METHODS, "the method {!r}") for part in one) for one in several)


def settings_now(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings whose names say a method, `student.epochs`, by that method's new name."""
    found = {}
    for key, value in settings.items():
        owner, dot, name = key.rpartition(".")
        found[_now(owner, METHODS, "the method {!r}") + dot + name] = value
    return found


def setting_now(kind: type, name: str) -> str:
    """A setting of a method by the name that its class has for it now."""
    new = former_setting(kind, name)
    if new is None:
        return name
    warn_old(f"the setting {name!r} of {kind.__name__}", repr(new))
    return new


def former_setting(kind: type, name: str) -> str | None:
    """What a class calls now what it called `name` before; nothing for a name that was never changed."""
    for base in kind.__mro__:
        found = vars(base).get(name)
        if isinstance(found, OldName):
            return found.new
        if isinstance(found, OldPart) and found.is_word:
            return found.of
        new: str | None = vars(base).get("old_keywords", {}).get(name)
        if new is not None:
            return new
    return None


def _now(name: str, renamed: Mapping[str, str], shown: str) -> str:
    if name not in renamed:
        return name
    warn_old(shown.format(name), shown.format(renamed[name]))
    return renamed[name]
