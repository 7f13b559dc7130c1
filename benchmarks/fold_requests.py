"""A hundred requests in a row from fold models trained once: how far from retraining, beside one joint request.

    python benchmarks/fold_requests.py --data DIR --out results/tutored.jsonl --docs results/requests.md

The problem of `benchmarks/requests.py`. Two fold models are trained once, each on half of the rows; then ten
rows at a time must go, each request served by `OutOfFoldDistillation` from those rows, the fold models and a few
hundred retained rows.
"""

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from time import perf_counter

import torch

from spotlessnet.auditing.rows import Row, read_rows
from spotlessnet.core.cohorts import rows
from spotlessnet.core.files import write_whole
from spotlessnet.core.intervals import t_interval
from spotlessnet.core.progress import track
from spotlessnet.methods import OutOfFoldDistillation
from spotlessnet.precomputed.fold_models import train_fold_models
from spotlessnet.readouts import ActivationDistance, Error, MeanLoss
from spotlessnet.report.exports import as_json_lines
from spotlessnet.training.fit import fit

# Started as a script, its own folder comes first, and `requests` would be anyone's.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.labels import in_the_fields_words
from benchmarks.requests import (
    CALLED,
    DECAYS,
    DISTANCE,
    EACH,
    JOINT,
    KINDS,
    LOOK,
    METHODS,
    ONE_BY_ONE,
    WRONG,
    problem,
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
COLUMNS = (
    "requests",
    "original",
    "one by one",
    "joint",
    "another retrained",
    "ratio to joint",
    "D_r / test error",
)
WRITING, SERVING = "cost of training them, in trainings", "cost of a request, in trainings"
SHARE = "rows visited by a request, in trainings"
BEGIN, END = "<!-- written by benchmarks/fold_requests.py -->", "<!-- end of tutored -->"


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
            joint = original.at(
                replace(scrub, examples_per_epoch=max(EACH * i, SCRUB.examples_per_epoch or 0))(original, together).mean
            )
            retrained = fit(start, together.retain, seed=seed, order_of=train)
            other = fit(start, together.retain, seed=seed + 1000, order_of=train)
            networks = {"original": original, ONE_BY_ONE: network, JOINT: joint, "retrained": other}
            for method, one in networks.items():
                for readout in (ActivationDistance(retrained), MeanLoss("forget"), Error("retain"), Error("test")):
                    yield row(method, f"{readout.name} after {i}", float(readout(one, together)))
    assert original.recipe is not None  # given by the problem
    yield row(ONE_BY_ONE, CALLED, called)
    yield row(ONE_BY_ONE, SERVING, statistics.median(spent) / training, sum(spent))
    yield row(ONE_BY_ONE, SHARE, done.diagnostics["visits"] / (original.recipe.epochs * len(train)))


def table(all_rows: Sequence[Row]) -> str:
    """Markdown: the distance on the rows gone so far, errors and cost, with 95 % intervals over seeds."""

    def cell(kind: str, method: str, readout: str, scale: float = 1.0) -> str:
        return told([scale * value for value in values(kind, method, readout)])

    def values(kind: str, method: str, readout: str) -> list[float]:
        return [r.value for r in all_rows if (r.experiment, r.method, r.readout) == (kind, method, readout)]

    lines = []
    for kind in dict.fromkeys(row.experiment for row in all_rows):
        lines.append(f"**{kind[:1].upper()}{kind[1:]}, ten to a request, from fold models**\n")
        lines.append(
            "| requests | original | one by one | joint | another retrained | ratio to joint | D_r / test error |"
        )
        lines.append("|---:|---:|---:|---:|---:|---:|---:|")
        for i in LOOK:
            pair = [values(kind, method, f"{DISTANCE} after {i}") for method in (ONE_BY_ONE, JOINT)]
            ratio = told([a / b for a, b in zip(*pair, strict=True)])
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


def told(numbers: Sequence[float]) -> str:
    """A mean with half of its 95 % interval."""
    mean, low, high = t_interval(list(numbers))
    return f"{mean:.3g}" if low == high or len(numbers) == 1 else f"{mean:.3g} ± {(high - low) / 2:.2g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder that holds MNIST; digits without it")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", action="store_true", help="measure nothing: the table of the rows in --out")
    parser.add_argument("--docs", type=Path, help="the page whose table is renewed")
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    note = (
        f"python benchmarks/fold_requests.py {'--data DIR ' if given.data else ''}"
        f"--seeds {' '.join(map(str, given.seeds))}; "
        f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    all_rows: list[Row] = read_rows(given.out) if given.table else []
    for kind, weight_decay in () if given.table else product(given.kinds, DECAYS):
        for seed in given.seeds:
            all_rows += (replace(r, note=note) for r in measure(given.data, kind, weight_decay, seed))
            if given.out:
                write_whole(given.out, as_json_lines(all_rows).encode(), replace=True)
    made = table(all_rows)
    print(made)
    if given.docs:
        page = given.docs.read_text(encoding="utf-8")
        before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
        given.docs.write_text(f"{before}\n\n{made}\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
