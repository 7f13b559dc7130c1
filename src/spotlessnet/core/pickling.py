"""An unpickler that cannot be made to crash the interpreter or to keep it busy; what names mean is for its users."""

import pickle
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

DEEPEST = 32
"""How deep tuples may be nested: the hash of a tuple goes as deep as the tuple, on the stack of the interpreter."""

MOST_WORK = 2**22
"""Steps that one file may ask for, four seconds at most; 8,000 weights with the state of Adam stay below this."""

CALL, NAME, STORAGE = 8, 4, 40
"""What a call, a name and a storage cost in steps of a microsecond; a storage is read from an archive."""

Step = Callable[[Any], None]
"""What an unpickler does for one letter of a pickle."""

USUAL: dict[int, Step] = pickle._Unpickler.dispatch


def _counted(step: Step, cost: int = 1) -> Step:
    def counted(reader: "ShallowUnpickler") -> None:
        reader.charge(cost)
        step(reader)

    return counted


def _shallow(step: Step) -> Step:
    """Make a tuple, unless it would be nested deeper than `DEEPEST`."""

    def checked(reader: "ShallowUnpickler") -> None:
        reader.charge(1)
        step(reader)
        made = reader.stack[-1]
        depth = 1 + max((reader.tuples[id(one)][0] for one in made if id(one) in reader.tuples), default=0)
        if depth > DEEPEST:
            raise pickle.UnpicklingError("tuples nested deeper than any file needs")
        # Held, so that no other tuple gets its number.
        reader.tuples[id(made)] = depth, 1 + sum(map(reader.size, made)), made

    return checked


def _hashing(step: Step, keys: Callable[[Any], Iterable[Any]]) -> Step:
    """Pay for keys by their size: a tuple is hashed anew each time, and one of pairs of pairs asks for a year of it."""

    def checked(reader: "ShallowUnpickler") -> None:
        reader.charge(1 + sum(map(reader.size, keys(reader))))
        step(reader)

    return checked


def _calling(step: Step, arguments: int, cost: int = CALL) -> Step:
    """Pay for a call by the size of what it is given, which stands at this place of the stack."""

    def checked(reader: "ShallowUnpickler") -> None:
        reader.charge(cost + reader.size(reader.stack[arguments]))
        step(reader)

    return checked


def _refused(what: str) -> Step:
    def refuse(reader: "ShallowUnpickler") -> None:
        raise pickle.UnpicklingError(what)

    return refuse


SPECIAL: dict[bytes, Step] = {
    **{code: _shallow(USUAL[code[0]]) for code in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)},
    **{code: _counted(USUAL[code[0]], NAME) for code in (pickle.GLOBAL, pickle.STACK_GLOBAL)},
    **{code: _counted(USUAL[code[0]], CALL) for code in (pickle.INST, pickle.OBJ)},
    **{code: _calling(USUAL[code[0]], -1) for code in (pickle.REDUCE, pickle.NEWOBJ, pickle.BUILD)},
    pickle.BINPERSID: _calling(USUAL[pickle.BINPERSID[0]], -1, STORAGE),
    pickle.SETITEM: _hashing(USUAL[pickle.SETITEM[0]], lambda reader: reader.stack[-2:-1]),
    pickle.SETITEMS: _hashing(USUAL[pickle.SETITEMS[0]], lambda reader: reader.stack[::2]),
    pickle.DICT: _hashing(USUAL[pickle.DICT[0]], lambda reader: reader.stack[::2]),
    pickle.ADDITEMS: _hashing(USUAL[pickle.ADDITEMS[0]], lambda reader: reader.stack),
    # No file of weights or images has these, and each can ask for more than the file's own size in time or memory.
    pickle.FROZENSET: _refused("a set that cannot change"),
    pickle.BYTEARRAY8: _refused("an array of bytes"),
    pickle.LONG4: _refused("a number of more than 255 bytes"),
    pickle.NEWOBJ_EX: _refused("an object made with named arguments"),
}


# The version in Python, since the one in C sets aside as much memory as a file asks for.
class ShallowUnpickler(pickle._Unpickler):
    """Reads one pickle; `find_class` must be overridden, or every name that a file mentions is looked up and run."""

    stack: list[Any]
    metastack: list[list[Any]]
    dispatch: ClassVar[dict[int, Step]] = {
        **{code: _counted(step) for code, step in USUAL.items()},
        **{code[0]: step for code, step in SPECIAL.items()},
    }

    def __init__(self, file: Any, *, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        self.tuples: dict[int, tuple[int, int, Any]] = {}
        self.work = 0

    def charge(self, steps: int) -> None:
        """Count steps, and refuse once there are too many."""
        self.work += steps
        if self.work > MOST_WORK:
            raise pickle.UnpicklingError("a description that asks for more work than any network needs")

    def size(self, value: Any) -> int:
        """How many steps it takes to look at a value once; only tuples and text take more than one."""
        if isinstance(value, tuple):
            return self.tuples[id(value)][1] if id(value) in self.tuples else 1 + len(value)
        return 1 + (len(value) // 64 if isinstance(value, (str, bytes)) else 0)

    def find_class(self, module: str, name: str) -> Any:
        """Refuse: whoever builds on this says which names are harmless."""
        raise pickle.UnpicklingError(f"the name {module[:60]}.{name[:60]}, which could run code")
