"""Every method against retraining on scikit-learn's digits, for two requests: the table of `docs/which_method_when.md`.

    python benchmarks/methods.py --out results/methods-digits.jsonl --docs docs/which_method_when.md

Two requests: 25 rows with wrong labels, which a network must learn by heart, and a whole class that pre-training never
saw. Per method: distance of the answers about the forgotten rows to those of the network retrained with the same batch
order, errors, and processor seconds of one thread, over several trainings. `retrained` is another retrained network,
so its distance is the floor that no method can be expected to beat. `mixed-linear` is another kind of network, and has
references of its own.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import isinf, isnan, nan
from pathlib import Path
from time import process_time

import torch

from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.summary import ORIGINAL, RETRAINED, summarise
from spotlessnet.core.chaining import chain
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.progress import track
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split, whole_class
from spotlessnet.core.trained import Trained
from spotlessnet.datasets import load
from spotlessnet.demo import problem
from spotlessnet.methods import (
    NTK,
    Finetune,
    Fisher,
    GradientAscent,
    Hiding,
    MixedLinear,
    Newton,
    RandomLabels,
    Retrain,
    ShortRetrain,
    Variational,
)
from spotlessnet.models.mlp import MLP
from spotlessnet.operators.solvers import CG
from spotlessnet.readouts.activation_distance import ActivationDistance
from spotlessnet.readouts.error import Error
from spotlessnet.training.fit import fit
from spotlessnet.training.mixed import fit_users
from spotlessnet.training.pairs import train_pairs

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, Place, collect, show, use_threads
from benchmarks.labels import in_the_fields_words

WRONG, CLASS = "25 mislabelled rows", "all rows of class 8"
DISTANCE = "activation distance on forget"
COLUMNS = {DISTANCE: "distance", "error on forget": "forget", "error on retain": "retain", "error on test": "test"}
PLACE = Place.of("methods")
FIRST = 10
"""The first training of the table: those before it served for choosing."""

SMALL = 64
"""Hidden units; the demo's network."""

USERS, SOLVED = 0.1, 1e-4
"""The decay of user weights, and how far they are solved; float32 gives little more."""


def a_class(label: int = 8) -> tuple[Trained, Split]:
    """The demo's network pre-trained on the other nine classes, and a request to forget the tenth."""
    began, _ = problem()
    digits = load("digits", core=0.5, seed=0)
    assert digits.core is not None
    assert began.recipe is not None
    others = digits.core.select((digits.core.labels() != label).nonzero().flatten())
    fresh = Trained.of(MLP(64, 10, hidden=(SMALL,)), recipe=began.recipe)
    start = fit(fresh, others, began.recipe.but(epochs=10, weight_decay=0.0), seed=0, label="pre-training")
    split = whole_class(label)(digits.train, digits.test)
    return replace(start, init=start.weights, recipe=began.recipe, weight_decay=began.recipe.weight_decay), split


def methods(is_class: bool) -> dict[str, Scrub]:
    """What is compared, by the papers' names; settings are the defaults where none are given.

    The strengths of the noise are the largest power of ten at which errors on the retained rows stay within two points,
    found on trainings 0 to 5; the table is of others.
    """
    found: dict[str, Scrub] = {
        "short retraining": ShortRetrain(),
        "NTK": NTK(),
        "NTK, then 3 epochs": chain(NTK(), Finetune(epochs=3)),
        "NTK, then noise": chain(NTK(), Fisher(strength=1e-8)),
        "Newton": Newton(solver=CG(tolerance=1e-4)),
        "Newton, then noise": Newton(strength=1e-8, solver=CG(tolerance=1e-4)),
        "Fisher noise": Fisher(strength=1e-7, cap=0.3),
        "variational noise": Variational(strength=1e-5, cap=0.3),
        "fine-tune, 10 epochs": Finetune(epochs=10),
        "negative gradient": GradientAscent(),
        "random labels": RandomLabels(epochs=3),
    }
    return {**found, "hiding": Hiding()} if is_class else found


