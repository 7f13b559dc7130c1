"""A hundred requests in a row from fold models trained once: how far from retraining, beside one joint request.

    python benchmarks/fold_requests.py --data DIR --out results/tutored.jsonl --docs results/requests.md

The problem of `benchmarks/requests.py`. Two fold models are trained once, each on half of the rows; then ten
rows at a time must go, each request served by `OutOfFoldDistillation` from those rows, the fold models and a few
hundred retained rows.
"""

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter

from spotlessnet.auditing.rows import Row
from spotlessnet.core.progress import track
from spotlessnet.core.split import rows
from spotlessnet.methods import OutOfFoldDistillation
from spotlessnet.precomputed.fold_models import train_fold_models
from spotlessnet.training.fit import fit

# Started as a script, its own folder comes first, and `requests` would be anyone's.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, Place, collect, mean_and_half, show, values_of
from benchmarks.labels import in_the_fields_words
from benchmarks.requests import (
    CALLED,
    DISTANCE,
    EACH,
    JOINT,
    LOOK,
    METHODS,
    ONE_BY_ONE,
    WRONG,
    beside_retraining,
    every_sequence,
    problem,
    sequence_flags,
)

SCRUB = OutOfFoldDistillation(
    examples_per_epoch=130,
    epochs=8,
    batch_size=48,
    lr_scale=0.2,
    momentum=0.9,
    forget_weight=0.1,
    temperature=1.0,
    label_boost=0.0,
)
"""As for a hundredth of a training, but gentler: on seed 10 a share of .25 drifted and .06 forgot little."""

FOLD_MODELS = "fold models"
COLUMNS = ("requests", "original", "one by one", "joint", "another retrained", "ratio to joint", "D_r / test error")
WRITING, SERVING = "cost of training them, in trainings", "cost of a request, in trainings"
SHARE = "rows visited by a request, in trainings"
PLACE = Place.of("fold_requests", "end of tutored")


def measure(folder: Path | None, kind: str, weight_decay: float, seed: int) -> Iterator[Row]:
    """One sequence: rows at the points looked at, and what everything took."""
    start, train, test, chosen = problem(folder, kind, weight_decay, EACH * LOOK[-1], seed)
    name = f"{kind}, decay {weight_decay:g}"
    clock = perf_counter()
    original = fit(start, train, seed=seed)
    training = perf_counter() - clock
    clock = perf_counter()
    scrub = replace(SCRUB, fold_models=train_fold_models(original, train, seed=seed))
    preparing = perf_counter() - clock

    def row(method: str, readout: str, value: float, seconds: float = float("nan")) -> Row:
        return Row(name, method, readout, seed, float(value), seconds=seconds)

    yield row(FOLD_MODELS, WRITING, preparing / training, preparing)
    network, spent, split, called = original, [], None, LOOK[-1] + 1
    for i in track(range(1, LOOK[-1] + 1), f"{name}, seed {seed}"):
        cohort = rows(chosen[(i - 1) * EACH : i * EACH], mislabelled=kind == WRONG)(train, test)
        split = cohort if split is None else replace(split.next_request(cohort.forget), request=cohort.request)
        clock = perf_counter()
        done = scrub.reseeded(i)(network, split)
        spent.append(perf_counter() - clock)
        network = network.at(done.mean)
        called = min(called, i) if done.diagnostics["retrain_now"] else called
        if i in LOOK:
            together = rows(chosen[: i * EACH], mislabelled=kind == WRONG)(train, test)
            at_once = replace(scrub, examples_per_epoch=max(EACH * i, SCRUB.examples_per_epoch or 0))
            joint = original.at(at_once(original, together).mean)
            networks = {"original": original, ONE_BY_ONE: network, JOINT: joint}
            for method, readout, value in beside_retraining(start, networks, together, seed):
                yield row(method, f"{readout} after {i}", value)
    assert original.recipe is not None  # given by the problem
    yield row(ONE_BY_ONE, CALLED, called)
    yield row(ONE_BY_ONE, SERVING, statistics.median(spent) / training, sum(spent))
    yield row(ONE_BY_ONE, SHARE, done.diagnostics["visits"] / (original.recipe.epochs * len(train)))


def table(all_rows: Sequence[Row]) -> str:
    """Markdown: the distance on the rows gone so far, errors and cost, with 95 % intervals over seeds."""
    values = partial(values_of, all_rows)

    def cell(kind: str, method: str, readout: str, scale: float = 1.0) -> str:
        return mean_and_half([scale * value for value in values(kind, method, readout)])

    lines = []
    for kind in dict.fromkeys(row.experiment for row in all_rows):
        lines.append(f"**{kind[:1].upper()}{kind[1:]}, ten to a request, from fold models**\n")
        lines.append(f"| {' | '.join(COLUMNS)} |")
        lines.append("|---:|---:|---:|---:|---:|---:|---:|")
        for i in LOOK:
            pair = [values(kind, method, f"{DISTANCE} after {i}") for method in (ONE_BY_ONE, JOINT)]
            ratio = mean_and_half([a / b for a, b in zip(*pair, strict=True)])
            cells = [cell(kind, method, f"{DISTANCE} after {i}") for method in METHODS]
            errors = [cell(kind, ONE_BY_ONE, f"error on {part} after {i}", 100) for part in ("retain", "test")]
            lines.append(f"| {i} | {' | '.join([*cells, ratio, ' / '.join(errors)])} % |")
        once, serving, visited = (
            cell(kind, method, readout)
            for method, readout in ((FOLD_MODELS, WRITING), (ONE_BY_ONE, SERVING), (ONE_BY_ONE, SHARE))
        )
        calls = [f"at {c:.0f}" if c <= LOOK[-1] else "never" for c in sorted(values(kind, ONE_BY_ONE, CALLED))]
        before = " / ".join(cell(kind, "original", f"error on {part} after 100", 100) for part in ("retain", "test"))
        lines.append(
            f"\nIt said *retrain now*, seed by seed: {', '.join(calls)}. The original errs on {before} %.\n"
            f"Training the fold models took {once} trainings; a request took {serving} of a training by the clock,\n"
            f"and visited {visited} of its rows.\n"
        )
    return in_the_fields_words("\n".join(lines))


def flags() -> Flags:
    return sequence_flags(__doc__)


def main() -> None:
    given = flags().parse_args()
    show(given, table(collect(given, "fold_requests", every_sequence(given, measure))), PLACE)


if __name__ == "__main__":
    main()
