"""What is found by a name in text: `Registry`, things that declare themselves once, and `Variant`, kinds of a setting.

Registered things are found by lists, exports, tables and contract tests. A setting that is a value is one of several
kinds, each with settings of its own, `NTK(solver=CG(tolerance=1e-3))`; in text, on the command line or in a file, it
is flat: `solver=cg` beside `tolerance=1e-3`.
"""

import difflib
import importlib
import pkgutil
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Generic, TypeVar

from spotlessnet.core.errors import SettingError

T = TypeVar("T")
Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """What one registered thing says of itself.

    **Arguments:**

    - `name`: how the command calls it.
    - `thing`: the class or function.
    - `summary`: one sentence; the first line of its docstring unless said.
    - `paper`: who published it, and when; empty where there is no paper.
    - `needs`: what must be given for it to work, such as `"init"` or `"recipe"`.
    - `reads`: what it reads where that is given, such as `"statistics"`.
    - `guarantee`: what may be said of its answer; empty where nothing may.
    - `never_sees_forgotten`: of a method that is given the forgotten rows and never reads them.
    """

    name: str
    thing: T
    summary: str
    paper: str = ""
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    guarantee: str = ""
    never_sees_forgotten: bool = False

    @property
    def python_name(self) -> str:
        """The name of the class or function."""
        return str(getattr(self.thing, "__name__", self.name))

    @property
    def place(self) -> str:
        """The module and name under which Python finds it."""
        return f"{getattr(self.thing, '__module__', '')}.{self.python_name}"


class Registry(Generic[T]):
    """Everything of one kind. Files of `package` register what they hold; asking for it imports all of them first.

    >>> greetings: Registry[str] = Registry("greeting")
    >>> _ = greetings.register("hello", summary="Friendly.")("Hello!")
    >>> greetings.names(), greetings.find("hello")
    (('hello',), 'Hello!')
    >>> greetings.find("helo")
    Traceback (most recent call last):
    spotlessnet.core.errors.SettingError: There is no greeting 'helo'. Did you mean 'hello'?

    **Arguments:**

    - `kind`: what the things are called, in errors.
    - `package`: the package whose modules register them; none for a registry that is filled by hand.
    """

    def __init__(self, kind: str, package: str = "") -> None:
        self.kind = kind
        self.package = package
        self._entries: dict[str, Entry[T]] = {}
        self._is_complete = not package

    def register(
        self,
        name: str,
        *,
        paper: str = "",
        needs: Sequence[str] = (),
        reads: Sequence[str] = (),
        summary: str = "",
        guarantee: str = "",
        never_sees_forgotten: bool = False,
    ) -> Callable[[Thing], Thing]:
        """A decorator that enters a class or function and gives it back as it is."""

        def enter(thing: Thing) -> Thing:
            said = summary or first_line(thing)
            given = (tuple(needs), tuple(reads), guarantee, never_sees_forgotten)
            entry: Entry[Any] = Entry(name, thing, said, paper, *given)
            known = self._entries.get(name)
            # The same file may be run twice (a reload, a notebook cell); two files may not claim one name.
            if known is not None and known.place != entry.place:
                raise SettingError(
                    f"A {self.kind} must have a name of its own, but {name!r} is {known.place} already. "
                    f"Give {entry.place} another name."
                )
            self._entries[name] = entry
            return thing

        return enter

    def discover(self) -> None:
        """Import every module of the package, so that all of them have registered what they hold."""
        if self._is_complete:
            return
        # Set first: a module of the package may itself ask for the registry while it is imported.
        self._is_complete = True
        try:
            package = importlib.import_module(self.package)
            for module in pkgutil.walk_packages(package.__path__, f"{self.package}."):
                importlib.import_module(module.name)
        except BaseException:
            # A file that cannot be imported must fail again when asked again, not hide those after it.
            self._is_complete = False
            raise

    def entries(self) -> tuple[Entry[T], ...]:
        """Everything that is registered, by name: the order does not depend on which file was imported first."""
        self.discover()
        return tuple(self._entries[name] for name in sorted(self._entries))

    def names(self) -> tuple[str, ...]:
        """The command's names, sorted."""
        return tuple(entry.name for entry in self.entries())

    def things(self) -> tuple[T, ...]:
        """What is registered, in the order of the names."""
        return tuple(entry.thing for entry in self.entries())

    def exports(self) -> dict[str, T]:
        """What is registered by its name in Python."""
        return {entry.python_name: entry.thing for entry in self.entries()}

    def export(self, name: str, package: str) -> T:
        """What a package gives for a name that it does not hold itself: its `__getattr__`."""
        # What the import system asks a module for is not worth importing every file for.
        found = None if name.startswith("__") else self.exports().get(name)
        if found is None:
            raise AttributeError(f"{package} has no name {name!r}.")
        return found

    def entry(self, name: str) -> Entry[T]:
        """What one thing says of itself."""
        self.discover()
        if name not in self._entries:
            # The name that Python has for it, or capitals, are meant as well as a slip of the finger.
            near = [n for n, e in self._entries.items() if name.lower() in (n.lower(), e.python_name.lower())]
            near = near or difflib.get_close_matches(name, self._entries, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known are {', '.join(self.names())}."
            raise SettingError(f"There is no {self.kind} {name[:40]!r}. {hint}")
        return self._entries[name]

    def find(self, name: str) -> T:
        """A thing by its name; an error that suggests the nearest name where there is none."""
        return self.entry(name).thing

    def entry_of(self, thing: object) -> Entry[T]:
        """What a class or function says of itself."""
        self.discover()
        found = next((entry for entry in self._entries.values() if entry.thing is thing), None)
        if found is None:
            shown = getattr(thing, "__name__", repr(thing))
            raise SettingError(
                f"A {self.kind} must be registered to be found, but {shown[:60]} is not. Register it by its decorator."
            )
        return found

    def declared(self, thing: object) -> Entry[T] | None:
        """As `entry_of`, or `None` for a class of the caller's own that never declared itself; imports nothing."""
        return next((entry for entry in self._entries.values() if entry.thing is thing), None)

    def api_entries(self) -> str:
        """A line for each thing, by which the page of the API shows it."""
        return "\n".join(f"::: {entry.place}" for entry in self.entries())

    def __getitem__(self, name: str) -> T:
        return self.find(name)

    def __contains__(self, name: object) -> bool:
        self.discover()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.entries())


