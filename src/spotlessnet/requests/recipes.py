"""Settings of a training from text: `--recipe optimizer=adamw`, or the table `[recipe]` of a case file."""

import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from spotlessnet.core.errors import SettingError, shown
from spotlessnet.core.recipe import Recipe

AUGMENT = "augment"
"""The one setting that text can only name: `file.py:function`. It is imported where the data are."""


def typed_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a recipe by name, each in the type that `Recipe` declares.

    >>> typed_settings({"optimizer": "adamw", "betas": "0.9, 0.98", "bf16": "yes"})
    {'optimizer': 'adamw', 'betas': (0.9, 0.98), 'bf16': True}
    """
    hints = typing.get_type_hints(Recipe)
    known = [f.name for f in fields(Recipe)]
    found: dict[str, Any] = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(known)}."
            raise SettingError(f"--recipe has no setting {key[:60]!r}. {hint}")
        if name in found:
            raise SettingError(f"The setting {name!r} of --recipe was given twice. Give it once.")
        found[name] = _spec(value) if name == AUGMENT else _typed(name, value, hints[name])
    return found


def _spec(value: Any) -> str:
    """The name of a function, which is looked for only when everything else is known."""
    if not isinstance(value, str) or ":" not in value:
        raise SettingError(f"--recipe augment must be `package.module:name` or `file.py:name`, but got {shown(value)}.")
    return value


def _typed(name: str, value: Any, hint: Any) -> Any:
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    parts = typing.get_args(hint) if is_union else (hint,)
    text = value.strip() if isinstance(value, str) else shown(value)
    for part in parts:
        if part is types.NoneType and text.lower() in ("none", "null"):
            return None
        if typing.get_origin(part) is typing.Literal and text in typing.get_args(part):
            return text
        if part is str and isinstance(value, str):
            return text
        if part is bool and text.lower() in ("true", "false", "yes", "no"):
            return text.lower() in ("true", "yes")
        if part in (int, float) and (number := _number(part, text, value)) is not None:
            return number
        if typing.get_origin(part) is tuple and (pair := _numbers(value, len(typing.get_args(part)))) is not None:
            return pair
    raise SettingError(f"--recipe {name} must be {' or '.join(map(_wanted, parts))}, but got {text[:60]!r}.")


def _number(kind: type, text: str, value: Any) -> Any:
    # True is a number to Python, and to nobody else.
    if isinstance(value, bool):
        return None
    try:
        number = kind(text)
    except ValueError:
        return None
    return None if kind is int and abs(number) >= 2**63 else number


def _numbers(value: Any, count: int) -> tuple[float, ...] | None:
    """So many numbers with commas between, or in a list."""
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)) or len(listed) != count:
        return None
    found = [_number(float, str(one).strip(), one) for one in listed]
    return None if None in found else tuple(found)


def _wanted(part: Any) -> str:
    if typing.get_origin(part) is typing.Literal:
        return " or ".join(repr(choice) for choice in typing.get_args(part))
    words: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", types.NoneType: "none"}
    return words.get(part, "two numbers with a comma between" if typing.get_origin(part) is tuple else "text")
