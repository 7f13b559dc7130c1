"""`Planted`: one error, where it goes and who must notice."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Planted:
    """One wrong line.

    - `name`: what is wrong.
    - `file`: under `src/spotlessnet/`.
    - `right`, `wrong`: text that stands there exactly once, and what is put in its place.
    - `test`: under `tests/`; for an equation, as `docs/papers.md` names it.
    """

    name: str
    file: str
    right: str
    wrong: str
    test: str