def measure(request: str, began: Trained, split: Split, seeds: int) -> Iterator[Row]:
    """Rows of all methods that work on an ordinary network."""
    trainings = train_pairs(began, split, seeds=seeds, first=FIRST)
    for i, seed in enumerate(trainings.seeds):
        original, reference = trainings.original[i], trainings.retrained[i]
        _, retraining = timed(Retrain(seed=seed), original, split)
        yield from look(request, ORIGINAL, seed, original, reference, split)
        yield from look(request, RETRAINED, seed, trainings.held_out[i], reference, split, retraining)
        for name, scrub in methods(request == CLASS).items():
            gaussian, seconds = timed(scrub, original, split)
            scrubbed = original.at(gaussian.draw(torch.Generator().manual_seed(seed)))
            yield from look(request, name, seed, scrubbed, reference, split, seconds)


def measure_mixed(request: str, began: Trained, split: Split) -> Iterator[Row]:
    """Rows of the mixed-linear network: no seed takes part once the core is trained, so one look is all there is."""
    where = f"{request}, linear user weights"
    original = fit_users(began, split.whole, weight_decay=USERS, tolerance=SOLVED).trained
    clock = process_time()
    reference = fit_users(began, split.retain, weight_decay=USERS, tolerance=SOLVED).trained
    retraining = process_time() - clock
    gaussian, seconds = timed(MixedLinear(tolerance=SOLVED), original, split)
    yield from look(where, ORIGINAL, 0, original, reference, split)
    yield from look(where, RETRAINED, 0, reference, reference, split, retraining)
    yield from look(where, "mixed-linear", 0, original.at(gaussian.mean), reference, split, seconds)


def timed(scrub: Scrub, trained: Trained, split: Split) -> tuple[Gaussian, float]:
    """What a scrub gives and its processor time, which other programs on the machine do not change much."""
    clock = process_time()
    gaussian = scrub(trained, split)
    return gaussian, process_time() - clock


def look(
    request: str, method: str, seed: int, network: Trained, reference: Trained, split: Split, seconds: float = nan
) -> Iterator[Row]:
    """One network under all readouts."""
    for readout in (ActivationDistance(reference), Error("forget"), Error("retain"), Error("test")):
        yield Row(
            request, method, readout.name, seed, float(readout(network, split)), unit=readout.unit,
            ideal=readout.ideal, seconds=seconds,
        )  # fmt: skip


def run(seeds: int) -> list[Row]:
    """Both requests, every method."""
    rows: list[Row] = []
    for request, (began, split) in {WRONG: problem(), CLASS: a_class()}.items():
        rows += track(measure(request, began, split, seeds), request)
        rows += measure_mixed(request, began, split)
    return rows


def table(rows: Iterable[Row]) -> str:
    """Markdown: one table per request, means over seeds with half the width of their 95 % intervals."""
    lines = summarise(rows)
    parts = []
    for request in dict.fromkeys(line.experiment for line in lines):
        mine = {(line.method, line.readout): line for line in lines if line.experiment == request}
        parts.append(f"**{request[:1].upper()}{request[1:]}**\n")
        parts.append(f"| method | {' | '.join(COLUMNS.values())} | CPU seconds |\n|---|{'---:|' * (len(COLUMNS) + 1)}")
        for method in dict.fromkeys(method for method, _ in mine):
            cells = [_cell(mine[method, readout].mean, readout) for readout in COLUMNS]
            seconds = mine[method, DISTANCE].seconds
            parts.append(f"| {method} | {' | '.join(cells)} | {'' if isnan(seconds) else f'{seconds:.2g}'} |")
        parts.append("")
    return in_the_fields_words("\n".join(parts))


def _cell(mean: tuple[float, float, float], readout: str) -> str:
    value, low, high = mean
    half = (high - low) / 2
    is_share = readout != DISTANCE
    spread = "" if isinf(half) else f" ± {100 * half:.1f}" if is_share else f" ± {half:.3f}"
    return (f"{100 * value:.1f}" if is_share else f"{value:.3f}") + spread + (" %" if is_share else "")


def distances(rows: Iterable[Row]) -> Mapping[tuple[str, str], float]:
    """The mean distance to the retrained network by request and method."""
    return {(line.experiment, line.method): line.mean.value for line in summarise(rows) if line.readout == DISTANCE}


def flags() -> Flags:
    parser = Flags(__doc__).out().page()
    parser.add_argument("--seeds", type=int, default=5, help="how many trainings, from the first that chose nothing")
    return parser


def main() -> None:
    given = flags().parse_args()
    use_threads()
    rows = collect(given, "methods", [run(given.seeds)])
    show(given, table(rows), PLACE)


if __name__ == "__main__":
    main()