def first_line(thing: object) -> str:
    """The first line of a docstring as a terminal shows it: without code marks.

    Names such as $D_f$ stay as plain text, and a formula after a colon goes. One that is part of the sentence would
    leave a hole: such a thing declares a `summary` in words.
    """
    line = (getattr(thing, "__doc__", None) or "").strip().split("\n", 1)[0].replace("`", "")
    return re.sub(r": *\$[^$]{5,}\$", "", line).replace("$", "").strip()


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that Markdown shows.

    >>> print(markdown_table(("name", "cost"), [("`a`", "1%")]))
    | name | cost |
    |---|---:|
    | `a` | 1% |
    """
    # Numbers are read from the right.
    rules = ["---:" if column == "cost" else "---" for column in columns]
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join(rules)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def with_registered(markdown: str) -> str:
    """A page whose marks became what is registered.

    `<!-- registered: module.REGISTRY -->` is an entry of the API for each thing, `<!-- table: module.function -->` the
    table that the function makes.
    """

    def entries(found: re.Match[str]) -> str:
        return str(_named(found[1]).api_entries())

    def table(found: re.Match[str]) -> str:
        return str(_named(found[1])())

    return re.sub(r"<!-- table: ([\w.]+) -->", table, re.sub(r"<!-- registered: ([\w.]+) -->", entries, markdown))


def _named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def defaults(kind: type) -> dict[str, Any]:
    """The settings of a dataclass that need not be given, and what they are then."""
    return {field.name: field.default for field in fields(kind) if field.init and field.default is not MISSING}


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
