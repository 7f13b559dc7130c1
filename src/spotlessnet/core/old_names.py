"""Names of version 0.1 in commands and case files, and what they are called now; they go with version 0.3."""

from collections.abc import Mapping
from typing import Any

from spotlessnet.core.deprecated import OldName, OldPart, warn_old

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
