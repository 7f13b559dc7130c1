"""Whether BatchNorm's statistics are estimated anew before out-of-fold distillation or after it: small CIFAR-10, a CPU.

    python benchmarks/statistics_first.py --data DIR --out results/statistics-first.jsonl      # about ten minutes
    python benchmarks/statistics_first.py --out results/statistics-first.jsonl --table

1,500 rows, a ResNet-9 of a fifth of the width, 25 epochs without augmentation, which answers all training rows rightly;
requests of `benchmarks/klom.py` with 50 rows each, an original and a retrained network for each seed, one set of fold
models for all. `after` is what version 0.2 did until statistics came first. *Way*: how far the mean margin of forgotten
rows went from the original's to the retrained network's, in the mean over seeds; the budget pays for about as many
visits to each of them as 5 % of a training does on full CIFAR-10.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from spotlessnet.auditing.rows import Row, append_rows, read_rows
from spotlessnet.core.data import Data
from spotlessnet.core.intervals import t_interval
from spotlessnet.core.progress import quiet
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.registry import markdown_table
from spotlessnet.methods.out_of_fold import method as distillation

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, cifar10, note, use_threads, values_of
from benchmarks.fleet import Fleet
from benchmarks.klom_serve import LARGE, OURS, Server, Unit, spelt

from benchmarks import klom

ROWS, TEST, WIDTH, SHRINK = 1500, 1000, 12, 20
RETRAINED = 100
"""Seeds of retrained networks from here on."""

BUDGET = 0.1
WAY, RIGHT = "way", "test error beside the original's"
RECIPE = Recipe(epochs=25, lr=0.2, momentum=0.9, batch_size=32, weight_decay=5e-4, decay_toward="zero",
                schedule="one-cycle", freeze_statistics=False)  # fmt: skip
SETTINGS = {
    "as shipped": {},
    "in minus out": {"targets": "in minus out", "forget_weight": 0.5, "batch_size": 32, "retain_temperature": "inf"},
}


class Small(klom.World):
    """Retrained networks miss both requests."""

    def missed(self, seed: int) -> list[str]:
        """All or nothing."""
        return list(self.sets) if seed >= RETRAINED else []


def some(data: Data, count: int) -> Data:
    """The first of the rows, as data of their own."""
    part = data.select(torch.arange(min(count, len(data))))
    rows = part.fetch(part.rows)
    assert isinstance(rows.x, Tensor)  # pictures
    return Data.of((rows.x, rows.y))


def opened(options: argparse.Namespace, keep: Path) -> Small:
    """Rows and requests."""
    train, test = (some(data, n) for data, n in zip(cifar10(options.data), (ROWS, TEST), strict=True))
    numbers = klom.forget_sets(train, None, shrink=SHRINK)
    sets = {name: train.select(numbers[name]) for name in LARGE}
    size = klom.Size(400, WIDTH, RECIPE.but(epochs=options.epochs))
    return Small(size, train, test, sets, torch.device("cpu"), keep)


class Alone(klom.Training):
    """Nothing is added up over runs."""

    def fold_models(self, seed: int) -> None:
        """Every row by itself."""
        with patch.object(klom, "COHERENT", {}):
            super().fold_models(seed)


def rows(options: argparse.Namespace, keep: Path) -> Iterator[Row]:
    """Train, and serve each request in both orders."""
    world = opened(options, keep)
    training = Alone(world, Fleet(world.start(0), world.train, at_once=1, compiled=False))
    training.fold_models(5000)
    for seed in options.seeds:
        training.networks([seed, RETRAINED + seed])
        found = {one["seed"]: one for one in training.found["networks"]}
        original, retrained = found[seed], found[RETRAINED + seed]
        server = Server(world, [5000])
        for name in LARGE:
            begun, goal = (float(one["margins"][name].double().mean()) for one in (original, retrained))
            for label, told in SETTINGS.items():
                settings = spelt({"compute_budget": BUDGET} | told)
                for order in ("after", "before"):
                    left = patch.object(distillation, "with_statistics", lambda trained, *_: trained)
                    with left if order == "after" else nullcontext():
                        made = server.served(Unit(OURS, settings, name, seed))
                    if made is None:
                        continue
                    way = (begun - float(made["margins"][name].double().mean())) / (begun - goal)
                    print(f"{name}, {label}, {order}, {seed}: {way:.2f}, {made['facts']}", flush=True)
                    who = f"{label}, statistics {order} the step"
                    yield Row(name, who, WAY, seed, way, unit="share", seconds=made["seconds"])
                    yield Row(name, who, RIGHT, seed, made["error"] - original["error"], unit="share")


def table(found: list[Row]) -> str:
    """Means over seeds with their 95 % intervals."""
    made = []
    for experiment in dict.fromkeys(row.experiment for row in found):
        for method in dict.fromkeys(row.method for row in found if row.experiment == experiment):
            cells = []
            for readout in (WAY, RIGHT):
                mean, low, high = t_interval(values_of(found, experiment, method, readout))
                cells.append(f"{mean:.1%} [{low:.1%}, {high:.1%}]")
            made.append((experiment, method, *cells))
    return markdown_table(("request", "setting", WAY, RIGHT), made)


def main(arguments: list[str] | None = None) -> None:
    parser = Flags(__doc__).data("folder with images").out(required=True).seeds(range(3)).table()
    parser.add_argument("--epochs", type=int, default=RECIPE.epochs, help="fewer for a rehearsal")
    options = parser.parse_args(arguments)
    if not options.table:
        use_threads()
        about = note("statistics_first")
        with quiet(), tempfile.TemporaryDirectory() as keep:
            for row in rows(options, Path(keep)):
                append_rows(options.out, [replace(row, note=about)])
    print(table(read_rows(options.out)))


if __name__ == "__main__":
    main()
