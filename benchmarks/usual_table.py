"""The field's usual table: CIFAR-10, ResNet-18, a tenth of the rows at random or one class, every method.

    python benchmarks/usual_table.py train --data DIR --keep FOLDER --networks 3 --epochs 16
    python benchmarks/usual_table.py serve --data DIR --keep FOLDER --networks 3 --epochs 16 --out FILE --chosen LINES
    python benchmarks/usual_table_page.py FOLDER/trained-0.pt served-*.pt --data DIR --out results/usual-table.jsonl

For each seed an original, one network retrained for each request, from the same initial weights, and one set of three
fold models for all seeds. Settings are the usual ones of `benchmarks/klom_serve.py` or, with `--chosen`, those that
its `choose` found for another network and other rows: nothing is tuned here. A request's time is compared with that of
a training by the package's own loop, of which a fifth of an epoch is measured in the same process beside the same
others, at the start and again after every tenth request.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spotlessnet.core.data import Data, evenly
from spotlessnet.core.progress import Meter, quiet
from spotlessnet.core.trained import Trained, buffers_of
from spotlessnet.datasets import load
from spotlessnet.experiments.setting import on_device
from spotlessnet.models.resnet import ResNet
from spotlessnet.operators.precision import matmul
from spotlessnet.training.fit import fit

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import accelerator, cifar10, device_of, note
from benchmarks.fleet import Fleet, moved
from benchmarks.klom import Size, Training, World, flags, full, tiny, waited, write
from benchmarks.klom_serve import LARGE, LAST, OURS, Server, Unit, chosen, listed, spelt

RANDOM, CLASS = "random", "class"
LABEL = 4
"""The class that must go."""

DRAWN = 24
"""The draw of the random rows."""

APART = 1000
"""Seeds from here on are of networks retrained for the first request, from twice as much on for the second."""


class ResNet18(ResNet):
    """Channels last: convolutions in bfloat16 are faster so."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return super().forward(x.contiguous(memory_format=torch.channels_last))


