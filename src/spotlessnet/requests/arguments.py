"""The arguments of `sn.unlearn` by their types: each mistake is one sentence, before anything is read."""

from collections.abc import Collection, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from spotlessnet.core.errors import NeedError, SettingError, shown
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Scrub
from spotlessnet.precomputed.fold_models import FoldModels
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.requests.audits import Audit

FILE = (str, Path)
NUMBERS = ("weight_decay", "max_nats", "max_error_increase", "max_damage", "memory_limit")
TRUTHS = ("mislabelled", "accept_damage", "resume", "progress")

KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "settings": ((Mapping,), 'a mapping such as `{"damping": 0.1}`'),
    "init": ((Mapping, nn.Module, Tensor, *FILE), "a state dict, a module, a vector or the path of a checkpoint"),
    "recipe": ((Recipe,), "a `sn.Recipe`, such as `sn.Recipe(epochs=30, lr=0.01)`"),
    "weights": (FILE, "the path of a checkpoint"),
    "statistics": ((Statistics, *FILE), "what `sn.precompute` gave, or its path"),
    "fold_models": ((FoldModels, *FILE), "what `sn.train_fold_models` gave, or its path"),
    "reference": ((Tensor, *FILE), "a vector of weights, or the path of a checkpoint"),
    "audit": ((bool, Audit), "True, False or how to audit, such as `sn.Audit(seeds=5)`"),
    "out": (FILE, "the path of a new folder"),
    **dict.fromkeys(TRUTHS, ((bool,), "True or False")),
}
"""For each argument the types that it may have, and how a message calls them; what may be left out may also be None."""

NEVER_NONE = ("audit", *TRUTHS)


def check_arguments(given: Mapping[str, Any]) -> None:
    """Raise, by its name, for the first argument that is of no type that `unlearn` knows."""
    for name, (kinds, wanted) in KINDS.items():
        value = given[name]
        if not isinstance(value, kinds) and not (value is None and name not in NEVER_NONE):
            raise _wrong(name, wanted, value)
    for name in NUMBERS:
        _check_number(name, given[name], Real, "a number")
    for name in ("seed", "keep_private"):
        _check_number(name, given[name], Integral, "a whole number")
    for name in ("trainer", "say"):
        if not callable(given[name]) and not (given[name] is None and name == "trainer"):
            raise _wrong(name, "a function", given[name])
    _check_method(given["method"])
    _check_ids(given["ids"])
    if given["resume"] and given["out"] is None:
        raise NeedError("`resume` goes on in the folder of an earlier run, but `out` does not name one. Give it.")


def _check_number(name: str, value: Any, kind: type, wanted: str) -> None:
    # True is a number to Python, and to nobody else.
    if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
        raise _wrong(name, wanted, value)


def _check_method(method: Any) -> None:
    if isinstance(method, type) and issubclass(method, Scrub):
        raise SettingError(f"`method` must be a method, but got its class. Give `sn.{method.__name__}()`.")
    if not isinstance(method, (str, Scrub)) or (isinstance(method, str) and not method.strip()):
        raise _wrong("method", 'a method such as `sn.NTK()`, its name such as `"ntk"`, or `"auto"`', method)


def _check_ids(ids: Any) -> None:
    if ids is None or isinstance(ids, str):
        return
    # An iterator would be empty when it is read again.
    is_listed = isinstance(ids, Collection) and not isinstance(ids, (bytes, bytearray, set, frozenset, Mapping))
    if not is_listed:
        raise _wrong("ids", "a list with the id of each example, or the name of a column", ids)


def check_rows(listed: list[int]) -> None:
    """Raise where row numbers come twice, as they do in a mask of zeros and ones."""
    if len(set(listed)) == len(listed):
        return
    if set(listed) <= {0, 1}:
        raise SettingError(
            f"`forget` must hold each row number once, but holds {len(listed)} zeros and ones. A mask must be of truth "
            "values: give `mask.bool()` of a tensor, `mask.astype(bool)` of an array."
        )
    twice = next(one for i, one in enumerate(listed) if one in listed[:i])
    raise SettingError(f"`forget` must hold each row number once, but holds {twice} more than once.")


def _wrong(name: str, wanted: str, value: Any) -> SettingError:
    return SettingError(f"`{name}` must be {wanted}, but got {shown(repr(value))} ({type(value).__name__}).")
