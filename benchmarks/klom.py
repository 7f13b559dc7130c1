"""KLoM as in EasyDUB: ResNet-9 on CIFAR-10, originals and retrained networks, margins of every row under each.

    python benchmarks/klom.py sets  --data DIR                           # results/klom-sets.json, the forget sets
    python benchmarks/klom.py sets  --data DIR --draw 1                  # other ones, to choose settings on
    python benchmarks/klom.py train --data DIR --keep FOLDER --networks 64 --folds 4    # networks, margins, fold models
    python benchmarks/klom.py train --tiny --keep FOLDER                 # digits, a CPU, under a minute

`benchmarks/klom_serve.py` then serves requests, `benchmarks/klom_page.py` reads KLoM out of both. Margins are kept in
`FOLDER/margins-FIRST.npz` too, which is small enough to stay (`results/klom-margins-FIRST.npz`): networks of several
runs add up, and a later method needs no more than to be served.

Four disjoint forget sets, rebuilt after EasyDUB's description and not its very rows: *random* rows, and *coherent*
ones, those of a class that lie furthest along its first principal component in the last hidden layer of a network
pre-trained on CIFAR-100; 100 and 1,000 rows each. Every network misses a half of the sets, drawn as a full factorial
design: for each set the networks that saw it are its originals and the others its retrained networks, alike in all
else. So each training serves all four sets. Margins are kept of all forget sets, of 1,000 rows that every network
saw and of 1,000 test rows.

Fold models are trained on all rows, a coherent set in one fold; each set of them serves several originals, which makes
unlearned networks a little more alike than fold models of their own would.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spotlessnet.core.data import Data, evenly
from spotlessnet.core.progress import quiet
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.row_keys import RowKeys
from spotlessnet.core.trained import Trained, buffers_of
from spotlessnet.datasets import load
from spotlessnet.experiments.setting import find_weights, on_device
from spotlessnet.models.all_cnn import AllCNN
from spotlessnet.models.pretrained import load_pretrained
from spotlessnet.operators.precision import matmul
from spotlessnet.precomputed.fold_models import FoldModels, train_fold_models
from spotlessnet.readouts.linear_probe import hidden
from spotlessnet.readouts.margin import margins
from spotlessnet.training.fit import prepared

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, accelerator, cifar10, device_of, note
from benchmarks.fleet import Fleet, FleetExecutor, Job, ResNet9
from benchmarks.klom_margins import About, digest, keep, recipe_of

RESULTS = Path(__file__).parents[1] / "results"
SETS = (RESULTS / "klom-sets.json", RESULTS / "klom-sets-choose.json")
COHERENT = {"coherent, small": (1, 100), "coherent, large": (8, 1000)}
RANDOM = {"random, small": 100, "random, large": 1000}
BETWEEN = 2
"""Classes between coherent sets of one draw and the next."""

PATTERNS = (0, 15, 5, 10, 3, 12, 6, 9, 1, 14, 2, 13, 4, 11, 7, 8)
"""Which sets a network misses, as bits; each is followed by its complement, so that any even number is balanced."""

FOLDS = 3
CUT = (0.05, 0.2)
"""Shares of the epochs after which retraining is cut short."""


@dataclass(frozen=True)
class Size:
    """What is trained, and what is looked at."""

    looked_at: int
    width: int
    recipe: Recipe
    small: bool = False
    times: float = 1.0
    """What budgets are multiplied by: a hundredth of a tiny training pays for nothing."""


def full(epochs: int, bf16: bool) -> Size:
    """CIFAR-10, trained as EasyDUB does, without augmentation, in fewer and larger steps."""
    recipe = Recipe(epochs=epochs, lr=0.4, momentum=0.9, batch_size=512, weight_decay=5e-4, decay_toward="zero",
                    schedule="one-cycle", bf16=bf16, freeze_statistics=False)  # fmt: skip
    return Size(1000, 64, recipe)


def tiny() -> Size:
    """Digits with a narrow network: whether everything runs, not how well anything forgets."""
    recipe = Recipe(epochs=8, lr=0.1, batch_size=32, weight_decay=5e-4, decay_toward="zero", freeze_statistics=False)
    return Size(50, 4, recipe, small=True, times=20.0)


def coherent(inside: Tensor, count: int) -> Tensor:
    """Positions of the rows furthest along the first principal component."""
    away = inside - inside.mean(dim=0)
    score = away @ torch.linalg.svd(away, full_matrices=False).Vh[0]
    # The sign of a component is an accident; the side with the longer tail is taken.
    score = score * (1 if float(score.max()) > -float(score.min()) else -1)
    return score.topk(min(count, len(score))).indices


def forget_sets(train: Data, features: Trained | None, shrink: int = 1, draw: int = 0) -> dict[str, list[int]]:
    """Row numbers of four disjoint sets; without a pre-trained network pixels are its features."""
    labels, made = train.labels(), {}
    taken = torch.zeros(len(train), dtype=torch.bool)
    for name, (label, count) in COHERENT.items():
        mine = (labels == (label + BETWEEN * draw) % 10).nonzero().squeeze(1)
        rows = train.select(mine)
        x = rows.fetch(rows.rows).x
        assert isinstance(x, Tensor)  # pictures
        inside = x.flatten(1).double() if features is None else hidden(features, rows)
        made[name] = mine[coherent(inside, count // shrink)]
        taken[made[name]] = True
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(draw))
    order = order[~taken[order]]
    for name, count in RANDOM.items():
        made[name], order = order[: count // shrink], order[count // shrink :]
    return {name: sorted(made[name].tolist()) for name in (*RANDOM, *COHERENT)}


@dataclass(eq=False)
class World:
    """Rows, forget sets, and what every process does alike with a network."""

    size: Size
    train: Data
    test: Data
    sets: dict[str, Data]
    device: torch.device
    keep: Path
    stop: float = inf
    began: float = field(default_factory=time.perf_counter)

    @property
    def left(self) -> float:
        """Seconds."""
        return self.stop - (time.perf_counter() - self.began)

    @property
    def held(self) -> Data:
        """Rows that nobody was trained on, for methods that ask for such."""
        return self.test

    @cached_property
    def always(self) -> Data:
        """Rows of no forget set: every network saw them."""
        gone = torch.cat([data.rows for data in self.sets.values()])
        return self.train.select((~torch.isin(self.train.rows, gone)).nonzero().squeeze(1))

    @cached_property
    def asked(self) -> dict[str, Data]:
        """Whose margins are kept."""
        count = self.size.looked_at
        others = {"retain": self.always, "validation": self.test}
        return self.sets | {name: data.select(evenly(len(data), count)) for name, data in others.items()}

    @cached_property
    def digest(self) -> str:
        """Of the rows whose margins are kept."""
        return digest(self.asked)

    def start(self, seed: int) -> Trained:
        """A network of its own for every seed."""
        torch.manual_seed(seed)
        x = self.train.fetch(self.train.rows[:1]).x
        assert isinstance(x, Tensor)  # pictures
        model = ResNet9(10, channels=int(x.shape[1]), width=self.size.width, small=self.size.small)
        network = Trained.of(model.to(self.device), recipe=self.size.recipe)
        return replace(network, init=network.weights, init_buffers=buffers_of(network.model))

    def missed(self, seed: int) -> list[str]:
        """The sets that the network of this seed never saw."""
        bits = PATTERNS[seed % len(PATTERNS)]
        return [name for i, name in enumerate(self.sets) if bits >> i & 1]

    def seen(self, seed: int) -> Data:
        """The rows that it did."""
        rows = self.train
        for name in self.missed(seed):
            rows = rows.without(self.sets[name])
        return rows

    def looked(self, network: Trained, *names: str) -> dict[str, Any]:
        """Margins of these rows, and the error on all test rows."""
        kept = {name: margins(network, self.asked[name]).half().cpu() for name in names}
        found = network.predict(self.test, 2048).argmax(dim=1).cpu() != self.test.labels().cpu()
        return {"margins": kept, "error": float(found.double().mean())}

    @property
    def together(self) -> list[str] | None:
        """For every row who asks for it: a coherent set is one request, others come alone."""
        ids = [str(i) for i in range(len(self.train))]
        for name in COHERENT:
            for i in self.sets[name].rows.tolist():
                ids[i] = name
        return ids

    def path(self, seed: int) -> Path:
        return self.keep / f"network-{seed}.pt"

    def read(self, seed: int) -> Trained:
        """A network that was trained."""
        found = torch.load(self.path(seed), map_location=self.device, weights_only=True)
        return prepared(self.start(seed), self.size.recipe).at(found["weights"], found["buffers"])

    def folds(self, seed: int) -> FoldModels:
        """Fold models that were trained."""
        known = torch.load(self.keep / f"folds-{seed}.pt", map_location="cpu", weights_only=True)
        keys = RowKeys(bytes.fromhex(known.pop("salt")), known.pop("keys"))
        known["buffers"] = {name: value.to(self.device) for name, value in known["buffers"].items()}
        return FoldModels(keys=keys, **known | {"weights": known["weights"].to(self.device)})


@dataclass(eq=False)
class Training:
    """Networks, their margins and fold models, written into a folder as they come."""

    world: World
    fleet: Fleet
    found: dict[str, Any] = field(default_factory=lambda: {"networks": [], "unlearned": []})

    def networks(self, seeds: list[int]) -> float:
        """Train some side by side, look at them, and say how long each took, were it alone as fast."""
        world = self.world
        began = time.perf_counter()
        made = self.fleet.fit([Job(world.start(seed), world.seen(seed), seed) for seed in seeds])
        took = (time.perf_counter() - began) / len(seeds)
        for seed, network in zip(seeds, made, strict=True):
            write(world.path(seed), {"weights": network.weights, "buffers": buffers_of(network.model)})
            told = {"seed": seed, "missed": world.missed(seed), "seconds": took}
            self.found["networks"].append(told | world.looked(network, *world.asked))
            print(f"{seed}: {took:.2f} s, test error {self.found['networks'][-1]['error']:.2%}", flush=True)
        print(f"{world.left:.0f} s left", flush=True)
        return took

    def fold_models(self, seed: int) -> None:
        """Three, on two thirds of all rows each; they are of no network of the design and serve several."""
        world, ids = self.world, self.world.together
        beside = prepared(world.start(seed), world.size.recipe)
        executor = FleetExecutor(fleet=self.fleet)
        made = train_fold_models(beside, world.train, folds=FOLDS, groups=ids, seed=seed, executor=executor)
        told = {"weights": made.weights, "part": made.part, "keys": made.keys.digests, "salt": made.keys.salt.hex(),
                "buffers": made.buffers}  # fmt: skip
        write(world.keep / f"folds-{seed}.pt", told)
        print(f"fold models {seed}, {world.left:.0f} s left", flush=True)

    def truncated(self, seeds: list[int], fraction: float) -> None:
        """Retraining that ends early: what was missed is what was asked to be forgotten, so one serves several sets."""
        world = self.world
        epochs = max(1, round(fraction * world.size.recipe.epochs))
        began = time.perf_counter()
        made = self.fleet.fit([Job(world.start(seed), world.seen(seed), seed, epochs) for seed in seeds])
        took, cut = (time.perf_counter() - began) / len(seeds), epochs / world.size.recipe.epochs
        for seed, network in zip(seeds, made, strict=True):
            share = epochs * len(world.seen(seed)) / (world.size.recipe.epochs * len(world.train))
            for name in world.missed(seed):
                told = {"seed": seed, "set": name, "method": f"truncated-retrain, {cut:.0%}", "settings": "{}",
                        "seconds": took, "share": share}  # fmt: skip
                self.found["unlearned"].append(told | world.looked(network, name, "retain", "validation"))
        print(f"{epochs} epochs: {took:.2f} s, {world.left:.0f} s left", flush=True)

    def go(self, seeds: list[int], folds: list[int], about: str, cut: dict[float, list[int]] | None = None) -> None:
        """Networks with fold models between them as long as there is time; after the first, retraining cut short."""
        at_once, took = len(self.fleet.lanes), 0.0
        size = self.world.size.recipe.epochs
        said = f"{about}; {accelerator(self.world.device)}, {size} epochs, {at_once} networks at once"
        groups = [seeds[i : i + at_once] for i in range(0, len(seeds), at_once)]
        for i, group in enumerate(groups):
            if self.world.left < 1.2 * took * len(group):
                print(f"no time for seeds from {group[0]} on", flush=True)
                break
            took = self.networks(group)
            self.save(seeds[0], said)
            # One after another, so that a run that ends early has some for every few networks.
            done, due = (-(-k * len(folds) // len(groups)) for k in (i, i + 1))
            for fold in folds[done:due]:
                if self.world.left > 2.5 * took:  # three networks on two thirds of the rows each
                    self.fold_models(fold)
            if i == min(1, len(groups) - 1):
                for fraction, cuts in (cut or {}).items():
                    for k in range(0, len(cuts), at_once):
                        self.truncated(cuts[k : k + at_once], fraction)
        write(self.world.keep / f"trained-{seeds[0]}.pt", self.found | {"about": said})

    def save(self, first: int, said: str) -> None:
        """Margins in a file that can be kept beside the code; after every group, for whatever comes next may break."""
        about = About(self.world.digest, recipe_of(self.world.size.recipe), said)
        keep(self.world.keep / f"margins-{first}.npz", self.found["networks"], self.world.asked, about)


def write(path: Path, what: object) -> None:
    """Under another name first: who waits for the file finds it whole."""
    torch.save(what, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def waited(world: World, parts: int = 0, after: Path | None = None) -> None:
    """Until all networks are there, and what must be ready before them, or it is too late."""
    while len(list(world.keep.glob("trained-*.pt"))) < parts and world.left > 0:
        time.sleep(0.2)
    while after is not None and not after.exists() and world.left > 0:
        time.sleep(0.2)


def flags(doc: str | None) -> Flags:
    parser = Flags(doc).data("folder with images and weights").device()
    parser.add_argument("--tiny", action="store_true", help="digits and a narrow network, for a CPU")
    parser.add_argument("--keep", type=Path, default=Path("klom"), help="folder for networks and margins")
    parser.add_argument("--draw", type=int, default=0, choices=(0, 1), help="which forget sets; 1: those to choose on")
    parser.add_argument("--first", type=int, default=0, help="the first seed, a multiple of 16; others follow")
    parser.add_argument("--networks", type=int, default=16)
    parser.add_argument("--folds", type=int, default=1, help="sets of fold models, three networks each")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--parts", type=int, default=1, help="processes that train, each with a --first of its own")
    parser.add_argument("--stop", type=float, default=inf, help="seconds after which nothing new begins")
    parser.add_argument("--after", type=Path, help="begin when this file is there; compile and read meanwhile")
    return parser


def opened(options: argparse.Namespace) -> World:
    """Rows on their device, and the sets that were drawn."""
    device = device_of(options)
    if options.tiny:
        pair = load("digits")
        train, test = (Data.of(tuple(part.fetch(part.rows[:300])[:2])) for part in (pair.train, pair.test))
        numbers = forget_sets(train, None, shrink=50, draw=options.draw)
        size = tiny()
    else:
        train, test = (on_device(data, device) for data in cifar10(options.data))
        numbers = json.loads(SETS[options.draw].read_text(encoding="utf-8"))["sets"]
        size = full(options.epochs, device.type == "cuda")
    sets = {name: train.select(rows) for name, rows in numbers.items()}
    options.keep.mkdir(parents=True, exist_ok=True)
    return World(size, train, test, sets, device, options.keep, options.stop)


def write_sets(options: argparse.Namespace) -> None:
    """Draw the sets once, for all processes."""
    path = find_weights("allcnn-cifar100.safetensors", options.data)
    assert path is not None, "the pre-trained weights are not there"
    features = Trained.of(load_pretrained(AllCNN(10), path))
    found = forget_sets(cifar10(options.data)[0], features, draw=options.draw)
    said = {"command": note("klom"), "sets": found}
    SETS[options.draw].write_text(json.dumps(said) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    parser = flags(__doc__)
    parser.add_argument("what", choices=("sets", "train"))
    parser.add_argument("--cuts", type=int, default=0, help="retrainings cut short, of each length")
    parser.add_argument("--at-once", type=int, default=2, help="networks that are trained side by side")
    parser.add_argument("--plain", action="store_true", help="do not compile the network")
    options = parser.parse_args(arguments)
    with quiet(), matmul("tf32"):
        if options.what == "sets":
            write_sets(options)
            return
        world = opened(options)
        compiled = False if options.plain else None
        fleet = Fleet(world.start(options.first), world.train, at_once=options.at_once, compiled=compiled)
        print(f"ready after {time.perf_counter() - world.began:.0f} s", flush=True)
        waited(world, after=options.after)
        seeds, folds, cuts = (
            [options.first + base + step * i for i in range(count)]
            for base, step, count in ((0, 1, options.networks), (5000, FOLDS, options.folds), (7200, 1, options.cuts))
        )
        Training(world, fleet).go(seeds, folds, note("klom"), dict.fromkeys(CUT, cuts) if cuts else None)


if __name__ == "__main__":
    main()
