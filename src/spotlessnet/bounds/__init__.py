"""Bounds: how many nats about the forgotten data an attacker can still get. Each is registered in `BOUNDS`.

Names are looked up in the registry, so that a new file is all that a new bound takes. What else the files hold is
imported from the file itself.
"""

from typing import TYPE_CHECKING, Any

from spotlessnet.core.bound import BOUNDS as BOUNDS

if TYPE_CHECKING:
    # For editors and type checkers, which do not run the registry. One that is not here is exported all the same.
    from spotlessnet.bounds.black_box import BlackBox as BlackBox
    from spotlessnet.bounds.white_box import WhiteBox as WhiteBox


def __getattr__(name: str) -> Any:
    """A bound by its name in Python."""
    return BOUNDS.export(name, __name__)


def __dir__() -> list[str]:
    """Public names, for completion."""
    return sorted({*globals(), *BOUNDS.exports()})
