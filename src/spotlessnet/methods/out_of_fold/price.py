"""The price of a request by count: rows that go through the network, and back, beside those of a training."""

from dataclasses import dataclass, replace

import torch

from spotlessnet.core.errors import SettingError
from spotlessnet.core.split import Split
from spotlessnet.methods.out_of_fold.calibrated import read_held_out
from spotlessnet.methods.out_of_fold.class_bias import ASKED as BIAS_ASKED
from spotlessnet.methods.out_of_fold.drift import ASIDE
from spotlessnet.methods.out_of_fold.presets import Targets
from spotlessnet.methods.out_of_fold.steady import PROBED, ROW_READS
from spotlessnet.methods.out_of_fold.step_scale import ASKED, ASKED_BETWEEN, ASKED_RETAINED, LENGTHS
from spotlessnet.methods.out_of_fold.sweep import LOOKS
from spotlessnet.precomputed.fold_models import WATCHED, FoldModels
from spotlessnet.precomputed.others import WATCHED as STAND_INS

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
        visits = self.visits(rows)
        seen = [min(self.rounds * rows, count) for count in counts]
        tried = self.lengths * (min(ASKED, seen[0]) + min(ASKED_RETAINED, seen[1]))
        tried += self.looks * sum(min(ASKED_BETWEEN, count) for count in seen)
        return THERE_AND_BACK * visits + self.readings * seen[0] + seen[1] + self.others + tried

    def visits(self, rows: int) -> int:
        """Rows that are learnt from, each as often as it is."""
        return self.rounds * sum(min(rows, count) for count in (self.forgotten, self.retained))

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


def is_of_a_class(split: Split) -> bool:
    """Whether forgotten rows have a label that no retained one has."""
    return not bool(torch.isin(split.forget.labels().cpu(), split.retain.labels().cpu()).all())


def price_of(
    split: Split,
    rounds: int,
    fold_models: FoldModels | None,
    targets: Targets,
    *,
    second_opinion: bool,
    searched: bool,
    held: bool,
    swept: bool,
) -> Price:
    """What a request takes.

    **Arguments:**

    - `second_opinion`: whether the network's own answers are blended with those of fold models on mislabelled rows.
    - `searched`: whether lengths of the step are tried.
    - `held`: whether the rate is held below where it diverges.
    - `swept`: whether visits come in parts.
    """
    D_f, D_r, wrong = split.forget, split.retain, split.request.mislabelled
    readings = 1
    if fold_models is not None:
        readings = readings_of(fold_models, split, targets, second_opinion=second_opinion and wrong)
        others = min(WATCHED, len(D_r))
        if targets == "calibrated":
            others += read_held_out(fold_models, D_f, split.validation, ordinary=not wrong)
        if fold_models.after_requests:
            # What was said at first is read again, and stand-ins before and after.
            others += min(WATCHED, len(D_r)) + 2 * min(ASIDE + STAND_INS, len(D_r))
    else:
        others = 0 if wrong else len(split.validation or ())
    others += 2 * min(BIAS_ASKED, len(D_f)) * is_of_a_class(split)
    others += ROW_READS * min(PROBED, len(D_f) + len(D_r)) * held
    return Price(rounds, len(D_f), len(D_r), readings, others, LENGTHS if searched else 0, LOOKS * swept)


def readings_of(fold_models: FoldModels, split: Split, targets: Targets, *, second_opinion: bool) -> int:
    """How many networks read each forgotten row before it is taught."""
    if targets not in ("out of fold", "calibrated"):
        return len(fold_models.weights) + 1
    own = second_opinion and targets == "out of fold"
    return int(fold_models.unseen_or_all(split.forget).sum()) + int(own)
