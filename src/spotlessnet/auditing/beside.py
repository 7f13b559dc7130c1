"""`Beside`: forgotten rows of some networks beside those of retrained ones, as one check and as an excuse of others."""

import math
from dataclasses import dataclass, replace

from spotlessnet.auditing.exchanging import StandingOut
from spotlessnet.auditing.verdict import OTHERWISE, ROWS, Check, State


@dataclass(frozen=True)
class Beside:
    """What was found.

    **Arguments:**

    - `found`: both tests; nothing where there were no controls.
    - `p`: of both together, the larger one; of the networks alone without controls.
    - `differs`: the networks cannot be exchanged with retrained ones.
    - `state`: whether the forgotten rows stand out.
    """

    found: StandingOut | None
    p: float
    differs: bool
    state: State

    @property
    def stands_out(self) -> bool:
        """Surely so."""
        return self.state == "different"

    def check(self) -> Check:
        """As one check: its value is the p-value."""
        note = "networks alone, without controls"
        if self.found is not None:
            note = f"p = {self.found.p_networks:.2g} over networks, {self.found.p_rows:.2g} over rows and controls"
            if self.differs and self.state == "same":
                note = f"{note}; {OTHERWISE}"
        return Check(ROWS, self.state, self.p, math.nan, math.nan, math.nan, note)

    def excuse(self, error: Check) -> Check:
        """An error on forgotten rows: memory only if rows stand out, for it is a coarser look at the same answers."""
        if error.state == "same" or self.state == "different":
            return error
        if self.state == "unclear":
            return replace(error, state="unclear")
        note = OTHERWISE if self.differs else "within what single rows do by chance"
        return replace(error, state="same", note=f"{error.note}: {note}" if error.note else note)
