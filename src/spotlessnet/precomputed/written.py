"""How statistics were written, so that they can be written anew in the same way."""

import json
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, get_args

from spotlessnet.core.errors import SettingError

Diagonal = Literal["exact", "monte carlo", "empirical"]

LARGEST = 2**31 - 1
"""No network keeps so many directions, and no data set has so many rows, that fit into memory."""


@dataclass(frozen=True)
class Written:
    """How statistics were written, so that they can be written anew in the same way (see `precompute`)."""

    rank: int = 200
    diagonal: Diagonal | None = "monte carlo"
    kronecker: bool = False
    sample: int | None = None
    coreset: int = 0
    seed: int = 0

    def check(self) -> None:
        """Raise unless statistics can be written so; what cannot be written must not be read either."""
        _check_whole("rank", self.rank, 0, LARGEST)
        _check_whole("coreset", self.coreset, 0, LARGEST)
        if self.sample is not None:
            _check_whole("sample", self.sample, 1, LARGEST)
        # What torch takes as a seed.
        _check_whole("seed", self.seed, -(2**63), 2**64 - 1)

    @staticmethod
    def from_text(text: str) -> "Written":
        """What a header says; anything else than `precompute` would take is a `ValueError`."""
        told = json.loads(text)
        if not isinstance(told, dict) or not told.keys() <= WHOLE | {"sample", "diagonal", "kronecker"}:
            raise ValueError("how it was written is told in other words than this version knows")
        # Before the object is made: types that callers are trusted with are not to be expected of a file.
        _check_kinds(told)
        found = Written(**told)
        found.check()
        return found


WHOLE = {"rank", "coreset", "seed"}


def _check_kinds(told: dict[str, Any]) -> None:
    wrong = [name for name in sorted(WHOLE & told.keys()) if type(told[name]) is not int]
    if type(told.get("sample")) not in (int, type(None)):
        wrong.append("sample")
    if told.get("diagonal") not in (None, *get_args(Diagonal)):
        wrong.append("diagonal")
    if type(told.get("kronecker", False)) is not bool:
        wrong.append("kronecker")
    if wrong:
        raise ValueError(f"its {wrong[0]!r} is of another kind than `precompute` takes")


def _check_whole(name: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        raise SettingError(
            f"precompute.{name} must be a whole number from {least} to {most}, but got {repr(value)[:40]}."
        )
