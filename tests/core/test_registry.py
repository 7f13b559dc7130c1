"""`Registry`: entered once, found by name, in an order that does not depend on imports."""

import re
import sys
from pathlib import Path

import pytest

from spotlessnet.core.bound import BOUNDS
from spotlessnet.core.errors import SettingError
from spotlessnet.core.readout import READOUTS
from spotlessnet.core.registry import Registry, first_line
from spotlessnet.core.scrub import METHODS


def greetings() -> Registry[type]:
    found: Registry[type] = Registry("greeting")

    @found.register("later", paper="Wave (2020)", needs=("time",), reads=("mood",), guarantee="none")
    class Later:
        """Say `goodbye` to $D_f$: $x = \\frac12 y$."""

    @found.register("hello", summary="Say hello.")
    class Hello:
        """Not this."""

    return found


def test_entries_keep_what_was_declared_and_come_by_name():
    registry = greetings()
    assert registry.names() == tuple(registry) == ("hello", "later")
    later = registry.entry("later")
    assert (later.paper, later.needs, later.reads, later.guarantee) == ("Wave (2020)", ("time",), ("mood",), "none")
    assert later.summary == "Say goodbye to D_f."
    assert registry.entry("hello").summary == "Say hello."
    assert set(registry.exports()) == {"Hello", "Later"}
    assert registry.entry_of(registry.find("hello")).name == "hello"
    assert "hello" in registry
    assert len(registry) == 2


def test_a_name_that_is_not_there_brings_the_nearest():
    with pytest.raises(SettingError, match=r"There is no greeting 'helo'\. Did you mean 'hello'\?"):
        greetings().find("helo")
    with pytest.raises(SettingError, match=r"There is no greeting 'zzz'\. Known are hello, later\."):
        greetings().find("zzz")
    with pytest.raises(SettingError, match="A greeting must be registered to be found, but int is not"):
        greetings().entry_of(int)


def test_two_things_may_not_claim_one_name():
    registry = greetings()
    with pytest.raises(SettingError, match="must have a name of its own, but 'hello' is"):
        registry.register("hello")(int)


def test_the_same_thing_may_be_entered_again():
    registry = greetings()
    hello = registry.find("hello")
    registry.register("hello", summary="Louder.")(hello)
    assert registry.entry("hello").summary == "Louder."


def test_asking_imports_every_file_of_the_package(tmp_path: Path, monkeypatch):
    """A file that nobody imports is found, in folders too, whatever was imported before."""
    package = tmp_path / "toy_package_of_greetings"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from spotlessnet.core.registry import Registry\nALL = Registry('g', __name__)"
    )
    (package / "inner" / "__init__.py").write_text("")
    for place, name in (("a.py", "zeta"), ("inner/b.py", "alpha")):
        (package / place).write_text(
            f"from toy_package_of_greetings import ALL\n@ALL.register({name!r})\ndef {name}(): ...\n"
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib

    registry = importlib.import_module("toy_package_of_greetings").ALL
    assert registry.names() == ("alpha", "zeta")
    for name in [name for name in sys.modules if name.startswith("toy_package_of_greetings")]:
        monkeypatch.delitem(sys.modules, name)


def test_no_summary_has_a_hole_or_a_formula():
    """`spotless list` cut formulas out of sentences: "ssd: where; no training."."""
    for registry in (METHODS, READOUTS, BOUNDS):
        for entry in registry.entries():
            said = entry.summary
            assert re.search(r"  | [;,.:]|\b(on|with|where)[;,.]| to so |^[a-z]", said) is None, (entry.name, said)
            assert re.search(r"[$\\{}`]", said) is None, (entry.name, said)


def test_first_line_of_something_without_a_docstring():
    assert first_line(object.__new__(type("Bare", (), {"__doc__": None}))) == ""
