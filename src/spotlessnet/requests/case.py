"""`Case`: a person's own request as one value, from Python, from flags or from a TOML file, checked before any work."""

import difflib
import hashlib
import importlib
import importlib.util
import os
import sys
import tomllib
import traceback
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.deprecated import FIELDS, field_now, methods_now, settings_now
from spotlessnet.core.errors import (
    DataError,
    NeedError,
    SettingError,
    check_choice,
    check_not_negative,
    check_positive,
    shown,
)
from spotlessnet.core.files import read_whole
from spotlessnet.core.recipe import Recipe, Schedule
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Cohort
from spotlessnet.core.trained import Trained
from spotlessnet.precomputed.fold_models import FoldModels
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.training.over_ray import CASE

LARGEST = 2**16
"""Bytes; a longer case file is refused before it is read."""

MOST_DOTS = 32
"""Dots in a line of a case file: a name of n parts costs its parser n² of memory."""

OWN: set[str] = set()
"""Modules and folders of the code that a person's case brought: what it raises is not this tool's mistake."""

PLAIN = (str, int, float, bool, Path, Mapping)
"""Types of a value that a flag or a line of a case file can give; any other is an object of a Python program."""

RECIPE = ("epochs", "lr", "momentum", "batch_size", "schedule", "patience")
"""Settings of a recipe that have a flag of their own; the table `recipe` takes these and all others."""


SPECS = ("model", "data", "test", "validation", "core", "loss", "train", "augment")
"""Fields that may name a file by `file.py:name` or `file.npz`."""


