"""Settings that are values: one of several kinds, each with settings of its own: `NTK(solver=CG(tolerance=1e-3))`.

In text, on the command line and in case files, such a value is flat: `solver=cg` beside `tolerance=1e-3`.
"""

import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, ClassVar, TypeVar

from spotlessnet.core.errors import SettingError

V = TypeVar("V", bound="Variant")


class Variant:
    """One kind of a setting; every kind is a frozen dataclass that says the `word` it has in text."""

    word: ClassVar[str] = ""
    old_words: ClassVar[Mapping[str, str]] = {}
    """What a word was before, and is now."""

    @classmethod
    def kinds(cls: type[V]) -> dict[str, type[V]]:
        """The kinds by their words: a class of its own, or all that inherit from it."""
        own = {cls.word: cls} if "word" in vars(cls) else {}
        return own | {word: kind for sub in cls.__subclasses__() for word, kind in sub.kinds().items()}


def variants(owner: type) -> dict[str, type[Variant]]:
    """The fields of a dataclass that are such values."""
    hints = typing.get_type_hints(owner)
    return {
        f.name: hints[f.name]
        for f in fields(owner)
        if isinstance(hints[f.name], type) and issubclass(hints[f.name], Variant)
    }


def part_hints(setting: type[Variant]) -> dict[str, Any]:
    """The settings that some kind of a value has, with their types."""
    return {
        f.name: typing.get_type_hints(kind)[f.name]
        for kind in setting.kinds().values()
        for f in fields(kind)  # type: ignore[arg-type]  # every kind is a dataclass
    }


def part_defaults(setting: type[Variant], usual: Variant) -> dict[str, Any]:
    """What those settings are unless said: as in the usual value, or as in the kind that has them."""
    found = {
        f.name: f.default
        for kind in setting.kinds().values()
        for f in fields(kind)  # type: ignore[arg-type]  # every kind is a dataclass
    }
    return found | flat(usual)


def flat(value: Variant) -> dict[str, Any]:
    """The settings of one value by name."""
    return {f.name: getattr(value, f.name) for f in fields(value)}  # type: ignore[arg-type]  # every kind is a dataclass


def default_of(owner: type, name: str) -> Any:
    """A field's default value; an error of this package's own making where there is none."""
    [found] = [f for f in fields(owner) if f.name == name]
    if found.default is not MISSING:
        return found.default
    if found.default_factory is not MISSING:
        return found.default_factory()
    raise TypeError(f"{owner.__name__}.{name} has no default")


def assembled(owner: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as text has them, with the flat ones put together to the values that the class takes."""
    left = dict(given)
    for name, setting in variants(owner).items():
        usual = default_of(owner, name)
        parts = {part: left.pop(part) for part in part_hints(setting) if part in left}
        word = left.pop(name, None)
        if parts or word is not None:
            left[name] = made(setting, usual, word, parts)
    return left


def made(setting: type[V], usual: V, word: str | None, parts: Mapping[str, Any]) -> V:
    """The value of this kind with these settings; the others as usual, where the kind is the usual one."""
    kinds = setting.kinds()
    kind = type(usual) if word is None else kinds[setting.old_words.get(word, word)]
    base = usual if type(usual) is kind else kind()
    own = flat(base)
    for part, value in parts.items():
        if part not in own and value != part_defaults(setting, usual)[part]:
            having = " or ".join(w for w, other in kinds.items() if part in flat(other()))
            raise SettingError(
                f"`{part}` must go with a {setting.__name__.lower()} that has it ({having}), but it is {kind.word!r}. "
                "Leave it out, or choose that one."
            )
    return replace(base, **{part: value for part, value in parts.items() if part in own})  # type: ignore[type-var]  # a dataclass
