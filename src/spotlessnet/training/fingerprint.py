"""What tells one training from another, as a digest: a kept one is used again only where all of this is the same.

Networks: weights, buffers, structure, what they answer to a few rows, and the files of their classes. Rows: their
contents and numbers. How they are trained: recipe or trainer with the files of its code, seed, rows left out, this
package's own code, versions, threads and kind of device. Files are those that a function's own module imports by name;
what it imports while it runs is not seen.
"""

import hashlib
import inspect
import json
import pickle
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from spotlessnet.core.data import Data, contents_of
from spotlessnet.core.errors import DataError, SettingError
from spotlessnet.core.trained import Trained
from spotlessnet.training.batches import repeatable

if TYPE_CHECKING:
    from spotlessnet.training.many import Task

DEEPEST = 12
"""How deep the values of a trainer may be nested."""

ASKED = 4
"""Rows that a network answers to show what it computes: two can differ in nothing but a function that they call."""


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """Keys of trainings on these rows.

    **Arguments:**

    - `rows`: digest of their contents and numbers.
    - `known`: digests of the networks met so far, by their identity in memory, which are held so that it stays theirs.
    """

    data: Data
    rows: str
    known: dict[int, tuple[Trained, str]] = field(default_factory=dict)

    @staticmethod
    def of(data: Data) -> "Fingerprint":
        """Reads all rows once."""
        few = data.select(range(min(ASKED, len(data))))
        if contents_of(few) != contents_of(few):
            raise DataError(
                "Rows must be the same whenever they are read, or nobody can tell whether a kept training was of "
                "these, but they come out differently. Move what draws at random into `Recipe.augment` or the trainer, "
                "or keep no trainings."
            )
        return Fingerprint(data, _sha(contents_of(data).sha256.encode(), _bytes(data.rows)))

    def key(self, task: "Task") -> str:
        """The digest of all that decides what comes of a task."""
        first = task.begun[0]
        own = {f.name: told(getattr(task, f.name)) for f in fields(task) if f.name not in ("begun", "keep", "label")}
        about = {
            "kind": f"{type(task).__module__}.{type(task).__qualname__}",
            "task": own,
            "keep": _sha(_bytes(task.keep)),
            "rows": self.rows,
            "networks": [self._network(one) for one in task.begun],
            "code": [_rooms(), torch.__version__, np.__version__],
            "threads": torch.get_num_threads(),
            "device": first.device.type,
        }
        return _sha(json.dumps(about, sort_keys=True).encode())

    def _network(self, network: Trained) -> str:
        found = self.known.get(id(network))
        if found is None:
            found = network, network_digest(network, self.data)
            self.known[id(network)] = found
        return found[1]


def check_known(network: Trained) -> None:
    """Raise where something of a network's training could not be told from another."""
    for part in (network.recipe, network.trainer, network.loss, network.model):
        told(part)


def network_digest(network: Trained, data: Data) -> str:
    """Of a network where its training begins, and of how it is trained."""
    few = data.select(range(min(ASKED, len(data))))
    with repeatable(network.device, 0):
        answers = network.predict(few)
    known = {f.name: told(getattr(network, f.name)) for f in fields(network)}
    return _sha(json.dumps(known, sort_keys=True).encode(), _bytes(answers))


