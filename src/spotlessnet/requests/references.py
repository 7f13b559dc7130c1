"""References to a person's own code: a function by the file that it lies in, and whether that file has changed."""

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from spotlessnet.core.errors import DataError, SettingError
from spotlessnet.core.files import sha256
from spotlessnet.requests.case import resolve
from spotlessnet.store.training_record import Source

GUARD = "__name__"
"""A script that never asks for its own name runs as a whole when it is imported."""


AS_FLAGS = {"trainer": "train", "build": "model", "recipe.augment": "recipe"}
"""By which flag a request would be given what a record names."""


def reference_to(given: str | Callable[..., Any], what: str, folder: Path) -> tuple[Source, Any]:
    """Where something lies that a record names, with the digest of its file, and the thing itself.

    **Arguments:**

    - `given`: text such as `train.py:train`, or a function or class at the top of a file.
    - `what`: which argument it is, named in errors.
    - `folder`: of the record, from which the file's path counts.
    """
    if isinstance(given, str):
        place, _, name = given.rpartition(":")
        found = _imported(place, name, what)
        if found is None:
            found = resolve(given, AS_FLAGS.get(what, what))
    else:
        found = given
        place, name = _place_of(given, what)
    file = source_file(place)
    if file is None:
        raise DataError(f"`{what}` {place}:{name} must lie in a file, so that a request finds it again.")
    _check_may_be_imported(file, what, folder)
    told = os.path.relpath(file, folder.resolve()) if place.endswith(".py") else place
    return Source(f"{told}:{name}", sha256(file)), found


def _imported(place: str, name: str, what: str) -> Any:
    """The thing itself if its file runs or was imported already: that is not done a second time."""
    script = sys.modules.get("__main__")
    if not place.endswith(".py") or not Path(place).is_file():
        return None
    path = Path(place).resolve()
    # Its name first: there are thousands of modules.
    named = [module for module in list(sys.modules.values()) if _ends_in(module, path.name)]
    same = [module for module in named if _file_of(module) == path]
    found = next((getattr(module, name) for module in same if hasattr(module, name)), None)
    if found is None and script in same:
        raise DataError(f"{place} has no {name!r} yet where it is recorded as `{what}`. Define it above.")
    return found


def _ends_in(module: Any, name: str) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and os.path.basename(file) == name


def _file_of(module: Any) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) and file.endswith(".py") else None


def _place_of(given: Any, what: str) -> tuple[str, str]:
    """The file or module of a function, and its name there."""
    name = getattr(given, "__qualname__", "")
    module = sys.modules.get(getattr(given, "__module__", None) or "")
    if module is None or not name.isidentifier() or getattr(module, name, None) is not given:
        raise SettingError(
            f"`{what}` must be a function or a class at the top of a file, or text such as `train.py:train`, so that "
            f"a request finds it again, but got {str(given)[:60]}."
        )
    dotted = _dotted(module)
    file = getattr(module, "__file__", None) if dotted is None else None
    if dotted is None and not (isinstance(file, str) and file.endswith(".py") and Path(file).is_file()):
        raise SettingError(f"`{what}` must lie in a file, so that a request finds it again, but {name} does not.")
    return dotted or str(file), name


def _dotted(module: ModuleType) -> str | None:
    """The name of a module inside a package, which cannot be read from its file alone; `None` for a single file."""
    spec = getattr(module, "__spec__", None)
    name = spec.name if spec is not None else module.__name__
    return name if "." in name else None


def source_file(place: str) -> Path | None:
    """The file of `file.py` or of `package.module`."""
    if place.endswith(".py"):
        return Path(place).resolve() if Path(place).is_file() else None
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(place)
    except (ImportError, ValueError, AttributeError):
        return None
    finally:
        sys.path.remove(os.getcwd())
    return None if found is None or found.origin is None else Path(found.origin).resolve()


def _check_may_be_imported(file: Path, what: str, folder: Path) -> None:
    if file.is_relative_to(folder.resolve()):
        raise SettingError(f"`{what}` must not lie in the folder of the record, {folder}: records hold no code.")
    is_script = _file_of(sys.modules.get("__main__")) == file
    if is_script and GUARD not in file.read_text(encoding="utf-8", errors="replace"):
        raise SettingError(
            f"{file.name} is a script that would train again when a request imports it for `{what}`. Put what it does "
            '(not what it defines) under `if __name__ == "__main__":`.'
        )


def located(source: Source, folder: Path) -> str:
    """What a flag would say: the reference of a record, with the path of its file made whole."""
    place, colon, name = source.spec.rpartition(":")
    if not colon:
        path = Path(os.path.normpath(folder.resolve() / source.spec))
        return str(path) if source.spec.endswith(".npz") else source.spec
    if not place.endswith(".py"):
        return f"{place}:{name}"
    file = Path(os.path.normpath(folder.resolve() / place))
    if file.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{file} lies in the folder of the training records, which hold no code. It was not imported.")
    return f"{file}:{name}"


def changed_source(source: Source, folder: Path) -> str | None:
    """How the file of a reference differs from the one that was recorded; `None` where it does not."""
    place = located(source, folder).rpartition(":")[0]
    file = source_file(place)
    if file is None:
        return f"{place} is no longer there"
    return None if sha256(file) == source.sha256 else f"{place} has changed"


def rebased(source: Source | None, old: Path, new: Path, *, anew: bool = False) -> Source | None:
    """The same reference from another folder.

    **Arguments:**

    - `anew`: digest the file as it is now, for its changes were accepted.
    """
    if source is None:
        return None
    whole = located(source, old)
    if anew and source.sha256 is not None and (file := source_file(whole.rpartition(":")[0])) is not None:
        source = Source(source.spec, sha256(file))
    place, colon, name = whole.rpartition(":")
    is_file = place.endswith(".py") if colon else whole.endswith(".npz")
    if not is_file:
        return source
    told = os.path.relpath(place if colon else whole, new.resolve())
    return Source(f"{told}{colon}{name if colon else ''}", source.sha256)
