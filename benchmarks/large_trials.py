"""Settings tried at full size: networks of another class and other seeds than are reported, and many requests.

    python benchmarks/large_trials.py --data DIR --out results/large-trials.jsonl --keep NETWORKS --model all-cnn

Originals, fold models and retrained networks are trained once, as in `benchmarks/large.py`; a request then takes
seconds. Once more with `--kind 1` for the other kind of fold models. `benchmarks/large_page.py` makes a table of the
rows.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from spotlessnet.auditing.rows import Row, append_rows
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods import OutOfFoldDistillation
from spotlessnet.operators.precision import matmul

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, device_of
from benchmarks.large import (
    COHORTS,
    DISTANCE,
    RECIPE,
    WEIGHTS,
    Prepared,
    about,
    looks,
    measured,
    prepare,
    requests,
)

LABEL, SEEDS = 3, [100, 101, 102]
ORIGINAL, GOAL = "original", "goal"
"""The goal: retraining, and for the activation distance the next seed's."""

COSTS = {"a hundredth": 0.01, "a tenth": 0.1}
KINDS = (2, 2), (3, 1)
"""Of fold models that take two trainings: parts and divisions."""


def trials() -> Iterator[tuple[str, dict[str, Any]]]:
    """Cohort, and what `OutOfFoldDistillation` is told."""
    for epochs, share, stretch in ((10, 0.5, 1), (10, 0.5, 1.5), (14, 0.5, 1.5), (20, 0.5, 1.5), (10, 0.65, 1.5)):
        yield "some", {"epochs": epochs, "forget_weight": share, "max_step_scale": stretch}
    for epochs, share, own, stretch in (
        (10, 0.25, 0.25, 1), (10, 0.25, 0.25, 1.5), (20, 0.25, 0.25, 1.5), (10, 0.4, 0.25, 1.5), (10, 0.25, 0.4, 1.5)
    ):  # fmt: skip
        yield "wrong", {"epochs": epochs, "forget_weight": share, "self_weight": own, "max_step_scale": stretch}
    for epochs, share, lift in ((10, 0.1, 1), (10, 0.1, 1.5), (10, 0.1, 2), (10, 0.06, 1.5)):
        yield "class", {"epochs": epochs, "forget_weight": share, "label_boost": lift}


def values(network: Trained, reference: Trained, split: Split) -> dict[str, float]:
    return {row.readout: row.value for row in looks("", "", 0, network, reference, split)}


def run(options: argparse.Namespace) -> None:
    """All seeds. The floor of each is the next one's retrained network, and the first's for the last."""
    splits = requests(options, device_of(options))
    with matmul("tf32"):
        seen = [prepare(options, splits, seed, device_of(options)) for seed in options.seeds]
        for ready, floor in zip(seen, [*seen[1:], seen[0]], strict=True):
            one_seed(options, splits, ready, floor)


def one_seed(options: argparse.Namespace, splits: dict[str, Split], ready: Prepared, floor: Prepared) -> None:
    """Every trial with the networks of one seed."""
    if not options.kind:
        for cohort in options.cohorts:
            split, retrained, other = splits[cohort], ready.retrained[cohort], floor.retrained[cohort]
            goal = values(retrained, retrained, split) | {DISTANCE: values(other, retrained, split)[DISTANCE]}
            keep_rows(options, ready.seed, cohort, ORIGINAL, values(ready.network, retrained, split))
            keep_rows(options, ready.seed, cohort, GOAL, goal)
    for (cohort, settings), (cost, share) in product(trials(), COSTS.items()):
        if cohort not in options.cohorts:
            continue
        told = " ".join(f"{k}={v:g}" for k, v in settings.items())
        name = f"{len(ready.fold_models.weights)} fold models, {cost}, {told}"
        scrub = replace(OutOfFoldDistillation(compute_budget=share, fold_models=ready.fold_models), **settings)
        tried(options, scrub, name, ready, cohort, splits[cohort])


def keep_rows(
    options: argparse.Namespace, seed: int, cohort: str, name: str, found: dict[str, float], took: float = math.nan
) -> None:
    """Write down what was read, and say so."""
    where = f"{options.model}, decay {options.weight_decay:g}, {cohort}"
    note = about(options, device_of(options)).rpartition(";")[0]
    append_rows(options.out, [Row(where, name, r, seed, v, seconds=took, note=note) for r, v in found.items()])
    print(f"{where}: {name}: {found}", flush=True)


def tried(
    options: argparse.Namespace, scrub: OutOfFoldDistillation, name: str, ready: Prepared, cohort: str, split: Split
) -> None:
    """One request, and what came of it."""
    try:
        took, found = measured(lambda: scrub(ready.network, split), device_of(options))
    except ArithmeticError as error:  # a setting that breaks is a result too
        print(f"{cohort}, {name}: {error}", flush=True)
        return
    now = values(ready.network.at(found.mean), ready.retrained[cohort], split)
    keep_rows(options, ready.seed, cohort, name, now, took)


def flags() -> Flags:
    parser = Flags(__doc__).data("folder with image shards and weights", required=True).out(required=True)
    parser.seeds(SEEDS).device()
    parser.add_argument("--model", choices=sorted(WEIGHTS), default="all-cnn")
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--epochs", type=int, default=RECIPE.epochs)
    parser.add_argument("--cohorts", nargs="+", choices=COHORTS, default=list(COHORTS))
    parser.add_argument(
        "--kind", type=int, choices=range(len(KINDS)), default=0, help="of fold models: halves or thirds"
    )
    parser.add_argument("--rows", type=int, help="the most training rows, for a rehearsal")
    parser.add_argument("--forget", type=int, default=100)
    parser.add_argument("--keep", type=Path, required=True, help="folder where trained networks are kept")
    parser.set_defaults(label=LABEL, statistics=False, few=None, many=None, rounds=None)
    return parser


def main() -> None:
    options = flags().parse_args()
    options.folds, options.repeats = KINDS[options.kind]
    run(options)


if __name__ == "__main__":
    main()
