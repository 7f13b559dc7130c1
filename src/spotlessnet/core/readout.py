"""`Readout`: one look at one network."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from spotlessnet.core.deprecated import AcceptsOldNames
from spotlessnet.core.registry import Registry
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained

Ideal = Literal["low", "high", "as retrained"]


@dataclass(frozen=True)
class Reading:
    """A number, its interval if one look gives one, and whether it ran into a cap.

    >>> str(Reading(3.0)), str(Reading(100.0, censored=True)), str(Reading(0.5, 0.4, 0.6))
    ('3', '> 100', '0.5 [0.4, 0.6]')
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    censored: bool = False
    note: str = ""

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        text = f"> {self.value:.4g}" if self.censored else f"{self.value:.4g}"
        return text if math.isnan(self.low) else f"{text} [{self.low:.4g}, {self.high:.4g}]"


class Readout(metaclass=AcceptsOldNames):
    """A number that tells something about what a network remembers.

    To add one, write one file in `spotlessnet/readouts/` with one frozen dataclass, its `unit` and `ideal`, and
    `__call__`, and register it in `READOUTS`. A reference network, where one is needed, is a field.
    """

    unit: ClassVar[str]
    ideal: ClassVar[Ideal]

    @property
    def name(self) -> str:
        """What the column is called."""
        return type(self).__name__

    @abstractmethod
    def __call__(self, network: Trained, split: Split) -> Reading:
        """Look at one network."""


READOUTS: Registry[type[Readout]] = Registry("readout", "spotlessnet.readouts")
"""Every readout of one network. Registering one enters it into lists, exports, tables and contract tests."""

FIELDS = {"original": "original", "retrained network": "reference", "retrained networks": "references"}
"""Networks that a readout may need, and the field that takes each: a list of readouts can so be made from what they
declare."""

DATA = ("retained data", "test data")
"""Parts of the split that a readout may need beside the forgotten rows."""
