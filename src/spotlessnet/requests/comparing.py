"""Compare methods on one request: refused before any work where it cannot be, then beside original and retrained."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spotlessnet.auditing.rows import Row
from spotlessnet.core.deprecated import methods_now
from spotlessnet.core.errors import NeedError, seconds_in_words
from spotlessnet.core.loss import Loss
from spotlessnet.core.progress import working
from spotlessnet.core.readout import Readout
from spotlessnet.core.scrub import METHODS, Scrub
from spotlessnet.requests.case import Case, inputs_of
from spotlessnet.requests.folder import Folder
from spotlessnet.requests.loading import LoadedRequest, open_case
from spotlessnet.requests.methods import named
from spotlessnet.requests.planning import Estimate, estimate

USUAL = "ntk,newton,fisher,finetune,gradient-ascent,random-labels"
"""The methods where none are named."""

ROWS = "rows.jsonl"


@dataclass(frozen=True, eq=False)
class Comparison:
    """What will be compared: every method by its name, on a request that was read and seen to fit.

    **Arguments:**

    - `costs`: of each method, in the same order.
    - `left_out`: why one of the usual methods is not among them.
    """

    opened: LoadedRequest
    scrubs: Mapping[str, Scrub]
    seeds: int
    costs: tuple[Estimate, ...] = ()
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"compare {', '.join(self.scrubs)} over {self.seeds} trainings; {self.opened.split.request}"

    def lines(self) -> list[str]:
        """The plan: what is compared and what not, and how long it takes."""
        pairs = 2 * self.costs[0].retraining
        usual, most = (
            self.seeds * (pairs + sum(times))
            for times in ([cost.seconds for cost in self.costs], [cost.at_most for cost in self.costs])
        )
        time = f"time    about {seconds_in_words(usual)}, at most {seconds_in_words(most)}, beside reading and looking"
        unknown = "time    not known: nobody has counted what one of the methods or one training takes"
        return [str(self), *self.left_out, time if math.isfinite(usual) else unknown]

    def run(self, *, workers: int = 1, resume: bool = False) -> list[Row]:
        """Train, scrub and read every network; rows are written to the case's folder as they come."""
        from spotlessnet.auditing.comparison import compare
        from spotlessnet.readouts import ActivationDistance, Error, MeanLoss
        from spotlessnet.readouts.parts import Part

        case, split = self.opened.case, self.opened.split
        case.need("out")
        assert case.out is not None
        folder = Folder(case.out, resume, case.private_days)
        folder.check(inputs_of(case))
        parts: tuple[Part, ...] = ("retain", "forget", "test") if split.test is not None else ("retain", "forget")
        looks: list[Readout] = [MeanLoss(on) for on in parts]
        if type(self.opened.trained.loss).mistakes is not Loss.mistakes:  # answers can be wrong
            looks = [*(Error(on) for on in parts), MeanLoss("forget")]
        readouts = {look.name: look for look in looks}
        # A function of the retrained network cannot be sent to another process.
        distance = {"activation distance": lambda context: ActivationDistance(context.retrained)}
        with_distance = workers == 1 and self._has_classes()
        with folder.claimed():
            (case.out / ROWS).touch(mode=0o600)  # what networks say of forgotten rows is for the owner alone
            return compare(
                self.opened.trained,
                split,
                scrubs=self.scrubs,
                readouts={**readouts, **(distance if with_distance else {})},
                seeds=range(self.seeds),
                out=case.out / ROWS,
                workers=workers,
            )

    def _has_classes(self) -> bool:
        """Whether answers are probabilities, which can lie apart."""
        from spotlessnet.readouts.parts import decisions

        try:
            next(decisions(self.opened.trained, self.opened.split.forget.select([0])))
        except NeedError:
            return False
        return True


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
    with working("reading and checking"):
        opened = open_case(replace(case, method=None))
        scrubs, left_out = _fitting(scrubs, opened, may_leave_out=methods == USUAL)
        costs = tuple(estimate(opened.trained, opened.split, one, case.memory_limit) for one in scrubs.values())
    for cost in costs:
        cost.check_memory()
    return Comparison(opened, scrubs, seeds, costs, left_out)


def _fitting(
    scrubs: Mapping[str, Scrub], opened: LoadedRequest, *, may_leave_out: bool
) -> tuple[dict[str, Scrub], tuple[str, ...]]:
    """The methods that this network allows, and why others are left out; one that was named is refused instead."""
    fitting, left_out = {}, []
    for name, scrub in scrubs.items():
        scrub.check_enough_is_kept(opened.split)
        try:
            scrub.check_needs(opened.trained, opened.split)
        except NeedError:
            if not may_leave_out:
                raise
            left_out.append(f"without {name}: it needs classes, and this network has none")
        else:
            fitting[name] = scrub
    return fitting, tuple(left_out)


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
