"""An unpickler that cannot be made to crash the interpreter; what names mean is for those who build on it."""

import pickle
from collections.abc import Callable
from typing import Any, ClassVar

DEEPEST = 32
"""How deep tuples may be nested: the hash of a tuple goes as deep as the tuple, on the stack of the interpreter."""

Step = Callable[[Any], None]
"""What an unpickler does for one letter of a pickle."""

USUAL: dict[int, Step] = pickle._Unpickler.dispatch


def _shallow(step: Step) -> Step:
    """Make a tuple, unless it would be nested deeper than `DEEPEST`."""

    def checked(reader: "ShallowUnpickler") -> None:
        step(reader)
        made = reader.stack[-1]
        depth = 1 + max((reader.depths[id(one)][0] for one in made if id(one) in reader.depths), default=0)
        if depth > DEEPEST:
            raise pickle.UnpicklingError("tuples nested deeper than any file needs")
        reader.depths[id(made)] = depth, made  # held, so that no other tuple gets its number

    return checked


# The version in Python, since the one in C sets aside as much memory as a file asks for.
class ShallowUnpickler(pickle._Unpickler):
    """Reads one pickle; `find_class` must be overridden, or every name that a file mentions is looked up and run."""

    stack: list[Any]
    metastack: list[list[Any]]
    dispatch: ClassVar[dict[int, Step]] = {
        **USUAL,
        **{code[0]: _shallow(USUAL[code[0]]) for code in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)},
    }

    def __init__(self, file: Any, *, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        self.depths: dict[int, tuple[int, Any]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Refuse: whoever builds on this says which names are harmless."""
        raise pickle.UnpicklingError(f"the name {module[:60]}.{name[:60]}, which could run code")
