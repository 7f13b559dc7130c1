"""A hundred requests in a row from statistics: how far from retraining, beside one joint request, and at what cost.

    python benchmarks/requests.py --data DIR --out results/requests.jsonl --docs results/requests.md

A network with one hidden layer, pre-trained on other rows, is fine-tuned on MNIST (DIR holds it; without `--data` on
scikit-learn's digits). Statistics are computed once. Then ten rows at a time must go, ordinary or mislabelled, each
request served from those rows and the statistics, which the retained rows then give anew. At some points the network is
compared with one retrained without all rows that have gone so far, and with what one joint request for them gives.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter

import torch

from spotlessnet.auditing.rows import Row
from spotlessnet.core.data import Data
from spotlessnet.core.progress import track
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split, rows
from spotlessnet.core.trained import Trained
from spotlessnet.datasets import load
from spotlessnet.demo import mislabelled
from spotlessnet.methods import NTK
from spotlessnet.models.mlp import MLP
from spotlessnet.precomputed.after_request import after_request
from spotlessnet.precomputed.precompute import precompute
from spotlessnet.readouts import ActivationDistance, Error, MeanLoss
from spotlessnet.training.fit import fit

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, Place, collect, mean_and_half, show, use_threads, values_of
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
PLACE = Place.of("requests")
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


def beside_retraining(
    start: Trained, networks: Mapping[str, Trained], split: Split, seed: int
) -> Iterator[tuple[str, str, float]]:
    """Method, readout and value of each network, and of another retrained one, whose distance is the floor."""
    retrained, other = (fit(start, split.retain, seed=each, order_of=split.whole) for each in (seed, seed + 1000))
    for method, network in {**networks, "retrained": other}.items():
        for readout in (ActivationDistance(retrained), MeanLoss("forget"), Error("retain"), Error("test")):
            yield method, readout.name, float(readout(network, split))


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
            networks = {"original": original, ONE_BY_ONE: network, JOINT: joint}
            for method, readout, value in beside_retraining(start, networks, split, seed):
                yield row(method, f"{readout} after {i}", value)
    yield row(ONE_BY_ONE, CALLED, called)
    yield row(ONE_BY_ONE, SERVING, statistics.median(spent) / training, sum(spent))


def table(all_rows: Sequence[Row]) -> str:
    """Markdown: the distance on the rows gone so far, and what it costs, with 95 % intervals over seeds."""
    values = partial(values_of, all_rows)
    lines = []
    for kind in dict.fromkeys(row.experiment for row in all_rows):
        lines.append(f"**{kind[:1].upper()}{kind[1:]}, ten to a request**\n")
        lines.append(
            "| requests | original | one by one | joint | another retrained | ratio to joint | wear | retained error |"
        )
        lines.append("|---:|---:|---:|---:|---:|---:|---:|---:|")
        for i in LOOK:
            by_method = {m: values(kind, m, f"{DISTANCE} after {i}") for m in METHODS}
            ratio = [a / b for a, b in zip(by_method[ONE_BY_ONE], by_method[JOINT], strict=True)]
            cells = [mean_and_half(each) for each in (*by_method.values(), ratio)]
            cells.append(mean_and_half(values(kind, ONE_BY_ONE, f"wear after {i}")))
            errors = values(kind, ONE_BY_ONE, f"error on retain after {i}")
            cells.append(mean_and_half([100 * error for error in errors]) + " %")
            lines.append(f"| {i} | {' | '.join(cells)} |")
        called = sorted(values(kind, ONE_BY_ONE, CALLED))
        told = ", ".join("never" if c > LOOK[-1] else f"at {c:.0f}" for c in called)
        writing = mean_and_half(values(kind, "memory", WRITING))
        serving = mean_and_half(values(kind, ONE_BY_ONE, SERVING))
        size = statistics.mean(values(kind, "memory", "bytes")) / 2**20
        lines.append(
            f"\nIt said *retrain now*, seed by seed: {told}. Writing the memory took {writing} trainings and\n"
            f"{size:.0f} MiB; a request took {serving} of a training.\n"
        )
    return in_the_fields_words("\n".join(lines))


def sequence_flags(about: str | None) -> Flags:
    """What whoever measures sequences of requests on this problem is asked."""
    parser = Flags(about).data("the folder that holds MNIST; digits without it").seeds(range(5)).out().table().page()
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    return parser


def every_sequence(
    given: argparse.Namespace, measure: Callable[[Path | None, str, float, int], Iterator[Row]]
) -> Iterator[Iterator[Row]]:
    """One sequence for each kind of row, decay and seed."""
    use_threads()
    for kind, weight_decay, seed in product(given.kinds, DECAYS, given.seeds):
        yield measure(given.data, kind, weight_decay, seed)


def flags() -> Flags:
    parser = sequence_flags(__doc__)
    parser.add_argument("--rank", type=int, default=100)
    parser.add_argument("--sample", type=int, default=5000, help="rows that the curvature is taken from")
    return parser


def main() -> None:
    given = flags().parse_args()
    sequences = every_sequence(given, partial(measure, rank=given.rank, sample=given.sample))
    show(given, table(collect(given, "requests", sequences)), PLACE)


if __name__ == "__main__":
    main()
