"""A hundred requests in a row from one memory: how far from retraining, beside one joint request, and at what cost.

    python benchmarks/requests.py --data DIR --out results/requests.jsonl --docs results/requests.md

A network with one hidden layer, pre-trained on other rows, is fine-tuned on MNIST (DIR holds it; without `--data` on
scikit-learn's digits). A memory is written once. Then ten rows at a time must go, ordinary ones or mislabelled ones,
each request served from those rows and the memory, which the retained rows then write anew. At some points the network
is compared with one retrained without all rows that have gone so far, and with what one joint request for them gives.
"""

import argparse
import math
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
from spotlessnet.core.data import Data
from spotlessnet.core.files import write_whole
from spotlessnet.core.intervals import t_interval
from spotlessnet.core.progress import track
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.datasets import load
from spotlessnet.demo import mislabelled
from spotlessnet.methods import NTK
from spotlessnet.models.mlp import MLP
from spotlessnet.precomputed.after_request import after_request
from spotlessnet.precomputed.precompute import precompute
from spotlessnet.readouts import ActivationDistance, Error, MeanLoss
from spotlessnet.report.exports import as_json_lines
from spotlessnet.training.fit import fit

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.labels import in_the_fields_words

ORDINARY, WRONG = "ordinary rows", "mislabelled rows"
KINDS = (ORDINARY, WRONG)
EACH = 10
LOOK = (1, 10, 25, 50, 75, 100)
RECIPE = Recipe(epochs=10, lr=0.05, batch_size=128, schedule="cosine")
DECAYS = (1e-2, 5e-4)
"""Toward the start: the linear picture holds well for the first and badly for the second."""

ROWS = 20_000
"""The most rows to train on: each point looked at takes two retrainings."""

ONE_BY_ONE, JOINT = "one by one", "joint"
METHODS = ("original", ONE_BY_ONE, JOINT, "retrained")
DISTANCE = "activation distance on forget"
WRITING, SERVING = "cost of writing it, in trainings", "cost of a request, in trainings"
BEGIN, END = "<!-- written by benchmarks/requests.py -->", "<!-- end -->"
CALLED = "request at which it says retrain now"


def problem(
    folder: Path | None, kind: str, weight_decay: float, count: int, seed: int
) -> tuple[Trained, Data, Data, list[int]]:
    """The start, the rows to train on, those to test on, and the numbers of those that will go, in order."""
    pair = load("mnist" if folder else "digits", folder, core=0.2, seed=seed)
    assert pair.core is not None
    width = pair.train.fetch(pair.train.rows[:1]).x.numel()  # type: ignore[union-attr]  # images are one tensor
    fresh = Trained.of(MLP(width, 10, hidden=(64,), seed=seed), recipe=RECIPE)
    start = fit(fresh, pair.core, RECIPE.but(epochs=5), seed=seed, label="pre-training")
    start = replace(start, init=start.weights, recipe=RECIPE.but(weight_decay=weight_decay), weight_decay=weight_decay)
    order = torch.randperm(len(pair.train), generator=torch.Generator().manual_seed(seed))
    train = pair.train.select(order[:ROWS].sort().values)
    if kind == WRONG:
        train, chosen = mislabelled(train, count, seed)
    else:
        chosen = pair.train.rows[order[:count]].tolist()
    return start, train, pair.test, chosen


def measure(
    folder: Path | None, kind: str, weight_decay: float, seed: int, rank: int, sample: int | None
) -> Iterator[Row]:
    """One sequence: rows at the points looked at, and what everything took."""
    start, train, test, chosen = problem(folder, kind, weight_decay, EACH * LOOK[-1], seed)
    name = f"{kind}, decay {weight_decay:g}"
    clock = perf_counter()
    original = fit(start, train, seed=seed)
    training = perf_counter() - clock
    clock = perf_counter()
    written = memory = precompute(original, train, rank=rank, sample=sample, diagonal=None)
    remembering = perf_counter() - clock
    size = sum(t.numel() * t.element_size() for t in memory.tensors()[0].values())

    def row(method: str, readout: str, value: float, seconds: float = float("nan")) -> Row:
        return Row(name, method, readout, seed, float(value), seconds=seconds)

    yield row("memory", WRITING, remembering / training, remembering)
    yield row("memory", "bytes", size)
    network, kept, spent, called, first = original, train, [], LOOK[-1] + 1, 0.0
    for i in track(range(1, LOOK[-1] + 1), f"{name}, seed {seed}"):
        forget = rows(chosen[(i - 1) * EACH : i * EACH])(train, test).forget
        kept = kept.without(forget)
        clock = perf_counter()
        gaussian = NTK(statistics=memory)(network, Split(forget=forget, kept=kept))
        about = gaussian.diagnostics
        first = first or about["statistics_ridge"]
        memory = after_request(memory, network, forget, gaussian.mean, retain=kept)
        spent.append(perf_counter() - clock)
        network = network.at(gaussian.mean)
        called = min(called, i) if about["retrain_now"] else called
        if i in LOOK:
            yield row(ONE_BY_ONE, f"wear after {i}", about["statistics_ridge"] / first)
            split = rows(chosen[: i * EACH], mislabelled=kind == WRONG)(train, test)
            joint = original.at(NTK(statistics=written)(original, Split(forget=split.forget)).mean)
            retrained = fit(start, split.retain, seed=seed, order_of=train)
            other = fit(start, split.retain, seed=seed + 1000, order_of=train)
            networks = {"original": original, ONE_BY_ONE: network, JOINT: joint, "retrained": other}
            for method, one in networks.items():
                for readout in (ActivationDistance(retrained), MeanLoss("forget"), Error("retain"), Error("test")):
                    yield row(method, f"{readout.name} after {i}", float(readout(one, split)))
    yield row(ONE_BY_ONE, CALLED, called)
    yield row(ONE_BY_ONE, SERVING, statistics.median(spent) / training, sum(spent))


