"""Compare methods on one request: refused before any work where it cannot be, then beside original and retrained."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spotlessnet.auditing.rows import Row
from spotlessnet.core.deprecated import methods_now
from spotlessnet.core.errors import NeedError
from spotlessnet.core.scrub import METHODS, Scrub
from spotlessnet.requests.case import Case, inputs_of
from spotlessnet.requests.folder import Folder
from spotlessnet.requests.loading import LoadedRequest, open_case
from spotlessnet.requests.methods import named

USUAL = "ntk,newton,fisher,finetune,gradient-ascent,random-labels"
"""The methods where none are named."""

ROWS = "rows.jsonl"


@dataclass(frozen=True, eq=False)
class Comparison:
    """What will be compared: every method by its name, on a request that was read and seen to fit."""

    opened: LoadedRequest
    scrubs: Mapping[str, Scrub]
    seeds: int

    def __str__(self) -> str:
        return f"compare {', '.join(self.scrubs)} over {self.seeds} trainings; {self.opened.split.request}"

    def run(self, *, workers: int = 1, resume: bool = False) -> list[Row]:
        """Train, scrub and read every network; rows are written to the case's folder as they come."""
        from spotlessnet.auditing.comparison import compare
        from spotlessnet.readouts import ActivationDistance, Error, MeanLoss

        case, split = self.opened.case, self.opened.split
        case.need("out")
        assert case.out is not None
        folder = Folder(case.out, resume, case.private_days)
        folder.check(inputs_of(case))
        looks = [Error("retain"), Error("forget"), MeanLoss("forget")]
        readouts = {look.name: look for look in looks + ([Error("test")] if split.test is not None else [])}
        # A function of the retrained network cannot be sent to another process.
        distance = {"activation distance": lambda context: ActivationDistance(context.retrained)}
        with folder.claimed():
            (case.out / ROWS).touch(mode=0o600)  # what networks say of forgotten rows is for the owner alone
            return compare(
                self.opened.trained,
                split,
                scrubs=self.scrubs,
                readouts={**readouts, **(distance if workers == 1 else {})},
                seeds=range(self.seeds),
                out=case.out / ROWS,
                workers=workers,
            )


def comparison_of(case: Case, methods: str = USUAL, *, seeds: int = 3) -> Comparison:
    """What a case asks for, refused here where it cannot be done.

    **Arguments:**

    - `methods`: names with commas between; a + joins several into one. Settings of the case say for which method they
      are: `ntk.damping`.
    - `seeds`: trainings to look at.
    """
    names = [name.strip() for name in methods_now(methods).split(",")]
    scrubs = {name: named(name, _own(case.settings or {}, name)) for name in names}
    if not case.knows_history:
        raise NeedError("Comparing needs --init, --epochs and --lr, so that networks can be trained again.")
    return Comparison(open_case(replace(case, method=None)), scrubs, seeds)


def broken_down(rows: Sequence[Row]) -> dict[tuple[str, str], int]:
    """By method and reason, how many trainings it has no value for: means over the others do not show them."""
    seeds: dict[tuple[str, str], set[int]] = {}
    for row in rows:
        if math.isnan(row.value):
            seeds.setdefault((row.method, row.note), set()).add(row.seed)
    return {found: len(each) for found, each in seeds.items()}


def _own(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings that are for one of the methods; they must say which: `ntk.damping=0.1`."""
    strange = [key for key in settings if key.rpartition(".")[0] not in METHODS]
    if strange:
        raise NeedError(f"Comparing needs settings that say for which method, such as ntk.{strange[0]}=...")
    parts = [part.strip() for part in name.split("+")]
    return {key: value for key, value in settings.items() if key.rpartition(".")[0] in parts}
