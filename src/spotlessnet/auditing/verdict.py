"""`Check` and `Verdict`: what an audit found, as plain values that every page, file and command reads."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex, overload

from spotlessnet.core.deprecated import AcceptsOldNames, OldName
from spotlessnet.core.errors import MismatchError, SettingError
from spotlessnet.core.intervals import clopper_pearson

Outcome = Literal["forgotten", "not forgotten", "inconclusive", "never saw the rows"]
State = Literal["same", "different", "unclear"]

NEVER_SAW: Outcome = "never saw the rows"
"""Of methods that train on the other rows alone, where the rows leave no trace by which an audit could tell."""

SHARE = "remembered share"
FORGET_ERROR = "error on forgotten rows"
ROWS = "margins row by row"
TEST_ERROR = "error on test rows"
RETAIN_ERROR = "error on retained rows"
TUNED = "tuned to look retrained"
FILE = "the delivered network"
FILE_TEST_ERROR = "error on test rows, the delivered network"
FILE_RETAIN_ERROR = "error on retained rows, the delivered network"
ATTACK = "attack, area under the curve"
FOUND = {0.001: "attack, found at 0.1 % false alarms", 0.01: "attack, found at 1 % false alarms"}
"""The checks, as a report addresses them."""

OTHERWISE = "trained differently, but remembers no more"
"""The note of a check that matched controls excuse."""


@dataclass(frozen=True)
class Check:
    """One comparison with the retrained networks.

    **Arguments:**

    - `state`: `same` where the interval lies inside the margin; otherwise `different` where it excludes zero, and
      `unclear` where it does not.
    - `value`, `low`, `high`, `margin`: the difference, its limits, and how large it may be.
    - `guards`: guards utility; a failure makes the verdict inconclusive, for damage is not forgetting.
    """

    name: str
    state: State
    value: float
    low: float
    high: float
    margin: float
    note: str = ""
    guards: bool = False

    def __str__(self) -> str:
        # A check without limits is a permutation test: its note has the p-value.
        limits = "" if math.isnan(self.low) else f" [{self.low:.3g}, {self.high:.3g}], may be {self.margin:.3g}"
        return f"{self.name}: {self.state}, {self.value:.3g}{limits}{'; ' if self.note else ''}{self.note}"

    def record(self) -> dict[str, Any]:
        """The check for a receipt, for `verdict.json` and for the model card: what was compared, and how it came out.

        No figure: they outlast the purge, and even two digits told the label of a single forgotten row.
        """
        return {"name": self.name, "state": self.state}

    def figures(self) -> dict[str, Any]:
        """The check with all digits, for the folder `private`; `guards` is a rule of the audit, not a figure."""
        return {name: value for name, value in vars(self).items() if name != "guards"}


class Checks(tuple[Check, ...]):
    """Checks in the order in which they are told, each also found by its name.

    >>> share = Check("remembered share", "same", 0.03, -0.05, 0.11, 0.2)
    >>> Checks([share])["remembered share"].state
    'same'
    """

    def __new__(cls, checks: Iterable[Check] = ()) -> "Checks":
        made = super().__new__(cls, checks)
        if len(set(made.names)) < len(made):
            raise MismatchError(f"Every check must have a name of its own, but got {', '.join(made.names)}.")
        return made

    @property
    def names(self) -> tuple[str, ...]:
        """What was checked."""
        return tuple(check.name for check in self)

    @overload
    def __getitem__(self, key: str | SupportsIndex) -> Check: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Check, ...]: ...

    def __getitem__(self, key: str | SupportsIndex | slice) -> Check | tuple[Check, ...]:
        if not isinstance(key, str):
            return super().__getitem__(key)
        found = self.get(key)
        if found is None:
            raise SettingError(
                f"There is no check {key!r} in this audit. It has {', '.join(self.names) or 'none'}; what readouts "
                "gave is in `report.rows`."
            )
        return found

    def get(self, name: str) -> Check | None:
        """The check of this name, or nothing."""
        return next((check for check in self if check.name == name), None)


NONE = Checks()


@dataclass(frozen=True)
class CouldHide:
    """What an audit would not have noticed.

    **Arguments:**

    - `single`, `tried`: single rows that could have been kept unnoticed, of so many that were tried.
    - `share`: the largest share of the rows that could have been, in any of its tries; 0 if every one was noticed.
    - `rows`: all forgotten rows; those that were tried are drawn from them.
    - `halves`: of the halves of all rows that were tried, how many could have been kept.
    """

    single: int
    tried: int
    share: float
    rows: int
    halves: float = 0.0

    @property
    def at_most(self) -> float:
        """The share of single rows that could have been kept: an upper limit at 95 %, exact where all were tried."""
        if self.tried >= self.rows:
            return self.single / max(1, self.tried)
        return clopper_pearson(self.single, self.tried, 0.9).high  # one-sided

    @property
    def half(self) -> bool:
        """Whether most halves of the rows could have been kept: then nothing was shown."""
        return self.halves > 0.5

    def __str__(self) -> str:
        noticed = f"{self.tried - self.single} of {self.tried} trials"
        text = f"Had a single forgotten example been kept, this audit would have noticed in {noticed}"
        if self.tried < self.rows:
            text = f"{text}, so it would miss at most {100 * self.at_most:.0f} % of all {self.rows} (95 % confidence)"
        if not self.share:
            return f"{text}. Had a tenth of them been kept together, it would have noticed in every trial."
        return f"{text}. Had up to {100 * self.share:.0f} % of them been kept together, it could have missed that."


@dataclass(frozen=True)
class Verdict(metaclass=AcceptsOldNames):
    """The outcome, why, and how finely it was looked.

    **Arguments:**

    - `resolution`: half the width of the interval of the remembered share: smaller remains cannot be seen.
    - `seeds`: pairs of trainings behind it.
    - `oracle`, `power`: outcomes for held-out retrained networks, which must pass, and for the untouched original,
      which must be caught.
    - `checks`: of the candidate, in order and by name: `verdict.checks["remembered share"]`.
    - `could_hide`: what would not have been noticed; of "forgotten" alone.
    - `references`: networks without the rows, where originals came from a bank; `seeds` are then those originals.
    """

    outcome: Outcome
    reason: str
    resolution: float
    seeds: int
    oracle: Outcome
    power: Outcome
    checks: Checks = NONE
    could_hide: CouldHide | None = None
    references: int | None = None

    word = OldName("outcome")
    findings = OldName("checks")

    def __str__(self) -> str:
        known = f" (resolution {self.resolution:.2g})" if math.isfinite(self.resolution) else ""
        head = f"{self.outcome}: {self.reason}{known}"
        return "\n".join([head, *(f"  {check}" for check in self.checks)])
