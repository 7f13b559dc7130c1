"""Everything that can go wrong, as one tree; each class is also the builtin it resembles.

    SpotlessError
    ├── SettingError     a setting out of range                          exit code 2
    │   └── NeedError    the method needs something that was not given   exit code 2
    ├── DataError        a file, a list of ids or a row that is wrong    exit code 3
    │   └── MismatchError  two things that do not fit each other         exit code 3
    ├── ResourceError    disk, memory, permission                        exit code 4
    ├── NumericsError    not finite, not definite                        exit code 5
    │   └── SolveError   a linear system that did not come out           exit code 5
    ├── IntegrityError   a digest that does not match                    exit code 7
    ├── WornError        what was kept no longer serves: retrain now     exit code 8
    └── DamageError      a network that forgot far more than was asked   exit code 9

A message says what must hold, what came, and what to do; tests check its text.
"""

import math
from typing import Any, ClassVar

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class SpotlessError(Exception):
    """The root of every error that this package raises on purpose."""

    exit_code: ClassVar[int] = 70


class SettingError(SpotlessError, ValueError):
    """A setting is out of its range."""

    exit_code = 2


class NeedError(SettingError):
    """A method needs something that the caller did not give."""


class DataError(SpotlessError, ValueError):
    """A file, an id list or a row is not what it should be."""

    exit_code = 3


class MismatchError(DataError):
    """Two things that belong together do not fit."""


class ResourceError(SpotlessError, OSError):
    """Disk, memory or permission."""

    exit_code = 4


class NumericsError(SpotlessError, ArithmeticError):
    """A number that is not finite, or a matrix that is not what it must be."""

    exit_code = 5


class SolveError(NumericsError):
    """A linear system that did not come out."""


class IntegrityError(SpotlessError, ValueError):
    """A digest that does not match."""

    exit_code = 7


class WornError(SpotlessError, RuntimeError):
    """A request is refused, since what was kept for it no longer serves: it is time to retrain."""

    exit_code = 8


def shown(value: object) -> str:
    """A value as an error shows it: its first sixty signs, also where it is a number of thousands of digits."""
    try:
        return str(value)[:60]
    except (ValueError, RecursionError):  # Python refuses to spell such a number out
        return "a value too long to show"


def count_of(number: int, what: str) -> str:
    """So many of something, in words.

    >>> count_of(1, "row"), count_of(25, "row")
    ('1 row', '25 rows')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except (OverflowError, TypeError):  # a whole number beyond all floating-point ones, or no number at all
        return False


class DamageError(SpotlessError, ValueError):
    """A scrubbed network that answers rows which stay much worse than before."""

    exit_code = 9


def check_positive(name: str, value: float, hint: str = "") -> None:
    """Raise unless `value` is a finite number above zero."""
    if not (_is_finite(value) and value > 0):
        raise SettingError(f"`{name}` must be positive, but got {shown(value)}. {hint}".rstrip())


def check_not_negative(name: str, value: float, hint: str = "") -> None:
    """Raise unless `value` is a finite number, zero or above."""
    if not (_is_finite(value) and value >= 0):
        raise SettingError(f"`{name}` must be zero or positive, but got {shown(value)}. {hint}".rstrip())


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise unless `value` is one of `choices`."""
    if value not in choices:
        allowed = ", ".join(repr(choice) for choice in choices)
        raise SettingError(f"`{name}` must be one of {allowed}, but got {value!r}.")


def check_finite(name: str, value: Any, hint: str = "") -> None:
    """Raise if the tensor `value` holds NaN or infinity."""
    # Not typed as one: everything imports this file, and a desk's own process does without torch.
    bad = int((~value.isfinite()).sum())
    if bad:
        raise NumericsError(
            f"{name} must be finite, but {bad} of {value.numel()} entries are NaN or infinite. {hint}".rstrip()
        )


def seconds_in_words(value: float) -> str:
    """For people.

    >>> seconds_in_words(0.123), seconds_in_words(61), seconds_in_words(600), seconds_in_words(9000)
    ('0.12 s', '61 s', '10 min', '2.5 h')
    """
    if value < 1:
        return f"{value:.2g} s"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def size_in_words(bytes: float) -> str:
    """For people.

    >>> size_in_words(24_000), size_in_words(3 * 2**30), size_in_words(float("inf"))
    ('23 KiB', '3.0 GiB', 'unknown')
    """
    if not math.isfinite(bytes):
        return "unknown"
    power = next((power for power in range(len(UNITS)) if bytes < 1024 ** (power + 1)), len(UNITS) - 1)
    value = bytes / 1024**power
    return f"{value:.0f} {UNITS[power]}" if value >= 10 or not power else f"{value:.1f} {UNITS[power]}"