def told(value: Any, around: tuple[int, ...] = ()) -> Any:
    """A value in words and digests that JSON knows; equal values are told alike, also in another process.

    **Arguments:**

    - `around`: the values that it is part of, by their identity in memory.
    """
    if id(value) in around:
        return ["again", around[::-1].index(id(value))]
    if len(around) > DEEPEST:
        raise _unknown(value)
    more = (*around, id(value))
    match value:
        case None | bool() | int() | str():
            return value
        case float() | complex() | torch.dtype() | torch.device() | Path():
            return repr(value)
        case bytes():
            return _sha(value)
        case Tensor():
            return [str(value.dtype), list(value.shape), _sha(_bytes(value))]
        case np.ndarray():
            return [str(value.dtype), list(value.shape), _sha(np.ascontiguousarray(value).tobytes())]
        case Enum():
            return [type(value).__qualname__, value.name]
        case Mapping():
            return [[told(key, more), told(one, more)] for key, one in sorted(value.items(), key=lambda p: str(p[0]))]
        case list() | tuple():
            return [told(one, more) for one in value]
        case set() | frozenset():
            return sorted(json.dumps(told(one, more), sort_keys=True) for one in value)
        case partial():
            return ["partial", told(value.func, more), told(value.args, more), told(value.keywords, more)]
        case MethodType():
            return [told(value.__func__, more), told(value.__self__, more)]
        case FunctionType():
            return _function(value, more)
        case type() | BuiltinFunctionType():
            return [value.__module__, value.__qualname__, _files(sys.modules.get(value.__module__ or ""))]
        case nn.Module():
            return _module(value, more)
    return _object(value, more)


def _function(function: FunctionType, around: tuple[int, ...]) -> list[Any]:
    cells = [told(cell.cell_contents, around) for cell in function.__closure__ or ()]
    defaults = [told(function.__defaults__, around), told(function.__kwdefaults__, around)]
    files = _files(sys.modules.get(function.__module__ or ""))
    return [function.__module__, function.__qualname__, _code(function.__code__), defaults, cells, files]


def _module(module: nn.Module, around: tuple[int, ...]) -> list[Any]:
    """A network's structure by its own words and its classes' files, and all that its state holds."""
    classes = {type(part) for part in module.modules()}
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    free = [name for name, value in module.named_parameters() if value.requires_grad]
    return [repr(module), sorted(map(str, (told(one, around) for one in classes))), told(named, around), free]


def _object(value: Any, around: tuple[int, ...]) -> list[Any]:
    kind = told(type(value), around)
    own = getattr(value, "__dict__", None)
    if own is not None:
        return [kind, told({n: v for n, v in own.items() if not n.startswith("__")}, around)]
    try:
        return [kind, _sha(pickle.dumps(value))]
    except Exception as error:  # whatever an object of somebody else's raises
        raise _unknown(value) from error


def _code(code: CodeType) -> str:
    """What a function does, wherever its file lies and whichever lines it stands on."""
    inner = [_code(one) if isinstance(one, CodeType) else told(one) for one in code.co_consts]
    return _sha(code.co_code, json.dumps([code.co_names, code.co_varnames, inner]).encode())


def _files(module: ModuleType | None) -> list[str]:
    """Digests of a module's file and of all that it imports by name, of the user's own; empty where there is none."""
    found: dict[str, str] = {}
    left = [module]
    while left:
        one = left.pop()
        file = getattr(one, "__file__", None)
        if one is None or file is None or file in found or not _is_own(file):
            continue
        found[file] = _sha(Path(file).read_bytes())
        names = {getattr(value, "__module__", None) for value in vars(one).values()}
        left += [sys.modules.get(name) for name in names if isinstance(name, str)]
        left += [value for value in vars(one).values() if inspect.ismodule(value)]
    return sorted(found.values())


@cache
def _rooms() -> str:
    """Of the files of this package that decide what a training gives: a later version may train otherwise."""
    package = Path(__file__).parents[1]
    files = [path for room in ("core", "models", "training") for path in sorted((package / room).rglob("*.py"))]
    return _sha(*(path.read_bytes() for path in files))


def _is_own(file: str) -> bool:
    """Whether a file is the user's own: not of Python, of this package, or of what was installed."""
    path = Path(file)
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    ours = Path(__file__).parents[1]
    installed = "site-packages" in path.parts or "dist-packages" in path.parts or path.is_relative_to(ours)
    return path.is_file() and not installed and not any(path.is_relative_to(place) for place in places if place)


def _bytes(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _sha(*parts: bytes) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(len(part).to_bytes(8, "big"))
        sha.update(part)
    return sha.hexdigest()


def _unknown(value: Any) -> SettingError:
    return SettingError(
        f"A training that is kept must be told from others, but it holds a {type(value).__qualname__}, of which nobody "
        "can say in another process whether it is the same. Keep no trainings, or take it out of the trainer."
    )
