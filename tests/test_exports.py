"""The public names: all there, sorted, documented, and cheap to import."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import spotlessnet as sn

SOURCE = Path(sn.__file__).read_text()


def test_every_public_name_is_there_and_documented():
    for name in sn.__all__:
        found = getattr(sn, name)
        assert name == "__version__" or (found.__doc__ or "").strip(), name


def test_names_are_sorted_and_said_once_and_type_checkers_know_them():
    typed = [
        alias.name
        for node in ast.walk(ast.parse(SOURCE))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spotlessnet.")
        for alias in node.names
    ]
    placed = [name for names in sn._PLACES.values() for name in names]
    assert len(placed) == len(set(placed))
    assert len(typed) == len(set(typed))
    registered = set(sn._registered())
    # What is registered needs no line of its own; type checkers may be told of it, but nobody else.
    assert not registered & set(placed)
    assert set(placed) <= set(typed) <= set(placed) | registered
    assert sn.__all__ == sorted({*placed, *registered, "__version__"})
    assert set(sn.__all__) <= set(dir(sn))


def test_a_star_import_brings_the_public_names():
    names: dict[str, object] = {}
    exec("from spotlessnet import *", names)
    assert set(sn.__all__) <= set(names)


def test_every_method_readout_and_bound_is_public():
    from spotlessnet.bounds import BOUNDS
    from spotlessnet.methods import SCRUBS
    from spotlessnet.readouts import READOUTS

    assert {kind.__name__ for kind in (*SCRUBS, *READOUTS.things(), *BOUNDS.things())} <= set(sn.__all__)


def test_a_name_that_is_not_there_is_named():
    with pytest.raises(AttributeError, match=r"spotlessnet has no name 'forgive'\."):
        sn.forgive  # noqa: B018


def test_no_public_name_is_also_a_module_so_nothing_depends_on_what_was_imported_first():
    inside = {module.name for module in pkgutil.iter_modules(sn.__path__)}
    assert not inside & set(sn.__all__)
    assert type(sn) is ModuleType  # no class swapped under `sys.modules`


def test_no_function_of_the_audit_bears_the_name_of_its_module():
    from spotlessnet import auditing

    for found in pkgutil.iter_modules(auditing.__path__, "spotlessnet.auditing."):
        module = importlib.import_module(found.name)
        assert not hasattr(module, found.name.rpartition(".")[2]), found.name


def test_importing_costs_less_than_a_second_beyond_torch_and_draws_no_pictures():
    code = (
        "import torch, time, sys; t = time.process_time(); import spotlessnet; "
        "print(time.process_time() - t, [m for m in ('sklearn', 'matplotlib', 'scipy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    seconds, modules = out.split(" ", 1)
    assert float(seconds) < 1.0
    assert modules.strip() == "[]"