@dataclass(eq=False)
class Table(World):
    """Rows and requests, with ResNet-18."""

    aside: Data | None = None
    """Half of the rows that nobody was trained on, for methods that ask for such; the others judge."""

    @property
    def held(self) -> Data:
        return self.test if self.aside is None else self.aside

    @cached_property
    def asked(self) -> dict[str, Data]:
        """Whose answers are kept."""
        return self.sets | {"retain": self.always, "validation": self.test}

    def start(self, seed: int) -> Trained:
        """The retrained network of a seed begins where its original did."""
        x = self.train.fetch(self.train.rows[:1]).x
        assert isinstance(x, Tensor)  # pictures
        model = ResNet18(10, channels=int(x.shape[1]), width=self.size.width / 64, seed=seed % APART)
        network = Trained.of(model.to(self.device), recipe=self.size.recipe)
        return replace(network, init=network.weights, init_buffers=buffers_of(network.model))

    def missed(self, seed: int) -> list[str]:
        """By what the network is: original, or retrained for one of the requests."""
        return list(self.sets)[seed // APART - 1 : seed // APART] if APART <= seed < 3 * APART else []

    @property
    def together(self) -> list[str] | None:
        """Every row by itself."""
        return [str(i) for i in range(len(self.train))]

    def looked(self, network: Trained, *names: str) -> dict[str, Any]:
        """Logarithms of the probabilities of labels, of some of the retained rows, and which answers are right."""
        log_p, right = {}, {}
        for name in names:
            rows = self.asked[name]
            answers, labels = network.predict(rows, 2048).log_softmax(dim=1).cpu(), rows.labels().cpu()
            at = evenly(len(rows), self.size.looked_at) if name == "retain" else torch.arange(len(rows))
            log_p[name] = answers.gather(1, labels[:, None]).squeeze(1)[at].half()
            right[name] = answers.argmax(dim=1) == labels
        error = 1 - float(right["validation"].double().mean())
        share = float(right.pop("retain").double().mean())
        return {"log_p": log_p, "right": right, "retained": share, "error": error}


FIRST = (
    OURS, "finetune", "l1-sparse", "salun", "random-labels", "amun", "lotus", "gradient-ascent", "scrub", "msg", "ct",
)  # fmt: skip
"""Methods that most tables have; if the time ends early, those after them are missing."""

LIKE = {RANDOM: LARGE[0], CLASS: LARGE[1]}
"""Whose chosen settings a request has, where some are given."""

TIMED = 10
"""After so many requests an epoch is timed anew."""


def to_serve(world: Table, options: argparse.Namespace) -> Iterator[Unit]:
    """Every method for every request and seed, the methods that most tables have first."""
    order = (*FIRST, *(entry for entry, _, _ in listed(world) if entry not in (*FIRST, *LAST)), *LAST)
    best = {} if options.chosen is None else chosen(options.chosen)
    asked = [one for one in listed(world, options.ours) if one[0] != OURS or not one[1] or options.ours]
    for method, label, told in sorted(asked, key=lambda one: order.index(one[0])):
        for seed in range(options.networks):
            for name in world.sets:
                settings = told if method == OURS and options.ours else best.get((method, LIKE[name]), told)
                # A class is another kind of request, which the package serves by a preset of its own.
                if method == OURS and name == CLASS:
                    settings = {"compute_budget": told["compute_budget"]}
                yield Unit(method, spelt(settings), name, seed, label)


def timed(world: Table, network: Trained) -> float:
    """Seconds of a training by the package's own loop, from a fifth of an epoch."""
    some = world.train.select(range(max(1, len(world.train) // 5)))
    with Meter(world.device) as meter:
        fit(network, some, world.size.recipe.but(epochs=1, schedule="constant"))
    return meter.seconds * len(world.train) / len(some) * world.size.recipe.epochs


def serve(world: Table, options: argparse.Namespace) -> None:
    """Requests, and now and then a part of an epoch by the package's own loop."""
    about = f"{note('usual_table')}; {accelerator(world.device)}, {world.size.recipe.epochs} epochs"
    found: dict[str, Any] = {"unlearned": [], "about": about}
    folds = sorted(int(path.stem.split("-")[1]) for path in world.keep.glob("folds-*.pt"))
    server = Server(world, folds)
    original = server.network(0)
    few = world.train.select(range(min(2048, len(world.train))))
    fit(original, few, world.size.recipe.but(epochs=1))  # kernels are loaded on first use
    slow: set[str] = set()
    for i, unit in enumerate(list(to_serve(world, options))[options.worker :: options.workers]):
        if world.left < 4:
            print(f"no time from {unit} on", flush=True)
            break
        if server.broken.get(unit.method, 0) or unit.method in slow:
            continue
        if i % TIMED == 0:
            training = timed(world, original)
            print(f"a training would take {training:.1f} s", flush=True)
        began = time.perf_counter()
        made = server.served(unit)
        if time.perf_counter() - began > options.patience:
            slow.add(unit.method)
        if made is not None:
            found["unlearned"].append(made | {"training": training})
            said = f"{unit.method}, {unit.name}, {unit.seed}: {made['seconds']:.2f} s, {made['share']:.1%} of FLOPs"
            print(f"{said}, test error {made['error']:.2%}, {world.left:.0f} s left", flush=True)
        write(options.out, found)
    write(options.out, found)


class Answers(Training):
    """Answers stay in `trained-*.pt`: nothing is added up over runs."""

    def save(self, first: int, said: str) -> None:
        pass


def opened(options: argparse.Namespace) -> Table:
    """Rows on their device, and the two requests."""
    device = device_of(options)
    if options.tiny:
        pair = load("digits")
        train, test = (Data.of(tuple(part.fetch(part.rows[:300])[:2])) for part in (pair.train, pair.test))
        size = replace(tiny(), width=4)
    else:
        train, test = (on_device(data, device) for data in cifar10(options.data))
        size = Size(5000, 64, full(options.epochs, device.type == "cuda").recipe.but(augment=moved))
    drawn = torch.randperm(len(train), generator=torch.Generator().manual_seed(DRAWN))[: len(train) // 10]
    of_class = (train.labels().cpu() == LABEL).nonzero().squeeze(1)
    sets = {RANDOM: train.select(drawn.sort().values), CLASS: train.select(of_class)}
    options.keep.mkdir(parents=True, exist_ok=True)
    held, judged = (test.select(torch.arange(i, len(test), 2)) for i in (0, 1))
    return Table(size, train, judged, sets, device, options.keep, options.stop, aside=held)


def main(arguments: list[str] | None = None) -> None:
    parser = flags(__doc__).out()
    parser.add_argument("what", choices=("train", "serve"))
    parser.add_argument("--worker", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--patience", type=float, default=inf, help="methods that take longer are asked no more")
    parser.add_argument("--chosen", type=Path, help="what `klom_serve.py choose` wrote; usual settings unless given")
    parser.add_argument("--ours", action="append", metavar="NAME=JSON", help="settings of ours; may be given again")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="do not compile the network")
    options = parser.parse_args(arguments)
    with quiet(), matmul("tf32"):
        world = opened(options)
        if options.what == "train":
            compiled = False if options.plain else None
            fleet = Fleet(world.start(0), world.train, at_once=options.at_once, compiled=compiled)
            print(f"ready after {time.perf_counter() - world.began:.0f} s", flush=True)
            seeds = [APART * kind + seed for seed in range(options.networks) for kind in range(3)]
            folds = [3 * APART + 3 * i for i in range(options.folds)]
            waited(world, after=options.after)
            Answers(world, fleet).go(seeds, folds, note("usual_table"))
            return
        waited(world, 1, options.after)
        serve(world, options)


if __name__ == "__main__":
    main()