@dataclass(frozen=True)
class Case:
    """What to forget, in which network, how, and where the result goes.

    Each field is a flag of the command (`id_column` is `--id-column`), explained by its `--help`, and a line of a case
    file: text and paths. From Python the network, the rows, what must go and the method may also be the objects
    themselves; a `Trained` then brings its own loss, start and recipe.
    """

    model: str | Trained | None = None
    weights: Path | None = None
    data: str | Data | None = None
    test: str | Data | None = None
    validation: str | Data | None = None
    core: str | Data | None = None
    forget: Path | Cohort | None = None
    id_column: str | None = "id"
    allow_missing: bool | None = False
    mislabelled: bool | None = False
    loss: str | None = None
    method: str | Scrub | None = None
    settings: Mapping[str, Any] | None = None
    max_nats: float | None = None
    max_error_increase: float | None = None
    max_damage: float | None = None
    accept_damage: bool | None = False
    reference: Path | Tensor | None = None
    statistics: Path | Statistics | None = None
    fold_models: Path | FoldModels | None = None
    init: Path | None = None
    train: str | None = None
    weight_decay: float | None = None
    epochs: int | None = None
    lr: float | None = None
    momentum: float | None = None
    batch_size: int | None = None
    schedule: str | None = None
    patience: int | None = None
    recipe: Mapping[str, Any] | None = None
    training: Path | None = None
    accept_changes: bool | None = False
    seed: int | None = None
    device: str | None = "auto"
    memory_limit: float | None = None
    keep_private: int | None = 90
    out: Path | None = None

    @staticmethod
    def of(flags: Mapping[str, Any], file: Path | None = None) -> "Case":
        """A case from a file, with whatever flags were given put over it."""
        values = {} if file is None else read_case(file)
        values |= {name: value for name, value in flags.items() if value is not None}
        if values.get("training") is not None:
            from spotlessnet.requests.recorded import fields_of

            known = fields_of(values["training"], values)
            values = {**known, **values}
            if "settings" in known:
                values["settings"] = {**known["settings"], **(values.get("settings") or {})}
        if isinstance(values.get("method"), str):
            values["method"] = methods_now(values["method"])
        if values.get("settings") is not None:
            values["settings"] = settings_now(values["settings"])
        case = Case(**values)
        case.check()
        return case

    def check(self) -> None:
        """What can be said without opening anything."""
        for name in ("epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if value is not None and abs(value) >= 2**63:
                raise SettingError(f"{as_flag(name)} must be a whole number below 2⁶³, but got {shown(value)}.")
        for name in ("max_nats", "max_error_increase", "max_damage", "epochs", "lr", "batch_size", "memory_limit"):
            value = getattr(self, name)
            if value is not None:
                check_positive(name.replace("_", "-"), value)
        if self.weight_decay is not None:
            check_not_negative("weight_decay", self.weight_decay)
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise SettingError(f"`seed` must be a whole number from 0 below 2⁶³, but got {shown(self.seed)}.")
        if self.keep_private is not None and not 0 <= self.keep_private <= 36500:
            raise SettingError(f"`keep-private` must be days from 0 to 36500, but got {shown(self.keep_private)}.")
        if self.device not in ("auto", "cpu", "cuda"):
            raise SettingError(f"`device` must be auto, cpu or cuda, but got {self.device!r}.")
        for name in ("weights", "forget", "init", "reference", "statistics", "fold_models"):
            path = getattr(self, name)
            if isinstance(path, Path) and not path.exists():
                hint = " It is a file that lists ids or row numbers, such as one id a line in a .txt file."
                raise DataError(
                    f"There is no file {path} for {as_flag(name)}. Check the path.{hint if name == 'forget' else ''}"
                )
        if self.schedule is not None:
            check_choice("schedule", self.schedule, typing.get_args(Schedule))
        self.as_recipe()

    def need(self, *names: str) -> None:
        """Raise unless these fields were given."""
        missing = [as_flag(name) for name in names if getattr(self, name) is None]
        if missing:
            needed = " and ".join([*([", ".join(missing[:-1])] if missing[1:] else []), missing[-1]])
            how = "them as flags, or as lines" if missing[1:] else "it as a flag, or as a line"
            raise NeedError(f"This needs {needed}. Give {how} of the case file.")

    def as_recipe(self) -> Recipe | None:
        """How the network was trained, if that was said; but for `augment`, which must be imported first."""
        own = ("weight_decay", *RECIPE) if self.recipe else RECIPE
        given = {name: getattr(self, name) for name in own if getattr(self, name) is not None}
        if self.recipe:
            given = self._with_table(given)
        if not given:
            return None
        lacking = [name for name in ("epochs", "lr") if name not in given]
        if lacking:
            raise NeedError(
                f"A recipe needs at least epochs and lr, but {' and '.join(map(as_flag, lacking))} was not given."
            )
        return Recipe(**{"weight_decay": self.weight_decay or 0.0, **given})

    def _with_table(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that have flags of their own, and those of the table `recipe`."""
        from spotlessnet.requests.recipes import AUGMENT, typed_settings

        assert self.recipe is not None
        table = typed_settings(self.recipe)
        twice = sorted(table.keys() & given.keys())
        if twice:
            raise SettingError(f"{as_flag(twice[0])} was given, and --recipe {twice[0]} too. Give it once.")
        return {**given, **{name: value for name, value in table.items() if name != AUGMENT}}

    @property
    def augment(self) -> str | None:
        """The name of the transform of batches that the table `recipe` gives."""
        return None if self.recipe is None else self.recipe.get("augment")

    @property
    def knows_history(self) -> bool:
        """Whether it was said where training began and how it went, so that it can be done again."""
        if isinstance(self.model, Trained):
            return self.model.can_retrain
        return self.init is not None and (self.train is not None or self.as_recipe() is not None)

    @property
    def objects(self) -> tuple[str, ...]:
        """The fields that hold objects of a Python program, which no file can tell again."""
        return tuple(f.name for f in fields(self) if not isinstance(getattr(self, f.name), (*PLAIN, type(None))))

    @property
    def private_days(self) -> int:
        """How many days the private part of the result is kept."""
        return 90 if self.keep_private is None else self.keep_private

    def given(self) -> dict[str, Any]:
        """The fields that were given as text, paths and numbers, as plain values."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.objects}
        return {n: str(v) if isinstance(v, Path) else v for n, v in values.items() if v not in (None, False)}


def as_flag(name: str) -> str:
    """The flag of a field: `id_column` is `--id-column`."""
    return "--set" if name == "settings" else "--" + name.replace("_", "-")


def called(case: Case, name: str) -> str:
    """How a message names a field: by its flag, or as an argument where it holds an object."""
    return f"`{name}`" if name in case.objects else as_flag(name)


def inputs_of(case: Case) -> dict[str, Path]:
    """Every file and folder that a case reads, by the field that names it."""
    files = ("training", "weights", "forget", "init", "reference", "statistics", "fold_models")
    named = {name: getattr(case, name) for name in files}
    for name in SPECS:
        spec = getattr(case, name)
        if isinstance(spec, str):
            place = spec if spec.endswith(".npz") else spec.rpartition(":")[0]
            named[name] = Path(place) if place.endswith((".py", ".npz")) else None
    # Objects of a Python program are no files: what they hold is digested where it is read.
    return {name: path for name, path in named.items() if isinstance(path, Path) and path.exists()}


def kinds() -> dict[str, tuple[Any, ...]]:
    """For each field, the types that its value may have in a flag or a case file."""
    hints = typing.get_type_hints(Case)
    return {
        f.name: tuple(t for t in typing.get_args(hints[f.name]) if (typing.get_origin(t) or t) in PLAIN)
        for f in fields(Case)
    }


def read_case(path: Path) -> dict[str, Any]:
    """The fields of a case file; one that is not known is refused by name, with the nearest that is.

    Paths in it count from its own folder, wherever the command is called.
    """
    content = bytes(read_whole(path, "case file", LARGEST))
    # A name cannot go on in the next line, so this bounds how many parts it has, whatever is quoted.
    if any(line.count(b".") > MOST_DOTS for line in content.splitlines()):
        raise DataError(f"The case file {path} has a line with more than {MOST_DOTS} dots, and no field needs them.")
    try:
        found = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, ValueError) as e:
        raise DataError(f"The case file {path} is not valid TOML ({str(e)[:120] or type(e).__name__}).") from e
    known = kinds()
    values = {}
    for name, value in found.items():
        plain = field_now("settings" if name == "set" else name.replace("-", "_"))
        if plain not in known:
            near = difflib.get_close_matches(plain, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known are {', '.join(known)}."
            raise DataError(f"The case file {path} has an unknown field {name[:60]!r}. {hint}")
        if plain in values:
            raise DataError(f"The case file {path} has {plain!r} twice, once by its old name {_old(plain)!r}.")
        values[plain] = _typed(path, name, value, known[plain])
    return {name: _beside(path.parent, name, value) for name, value in values.items()}


def _beside(folder: Path, name: str, value: Any) -> Any:
    """A value whose paths counted from a folder, as they count from here: `nets.py:build` is `there/nets.py:build`."""
    if isinstance(value, Path):
        return Path(os.path.normpath(folder / value))
    if name == "recipe" and isinstance(value, dict):
        return {key: _beside(folder, "augment" if key == "augment" else "", one) for key, one in value.items()}
    if not isinstance(value, str) or name not in SPECS or "\0" in value:
        return value
    place, colon, inside = (value, "", "") if value.endswith(".npz") else value.rpartition(":")
    return f"{os.path.normpath(folder / place)}{colon}{inside}" if place.endswith((".py", ".npz")) else value


def _old(field: str) -> str:
    return next((old for old, new in FIELDS.items() if new == field), field.replace("_", "-"))


def _typed(path: Path, name: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    if Path in allowed and isinstance(value, str) and "\0" not in value:
        return Path(value)
    if float in allowed and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1000:
        return float(value)
    if isinstance(value, dict) and Mapping in {typing.get_origin(kind) or kind for kind in allowed}:
        return value
    plain = tuple(kind for kind in allowed if kind in (str, int, float, bool))
    if isinstance(value, plain) and not (isinstance(value, bool) and bool not in plain):
        return value
    wanted = {str: "text", Path: "a path", int: "a whole number", float: "a number", bool: "true or false"}
    text = " or ".join(wanted.get(kind, "a table") for kind in allowed)
    raise DataError(f"The field {name!r} of the case file {path} must be {text}, but is {shown(value)!r}.")


def resolve(spec: str, what: str) -> Any:
    """The object that `package.module:name` or `file.py:name` speaks of. Importing it runs that module's code.

    **Arguments:**

    - `what`: which field it is for, named in errors.
    """
    place, _, name = spec.rpartition(":")
    if not place or not name.isidentifier():
        raise SettingError(f"{as_flag(what)} must be `package.module:name` or `file.py:name`, but got {spec[:80]!r}.")
    module = _module(place, what)
    try:
        return getattr(module, name)
    except AttributeError as e:
        near = difflib.get_close_matches(name, vars(module), n=1, cutoff=0.75)
        hint = f"Did you mean {near[0]!r}?" if near else "Check the name after the colon."
        raise DataError(f"{place} has no {name!r} for {as_flag(what)}. {hint}") from e


def made(spec: str, what: str) -> Any:
    """What `resolve` finds, called without arguments if it is a function or a class."""
    found = resolve(spec, what)
    if not isinstance(found, (types.FunctionType, types.BuiltinFunctionType, types.MethodType, partial, type)):
        return found
    with _blamed(spec, what):
        return found()


def _module(place: str, what: str) -> types.ModuleType:
    is_file = place.endswith(".py")
    path = Path(place)
    if is_file and not path.is_file():
        raise DataError(f"There is no file {place} for {as_flag(what)}. Check the path before the colon.")
    # A command does not look for modules where it is called; a person expects that it does.
    OWN.add(os.fspath(path.resolve().parent) if is_file else place.partition(".")[0])
    with _searching(path.resolve().parent if is_file else Path.cwd()), _blamed(place, what):
        if not is_file:
            return importlib.import_module(place)
        # The same name in every process: kept trainings and workers know its classes by it.
        name = f"{CASE}{path.stem}_{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise DataError(f"{place} cannot be imported.")
        module = importlib.util.module_from_spec(spec)
        # Data classes and worker processes look their module up by its name.
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module


def raised_by_own(error: BaseException) -> str | None:
    """Where in a person's own code an error came up, deeper than any line of this package; `None` if not there."""
    found = None
    ours = os.path.dirname(os.path.dirname(__file__)) + os.sep  # the whole package, not only its requests
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        module = str(frame.f_globals.get("__name__", ""))
        if file.startswith(ours):
            found = None
        elif module.partition(".")[0] in OWN or (os.path.dirname(file) in OWN and "site-packages" not in file):
            found = f"{os.path.basename(file)}, line {line}, in {frame.f_code.co_name}"
    return found


@contextmanager
def _searching(folder: Path) -> Iterator[None]:
    """Put a folder on the search path while its modules are imported."""
    sys.path.insert(0, os.fspath(folder))
    try:
        yield
    finally:
        sys.path.remove(os.fspath(folder))


@contextmanager
def _blamed(place: str, what: str) -> Iterator[None]:
    """Whatever a person's own code raises becomes one line that names it."""
    try:
        yield
    except (Exception, SystemExit) as e:
        line = (str(e).strip().splitlines() or [""])[0][:160]
        raise DataError(
            f"{place} for {as_flag(what)} could not be used: {type(e).__name__}: {line}. "
            "Correct it; --debug shows where."
        ) from e
