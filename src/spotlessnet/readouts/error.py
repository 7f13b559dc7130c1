"""Error: the share of rows that a network gets wrong."""

from dataclasses import dataclass
from typing import ClassVar

from spotlessnet.core.answers import mistakes
from spotlessnet.core.errors import check_choice
from spotlessnet.core.intervals import clopper_pearson
from spotlessnet.core.readout import READOUTS, Ideal, Reading, Readout
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.parts import PARTS, Part, part


@READOUTS.register(
    "error",
    paper="Golatkar, Achille and Soatto (2020), Eternal Sunshine of the Spotless Net: section 5",
)
@dataclass(frozen=True)
class Error(Readout):
    """Share of wrong answers on the retained, forgotten or test rows.

    Test rows are a sample, so their error comes with exact limits; the others are all rows there are.

    **Arguments:**

    - `on`: which rows.
    """

    unit: ClassVar[str] = "share of rows"
    ideal: ClassVar[Ideal] = "as retrained"

    on: Part = "forget"

    def __post_init__(self) -> None:
        check_choice("Error.on", self.on, PARTS)

    @property
    def name(self) -> str:
        return f"error on {self.on}"

    def __call__(self, network: Trained, split: Split) -> Reading:
        data = part(split, self.on)
        found = mistakes(network, data)
        value = float(found.mean())
        counts = bool(((found == 0) | (found == 1)).all())
        if self.on != "test" or not counts:
            return Reading(value)
        _, low, high = clopper_pearson(int(found.sum()), len(found))
        return Reading(value, low, high)
