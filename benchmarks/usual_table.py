"""The field's usual table: CIFAR-10, ResNet-18, a tenth of the rows at random or one class, every method.

    python benchmarks/usual_table.py train --data DIR --keep FOLDER --networks 3 --epochs 16 --choose OTHER
    python benchmarks/usual_table.py choose --data DIR --keep OTHER --epochs 16 --out LINES
    python benchmarks/usual_table.py serve --data DIR --keep FOLDER --networks 3 --epochs 16 --out FILE --own LINES
    python benchmarks/usual_table_page.py FOLDER/trained-0.pt served-*.pt --data DIR --out results/usual-table.jsonl

For each seed an original, one network retrained for each request, from the same initial weights, and one set of three
fold models for all seeds. Settings are the usual ones of `benchmarks/klom_serve.py` or, with `--chosen`, those that
its `choose` found for another network and other rows. Settings of ours are tried by `choose` here, on an original with
a seed of its own, other random rows and another class: the one whose Avg. Gap is least is served, and as *quick* the
one whose gap is least of those that take at most 6 % of a training's time. A request's time is compared with that of a
training by the package's own loop, of which a fifth of an epoch is measured in the same process beside the same others,
at the start and again after every tenth request.
"""

import argparse
import json
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
from benchmarks.klom_serve import LARGE, LAST, OURS, Server, Unit, chosen, listed, own_settings, spelt

RANDOM, CLASS = "random", "class"
LABEL = 4
"""The class that must go."""

LABELS = (LABEL, 6)
"""The second one is the class that settings are chosen on."""

DRAWN = 24
"""The draw of the random rows; the next one is of those that settings are chosen on."""

CHOOSING = 500
"""The seed of the original that settings are chosen on."""

QUICK = 0.06
"""Of a training's time."""

Settings = dict[str, Any]
VARIANTS: dict[str, list[Settings]] = {
    RANDOM: [
        {},
        {"batch_size": 128},
        {"batch_size": 512},
        {"batch_size": 512, "lr_scale": 1.0},
        {"batch_size": 128, "lr_scale": 1.0},
        {"batch_size": 128, "forget_weight": 0.7},
        {"batch_size": 128, "retain_temperature": 3.0},
        {"batch_size": 128, "targets": "in minus out"},
        {"batch_size": 128, "targets": "calibrated", "temperature": 1.0, "retain_temperature": 1.0},
        {"batch_size": 512, "targets": "calibrated", "temperature": 1.0, "retain_temperature": 1.0},
    ],
    CLASS: [
        {},
        {"batch_size": 512, "lr_scale": 1.0},
        {"compute_budget": 0.02},
        {"compute_budget": 0.02, "batch_size": 512, "lr_scale": 1.0},
    ],
}
"""Settings of ours that are tried, beside a budget of 5 % of training FLOPs unless said."""

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

    label: int = LABEL
    """The class that must go."""

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

MASKED = "hiding"
"""The class's logit is shut and nothing else is changed: what a table of a class cannot see."""

SHORTER: dict[str, Settings] = {"truncated-retrain": {"epoch_fraction": 0.1}}
"""Here no network is missed by design, so retraining that ends early is a method like all others."""

COMMON = 3
"""Seeds that every method serves before any serves the others."""


def own(path: Path) -> dict[str, dict[str, Settings]]:
    """By request, settings of ours by what is added to the name: least gap, and least gap of those that are quick.

    A failed request wrote no line, so a setting that breaks is never chosen.
    """
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found: dict[str, dict[str, Settings]] = {}
    for name in (RANDOM, CLASS):
        mine = sorted((one for one in lines if one["set"] == name), key=lambda one: one["gap"])
        quick = [one for one in mine if one["time"] <= QUICK] or sorted(mine, key=lambda one: one["time"])
        found[name] = {"": Unit("", mine[0]["settings"], "", 0).told} if mine else {}
        if quick and quick[0]["settings"] != mine[0]["settings"]:
            found[name][", quick"] = Unit("", quick[0]["settings"], "", 0).told
    return found


def of_ours(world: Table, options: argparse.Namespace, name: str) -> dict[str, Settings]:
    """Settings of ours for a request, by what is added to its name."""
    budget = own_settings(world)[""]
    if options.own is not None and (found := own(options.own)[name]):
        return found
    # A class is another kind of request, which the package serves by a preset of its own.
    if not options.ours or name == CLASS:
        return {"": {"compute_budget": budget["compute_budget"]}}
    return {f", {label}" if label else "": told for label, told in own_settings(world, options.ours).items()}


