"""Settings tried at full size: one network, of another class and seed than those that are reported, and many requests.

    python benchmarks/large_trials.py --data DIR --out results/large-trials.jsonl --keep NETWORKS --model all-cnn

Original, tutors of two kinds, retrained networks and floors are trained once, as in `benchmarks/large.py`; a request
then takes a second at most. `benchmarks/large_page.py` makes a table of the rows.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.precision import matmul
from spotlessnet.report.rows import Row, append_rows
from spotlessnet.scrubs import Unlabel

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.large import (
    DEVICE,
    DISTANCE,
    RECIPE,
    WEIGHTS,
    Prepared,
    about,
    kept,
    looks,
    measured,
    prepare,
    requests,
    weights_of,
)

LABEL, SEED = 3, 100
ORIGINAL, GOAL = "original", "goal"
"""The goal: retraining, and for the activation distance another seed's."""

COSTS = {"a hundredth": "few", "a tenth": "many"}
KINDS = (2, 2), (3, 1)
"""Of tutors that take two trainings: parts and divisions."""


def trials() -> Iterator[tuple[str, dict[str, Any]]]:
    """Cohort, and what `Unlabel` is told."""
    for share, T, speed in ((0.5, 3, 0.3), (0.6, 3, 0.3), (0.75, 3, 0.3), (0.6, 3, 0.5), (0.5, 1, 0.3), (0.6, 1, 0.5)):
        yield "some", {"share": share, "temperature": T, "speed": speed, "own": 0}
    for share, T, speed, own in (
        (0.25, 3, 0.3, 0), (0.25, 3, 0.3, 0.25), (0.25, 3, 0.3, 0.5), (0.4, 3, 0.3, 0),
        (0.4, 3, 0.3, 0.25), (0.25, 3, 0.5, 0), (0.25, 1, 0.5, 0), (0.4, 1, 0.3, 0.25),
    ):  # fmt: skip
        yield "wrong", {"share": share, "temperature": T, "speed": speed, "own": own}
    for share, speed, lift in ((0.1, 0.3, 1.0), (0.1, 0.3, 0.0), (0.05, 0.3, 1.0), (0.2, 0.3, 1.0), (0.1, 0.2, 1.0)):
        yield "class", {"share": share, "speed": speed, "lift": lift, "own": 0}


def values(network: Trained, reference: Trained, split: Split) -> dict[str, float]:
    return {row.readout: row.value for row in looks("", "", 0, network, reference, split)}


def run(options: argparse.Namespace) -> None:
    splits = requests(options, DEVICE)
    with matmul("tf32"):
        for options.parts, options.divisions in KINDS:
            ready = prepare(options, splits, SEED, DEVICE)
            for cohort, split in splits.items():
                again = partial(weights_of, ready.start, split.retain, seed=SEED + 1000, order_of=split.whole)
                floor = ready.start.at(kept(options, SEED, f"floor-{cohort}", again)[1]["weights"])
                retrained = ready.retrained[cohort]
                goal = values(retrained, retrained, split) | {DISTANCE: values(floor, retrained, split)[DISTANCE]}
                keep_rows(options, cohort, ORIGINAL, values(ready.network, retrained, split))
                keep_rows(options, cohort, GOAL, goal)
            for cohort, settings in trials():
                for cost, rows in COSTS.items():
                    scrub = Unlabel(rows=getattr(options, rows), epochs=options.rounds, tutors=ready.tutors)
                    told = " ".join(f"{k}={v:g}" for k, v in settings.items())
                    name = f"{len(ready.tutors.weights)} tutors, {cost}, {told}"
                    tried(options, replace(scrub, **settings), name, ready, cohort, splits[cohort])


def keep_rows(
    options: argparse.Namespace, cohort: str, name: str, found: dict[str, float], took: float = math.nan
) -> None:
    """Write down what was read, and say so."""
    where, note = f"{options.model}, decay {options.decay:g}, {cohort}", about(options, DEVICE)
    append_rows(options.out, [Row(where, name, r, SEED, v, seconds=took, note=note) for r, v in found.items()])
    print(f"{where}: {name}: {found}", flush=True)


def tried(options: argparse.Namespace, scrub: Unlabel, name: str, ready: Prepared, cohort: str, split: Split) -> None:
    """One request, and what came of it."""
    try:
        took, found = measured(lambda: scrub(ready.network, split), DEVICE)
    except ArithmeticError as error:  # a setting that breaks is a result too
        print(f"{cohort}, {name}: {error}", flush=True)
        return
    now = values(ready.network.at(found.mean), ready.retrained[cohort], split)
    keep_rows(options, cohort, name, now, took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with image shards and weights")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=sorted(WEIGHTS), default="all-cnn")
    parser.add_argument("--decay", type=float, default=5e-4)
    parser.add_argument("--epochs", type=int, default=RECIPE.epochs)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=1200)
    parser.add_argument("--rows", type=int, help="the most training rows, for a rehearsal")
    parser.add_argument("--forget", type=int, default=100)
    parser.add_argument("--keep", type=Path, required=True, help="folder where trained networks are kept")
    parser.set_defaults(label=LABEL, memory=False, cohorts=["some", "wrong", "class"])
    run(parser.parse_args())


if __name__ == "__main__":
    main()