def found(all_rows: Sequence[Row], kind: str, method: str, readout: str) -> list[float]:
    """One number over seeds."""
    return [r.value for r in all_rows if (r.experiment, r.method, r.readout) == (kind, method, readout)]


def table(all_rows: Sequence[Row]) -> str:
    """Markdown: the distance on the rows gone so far, and what it costs, with 95 % intervals over seeds."""
    lines = []
    for kind in dict.fromkeys(row.experiment for row in all_rows):
        lines.append(f"**{kind[:1].upper()}{kind[1:]}, ten to a request**\n")
        lines.append(
            "| requests | original | one by one | joint | another retrained | ratio to joint | wear | retained error |"
        )
        lines.append("|---:|---:|---:|---:|---:|---:|---:|---:|")
        for i in LOOK:
            by_method = {m: found(all_rows, kind, m, f"{DISTANCE} after {i}") for m in METHODS}
            ratio = [a / b for a, b in zip(by_method[ONE_BY_ONE], by_method[JOINT], strict=True)]
            cells = [_cell(values) for values in (*by_method.values(), ratio)]
            cells.append(_cell(found(all_rows, kind, ONE_BY_ONE, f"wear after {i}")))
            cells.append(
                _cell([100 * e for e in found(all_rows, kind, ONE_BY_ONE, f"error on retain after {i}")]) + " %"
            )
            lines.append(f"| {i} | {' | '.join(cells)} |")
        called = sorted(found(all_rows, kind, ONE_BY_ONE, CALLED))
        told = ", ".join("never" if c > LOOK[-1] else f"at {c:.0f}" for c in called)
        writing, serving = (_cell(found(all_rows, kind, m, r)) for m, r in (("memory", WRITING), (ONE_BY_ONE, SERVING)))
        size = statistics.mean(found(all_rows, kind, "memory", "bytes")) / 2**20
        lines.append(
            f"\nIt said *retrain now*, seed by seed: {told}. Writing the memory took {writing} trainings and\n"
            f"{size:.0f} MiB; a request took {serving} of a training.\n"
        )
    return in_the_fields_words("\n".join(lines))


def _cell(values: Sequence[float]) -> str:
    mean, low, high = t_interval(list(values))
    half = (high - low) / 2
    return f"{mean:.3g}" + ("" if math.isinf(half) else f" ± {half:.2g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder that holds MNIST; digits without it")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rank", type=int, default=100)
    parser.add_argument("--sample", type=int, default=5000, help="rows that the curvature is taken from")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", action="store_true", help="measure nothing: the table of the rows in --out")
    parser.add_argument("--docs", type=Path, help="the page whose table is renewed")
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    note = (
        f"python benchmarks/requests.py {'--data DIR ' if given.data else ''}"
        f"--seeds {' '.join(map(str, given.seeds))} --rank {given.rank} --sample {given.sample}; "
        f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    all_rows: list[Row] = []
    if given.table:
        all_rows = read_rows(given.out)
    for kind, weight_decay in () if given.table else product(given.kinds, DECAYS):
        for seed in given.seeds:
            all_rows += (
                replace(r, note=note) for r in measure(given.data, kind, weight_decay, seed, given.rank, given.sample)
            )
            if given.out:  # after each sequence: an hour's work is not lost to one interruption
                write_whole(given.out, as_json_lines(all_rows).encode(), replace=True)
    made = table(all_rows)
    print(made)
    if given.docs:
        page = given.docs.read_text(encoding="utf-8")
        before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
        given.docs.write_text(f"{before}\n\n{made}\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
