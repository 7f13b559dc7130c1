"""The price of a request by count: rows that go through the network, and back, beside those of a training."""

from dataclasses import dataclass, replace

from spotlessnet.core.errors import SettingError
from spotlessnet.methods.out_of_fold.step_scale import ASKED, ASKED_BETWEEN, ASKED_RETAINED

THERE_AND_BACK = 3
"""Times that a row which is learnt from costs as much as one that is only read."""


@dataclass(frozen=True)
class Price:
    """Of a request that visits at most so many forgotten and so many retained rows in each of its rounds.

    **Arguments:**

    - `rounds`: of the request.
    - `forgotten`, `retained`: the rows that there are.
    - `readings`: of every forgotten row that is visited, before it is taught; a retained one is read once.
    - `others`: rows that are read however few are visited.
    - `lengths`: of the step that are tried on some of the rows that were visited.
    - `looks`: at fewer of them while visits go on.
    """

    rounds: int
    forgotten: int
    retained: int
    readings: int
    others: int
    lengths: int = 0
    looks: int = 0

    def of(self, rows: int) -> int:
        """In rows read, if `rows` of either kind are visited in a round."""
        counts = self.forgotten, self.retained
        visits = self.rounds * sum(min(rows, count) for count in counts)
        seen = [min(self.rounds * rows, count) for count in counts]
        tried = self.lengths * (min(ASKED, seen[0]) + min(ASKED_RETAINED, seen[1]))
        tried += self.looks * sum(min(ASKED_BETWEEN, count) for count in seen)
        return THERE_AND_BACK * visits + self.readings * seen[0] + seen[1] + self.others + tried

    def in_trainings(self, rows: int, epochs: int) -> float:
        """Beside a training of so many epochs on all rows."""
        return self.of(rows) / (THERE_AND_BACK * epochs * (self.forgotten + self.retained))

    def rounds_for(self, cost: float, epochs: int, rows: int) -> int:
        """The most rounds of so many rows of either kind that such a share of a training pays for; 0 for none."""
        low, high = 0, 1
        while replace(self, rounds=high).in_trainings(rows, epochs) <= cost:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            fits = replace(self, rounds=middle).in_trainings(rows, epochs) <= cost
            low, high = (middle, high) if fits else (low, middle)
        return low

    def rows_for(self, cost: float, epochs: int) -> int:
        """The most rows of a round that such a share of a training pays for."""
        low = 0
        high = max(self.forgotten, self.retained)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.in_trainings(middle, epochs) <= cost else (low, middle - 1)
        if not low:
            raise SettingError(
                f"A request must be able to visit a row of either kind in each of its {self.rounds} rounds, but a cost "
                f"of {cost:g} trainings does not pay for that: it takes {self.in_trainings(1, epochs):.2g}. Give more."
            )
        return low