def to_serve(world: Table, options: argparse.Namespace) -> Iterator[Unit]:
    """Every method for every request and some seeds, the methods that most tables have first; then other seeds."""
    best = {} if options.chosen is None else chosen(options.chosen)
    others = {entry: told for entry, _, told in listed(world) if entry != OURS} | SHORTER
    order = (*FIRST, *(entry for entry in others if entry not in (*FIRST, *LAST)), *LAST)
    every = range(options.networks)
    for seeds in (every[:COMMON], every[COMMON:]):
        for method in order:
            for seed in seeds:
                for name in world.sets:
                    if method == OURS:
                        for label, told in of_ours(world, options, name).items():
                            yield Unit(method, spelt(told), name, seed, label)
                    elif method in others:
                        settings = best.get((method, LIKE[name]), others[method])
                        yield Unit(method, spelt(settings), name, seed)
        for seed in seeds:
            yield Unit(MASKED, "{}", CLASS, seed)


def timed(world: Table, network: Trained) -> float:
    """Seconds of a training by the package's own loop, from a fifth of an epoch."""
    some = world.train.select(range(max(1, len(world.train) // 5)))
    with Meter(world.device) as meter:
        fit(network, some, world.size.recipe.but(epochs=1, schedule="constant"))
    return meter.seconds * len(world.train) / len(some) * world.size.recipe.epochs


def opened_server(world: Table) -> Server:
    """With the fold models that are there; kernels are loaded on first use, before anything is timed."""
    folds = sorted(int(path.stem.split("-")[1]) for path in world.keep.glob("folds-*.pt"))
    server = Server(world, folds)
    few = world.train.select(range(min(2048, len(world.train))))
    fit(server.network(first(world)), few, world.size.recipe.but(epochs=1))
    return server


def first(world: Table) -> int:
    """The first original that there is."""
    return min(int(path.stem.split("-")[1]) for path in world.keep.glob("network-*.pt"))


def choose(world: Table, options: argparse.Namespace) -> None:
    """A line for each setting of ours: its gap to the retrained network, and its price; `own` reads them."""
    from benchmarks.usual_table_page import FOUR, measured

    server, origin = opened_server(world), first(world)
    found = torch.load(world.keep / f"trained-{origin}.pt", weights_only=True)
    networks = {one["seed"]: one for one in found["networks"]}
    of_class = world.test.labels().cpu() == world.label
    budget = own_settings(world)[""]
    units = [Unit(OURS, spelt(budget | told), name, origin) for name in world.sets for told in VARIANTS[name]]
    for unit in units[options.worker :: options.workers]:
        if world.left < 3:
            print(f"no time from {unit} on", flush=True)
            break
        training = timed(world, server.network(origin))
        made = server.served(unit)
        if made is None:
            continue
        kind = list(world.sets).index(unit.name) + 1
        mine, goal = (measured(one, unit.name, [], of_class) for one in (made, networks[APART * kind + origin]))
        each = {readout: [round(mine[readout], 3), round(goal[readout], 3)] for readout in FOUR}
        line = {"method": OURS, "set": unit.name, "settings": unit.settings, "seed": origin, "each": each,
                "gap": sum(abs(a - b) for a, b in each.values()) / len(FOUR), "share": made["share"],
                "time": made["seconds"] / training, "seconds": made["seconds"], "facts": made["facts"],
                "note": note("usual_table")}  # fmt: skip
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        said = f"{unit.settings}, {unit.name}: gap {line['gap']:.2f}, {made['share']:.1%} of FLOPs"
        print(f"{said}, {line['time']:.1%} of {training:.1f} s, {each}", flush=True)
    print(f"worker {options.worker} ends with {world.left:.0f} s left", flush=True)


def serve(world: Table, options: argparse.Namespace) -> None:
    """Requests, and now and then a part of an epoch by the package's own loop."""
    about = f"{note('usual_table')}; {accelerator(world.device)}, {world.size.recipe.epochs} epochs"
    found: dict[str, Any] = {"unlearned": [], "about": about}
    server = opened_server(world)
    original = server.network(0)
    slow: set[str] = set()
    for i, unit in enumerate(list(to_serve(world, options))[options.worker :: options.workers]):
        if world.left < 4:
            print(f"no time from {unit} on", flush=True)
            break
        if server.broken.get(unit.method, 0) > 1 or unit.method in slow or not world.path(unit.seed).exists():
            continue
        if i % TIMED == 0:
            training = timed(world, original)
            print(f"a training would take {training:.1f} s", flush=True)
        began = time.perf_counter()
        made = server.served(unit)
        took = time.perf_counter() - began
        if took > options.patience:
            slow.add(unit.method)
            print(f"{unit} took {took:.0f} s and is asked no more", flush=True)
        if made is not None:
            found["unlearned"].append(made | {"training": training})
            said = f"{unit.method}{unit.label}, {unit.name}, {unit.seed}: {made['seconds']:.2f} s"
            paid = f"{made['share']:.1%} of FLOPs, test error {made['error']:.2%}"
            print(f"{said}, {paid}, {world.left:.0f} s left", flush=True)
        write(options.out, found)
    write(options.out, found)


class Answers(Training):
    """Answers stay in `trained-*.pt`: nothing is added up over runs."""

    def save(self, first: int, said: str) -> None:
        pass


def opened(options: argparse.Namespace, draw: int = 0, keep: Path | None = None) -> Table:
    """Rows on their device, and the two requests; with another draw, other rows and another class."""
    device = device_of(options)
    if options.tiny:
        pair = load("digits")
        train, test = (Data.of(tuple(part.fetch(part.rows[:300])[:2])) for part in (pair.train, pair.test))
        size = replace(tiny(), width=4)
    else:
        train, test = (on_device(data, device) for data in cifar10(options.data))
        size = Size(5000, 64, full(options.epochs, device.type == "cuda").recipe.but(augment=moved))
    drawn = torch.randperm(len(train), generator=torch.Generator().manual_seed(DRAWN + draw))[: len(train) // 10]
    of_class = (train.labels().cpu() == LABELS[draw]).nonzero().squeeze(1)
    sets = {RANDOM: train.select(drawn.sort().values), CLASS: train.select(of_class)}
    keep = options.keep if keep is None else keep
    keep.mkdir(parents=True, exist_ok=True)
    held, judged = (test.select(torch.arange(i, len(test), 2)) for i in (0, 1))
    return Table(size, train, judged, sets, device, keep, options.stop, aside=held, label=LABELS[draw])


def train(options: argparse.Namespace) -> None:
    """Networks that settings are chosen on, if asked for, then all others."""
    world = opened(options)
    fleet = Fleet(world.start(0), world.train, at_once=options.at_once, compiled=False if options.plain else None)
    print(f"ready after {time.perf_counter() - world.began:.0f} s", flush=True)
    if options.ready is not None:
        options.ready.touch()
    waited(world, after=options.after)
    folds = [3 * APART + 3 * i for i in range(max(1, options.folds))]
    if options.choose is not None:
        other = opened(options, 1, options.choose)
        other.began = world.began
        Answers(other, fleet).go([APART * kind + CHOOSING for kind in range(3)], folds[:1], note("usual_table"))
    seeds = [APART * kind + seed for seed in range(options.networks) for kind in range(3)]
    Answers(world, fleet).go(seeds, folds[: options.folds], note("usual_table"))


def main(arguments: list[str] | None = None) -> None:
    parser = flags(__doc__).out()
    parser.add_argument("what", choices=("train", "choose", "serve"))
    parser.add_argument("--worker", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--patience", type=float, default=inf, help="methods that take longer are asked no more")
    parser.add_argument("--chosen", type=Path, help="what `klom_serve.py choose` wrote; usual settings unless given")
    parser.add_argument("--own", type=Path, help="what `choose` wrote: settings of ours")
    parser.add_argument("--choose", type=Path, help="folder for networks to choose on, which are trained first")
    parser.add_argument("--ready", type=Path, help="a file that is there once steps are compiled")
    parser.add_argument("--ours", action="append", metavar="NAME=JSON", help="settings of ours; may be given again")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="do not compile the network")
    options = parser.parse_args(arguments)
    with quiet(), matmul("tf32"):
        if options.what == "train":
            train(options)
            return
        world = opened(options, int(options.what == "choose"))
        waited(world, 1, options.after)
        (choose if options.what == "choose" else serve)(world, options)


if __name__ == "__main__":
    main()
