"""Requests to the networks of `benchmarks/klom.py`, by every method of the package.

    python benchmarks/klom_serve.py run --data DIR --keep FOLDER --out served-0.pt
    python benchmarks/klom_serve.py run --data DIR --keep FOLDER --out ours.pt --only ours --ours 'NAME={"epochs": 5}'
    python benchmarks/klom_serve.py choose --data DIR --keep FOLDER --draw 1 --out choose.jsonl   # for --chosen
    python benchmarks/klom_serve.py choose --data DIR --keep FOLDER --draw 1 --out choose.jsonl --only ours
    python benchmarks/klom_page.py FOLDER/trained-*.pt served-*.pt --out results/klom.jsonl

Several processes side by side (`--worker 0 --workers 4` and so on) share the work; each waits until the networks are
trained. Without `--chosen` a method that goes on training has one epoch at a twentieth of the training's rate, a fifth
where it spoils the network first; out-of-fold distillation 5 % of a training, as shipped and with two other targets.
`--ours` gives settings of ours by name instead. `choose` tries a grid of three rates, and of all settings of ours, on
other rows and networks (`--draw 1`); chosen is the one whose margins on the forgotten rows come nearest to the mean of
retrained networks, among those that keep the test error within a point. Costs hold what BatchNorm's statistics take
that are estimated anew at the end.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spotlessnet.core.buffers import MOST
from spotlessnet.core.errors import SpotlessError
from spotlessnet.core.progress import Meter, quiet
from spotlessnet.core.scrub import METHODS, Scrub, Sizes
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods import OutOfFoldDistillation
from spotlessnet.operators.precision import matmul
from spotlessnet.precomputed.fold_models import FoldModels, measure_held_out
from spotlessnet.training.tuning import Tuning

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import accelerator, note
from benchmarks.klom import World, flags, opened, waited, write

LEFT_OUT = {
    "retrain": "the reference",
    "truncated-retrain": "trained by `benchmarks/klom.py` in the same design",
    "within-budget": "a wrapper of others",
    "mixed-linear": "for networks trained otherwise",
    "sisa": "for networks trained otherwise",
    "hiding": "for whole classes",
    "fisher": "noise for every weight, by the exact Fisher matrix of all rows",
    "variational": "noise for every weight, fitted in many epochs",
    "ntk": "solves over all rows",
    "newton": "solves over all rows",
}
OURS = "out-of-fold-distillation"
RATES = (0.01, 0.05, 0.2)
USUAL, FAST = 0.05, 0.2
"""Where no setting was chosen; the second for methods that spoil the network first and must repair it."""

BUDGET = 0.05
TOLERANCE = 0.01
EVERY = 5
"""Of so many rows one is written down to choose by."""

LAST = ("bad-teacher", "rewind", "respond-and-finetune", "noisy-finetune", "ssd", "short-retrain")
"""Methods that take longest, or broke before: they are asked when all others have served as many networks as asked."""

FACTS = ("lr", "rounds", "rows_in_a_round", "step_scale", "parts_taken_back", "cost_in_trainings")
"""What ours says of its steps."""

LARGE = ("random, large", "coherent, large")
OWN: dict[str, dict[str, Any]] = {
    "scrub": {"away": 1},
    "lotus": {"epochs": 2},
    "amun": {"steps": 10},
    "respond-and-finetune": {"epoch_fraction": 0.05, "coreset": 100},
    "noisy-finetune": {"epochs": 1, "batch_size": 512},
}
"""What keeps a method near an epoch, where one epoch alone does not."""


def own_settings(world: World, given: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """Settings of ours by what is added to its name: as given, or as shipped and with other targets."""
    recipe = world.size.recipe
    # Statistics of BatchNorm are estimated anew afterwards, which is paid from the same budget.
    rest = min(MOST, len(world.train)) / (3 * recipe.epochs * len(world.train))
    budget = {"compute_budget": world.size.times * BUDGET - rest}
    if given:
        pairs = [text.split("=", 1) for text in given]
        return {name: budget | from_json(told) for name, told in pairs}
    corrected = {"targets": "in minus out"}
    return {
        "": budget,
        "in minus out": budget | corrected,
        "in minus out, half of the visits": budget | corrected | {"forget_weight": 0.5},
        "squares": budget | corrected | {"temperature": inf, "retain_temperature": 1.0, "forget_weight": 0.5},
    }


def grid(world: World, given: list[str] | None = None) -> dict[str, list[dict[str, Any]]]:
    """Settings of every method by name."""
    found: dict[str, list[dict[str, Any]]] = {}
    recipe = world.size.recipe
    for entry in METHODS.entries():
        name, kind = entry.name, entry.thing
        if name in LEFT_OUT:
            continue
        own = {f.name for f in fields(kind)}  # type: ignore[arg-type]  # every method is a dataclass
        if kind is OutOfFoldDistillation:
            found[name] = list(own_settings(world, given).values())
        elif issubclass(kind, Tuning) and "lr_scale" not in own:
            found[name] = [{"epochs": 1, "lr": r * recipe.lr} | OWN.get(name, {}) for r in RATES]
        else:
            found[name] = [OWN.get(name, {})]
    return found


@dataclass(frozen=True)
class Unit:
    """One request: a method, its settings, a forget set and an original."""

    method: str
    settings: str
    name: str
    seed: int
    label: str = ""
    """What is added to the method's name, where there are several settings of it."""

    @property
    def told(self) -> dict[str, Any]:
        return from_json(self.settings)


def from_json(text: str) -> dict[str, Any]:
    """Settings as `spelt` wrote them."""
    return {key: float(v) if v == "inf" else v for key, v in json.loads(text).items()}


def spelt(settings: dict[str, Any]) -> str:
    """As JSON, which knows no infinity."""
    return json.dumps({key: "inf" if v == inf else v for key, v in settings.items()}, sort_keys=True)


@dataclass(eq=False)
class Server:
    """Serves units one after another, and remembers what several of them share."""

    world: World
    folds: list[int]
    shares: dict[tuple[str, str], float] = field(default_factory=dict)
    broken: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.network = cache(self.world.read)
        self.fold_models = cache(self._fold_models)

    def _fold_models(self, which: int, seed: int) -> FoldModels:
        """As `train_fold_models` gives them beside this original."""
        network, world = self.network(seed), self.world
        asked = replace(self.world.folds(which), origin=network.weights)
        return measure_held_out(asked, network, world.train, world.held)

    def split(self, unit: Unit) -> Split:
        """The request."""
        world = self.world
        return Split(world.sets[unit.name], self.kept(unit.name, unit.seed), test=world.test, validation=world.held)

    def kept(self, name: str, seed: int) -> Any:
        return self.world.seen(seed).without(self.world.sets[name])

    def scrub(self, unit: Unit) -> Scrub:
        """The method, with fold models that this original's turn brings."""
        made: Scrub = METHODS.find(unit.method)(**unit.told)
        if isinstance(made, OutOfFoldDistillation) and self.folds:
            which = self.folds[unit.seed // 2 % len(self.folds)]
            made = replace(made, fold_models=self.fold_models(which, unit.seed))
        return made.reseeded(unit.seed)

    def share(self, unit: Unit, scrub: Scrub, network: Trained, split: Split) -> float:
        """Of the FLOPs of a training on all rows; alike for all originals."""
        key = unit.method + unit.settings, unit.name
        if key not in self.shares:
            sizes = Sizes.of(network, split)
            training = sizes.gradient * len(split.whole) * self.world.size.recipe.epochs
            extra = min(MOST, len(split.retain)) * sizes.answer
            self.shares[key] = (scrub.cost(network, split).usual + extra) / training
        return self.shares[key]

    def served(self, unit: Unit) -> dict[str, Any] | None:
        """What came of it; nothing where the method broke."""
        network, split = self.network(unit.seed), self.split(unit)
        scrub = self.scrub(unit)
        try:
            with Meter(self.world.device) as meter:
                done = scrub(network, split)
            share = self.share(unit, scrub, network, split)
        except (RuntimeError, SpotlessError, ArithmeticError) as error:  # a method that breaks is a result too
            self.broken[unit.method] = self.broken.get(unit.method, 0) + 1
            print(f"{unit}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            return None
        after = network.at(done.mean, done.buffers)
        told = {"seed": unit.seed, "set": unit.name, "method": unit.method + unit.label, "settings": unit.settings}
        facts = done.diagnostics.record()
        known = {name: float(facts[name]) for name in FACTS if facts.get(name) is not None}
        told |= {"seconds": meter.seconds, "share": share, "facts": known}
        return told | self.world.looked(after, unit.name, "retain", "validation")


def originals(world: World, seeds: list[int], name: str) -> list[int]:
    return [seed for seed in seeds if name not in world.missed(seed)]


def to_choose(
    world: World, seeds: list[int], count: int, given: list[str] | None = None, only: str | None = None
) -> Iterator[Unit]:
    """Every setting on a few originals of the large sets, ours first, where there are several to choose from."""
    found = sorted(grid(world, given).items(), key=lambda item: (item[0] != OURS, item[0] in LAST))
    found = [one for one in found if only is None or (one[0] == OURS) == (only == "ours")]
    for k in range(count):
        for method, every in found:
            for settings in every if len(every) > 1 and method not in LAST else ():
                for name in LARGE:
                    yield Unit(method, spelt(settings), name, originals(world, seeds, name)[k])


def listed(world: World, given: list[str] | None = None) -> list[tuple[str, str, dict[str, Any]]]:
    """Where nothing was chosen: method, label and settings; ours first, and methods last that take long."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    for method, every in sorted(grid(world).items(), key=lambda item: item[0] in LAST):
        if method == OURS:
            own = own_settings(world, given).items()
            found = [(method, f", {name}" if name else "", settings) for name, settings in own] + found
        else:
            rate = FAST if method in ("msg", "ct") else USUAL
            found.append((method, "", every[RATES.index(rate) if len(every) > 1 else 0]))
    return found


Listed = list[tuple[str, str, dict[str, dict[str, Any]]]]
"""Method, label, and settings by forget set."""


def to_run(world: World, seeds: list[int], found: Listed, few: int = 6) -> Iterator[Unit]:
    """Large sets before small ones, network by network; methods that take long when the others served a few."""
    last = [one for one in found if one[0] in LAST]
    others = [one for one in found if one[0] not in LAST]
    small = tuple(name for name in world.sets if name not in LARGE)
    first, rest = slice(0, few), slice(few, None)
    for methods, sets, part in ((others, LARGE, first), (last, LARGE, slice(0, 3)), (others, LARGE, rest),
                                (others, small, slice(None)), (last, LARGE, slice(3, None))):  # fmt: skip
        mine = {name: originals(world, seeds, name)[part] for name in sets}
        for i in range(max((len(each) for each in mine.values()), default=0)):
            for method, label, settings in methods:
                for name in sets:
                    if i < len(mine[name]):
                        yield Unit(method, spelt(settings[name]), name, mine[name][i], label)


def of_worker(units: list[Unit], options: argparse.Namespace) -> list[Unit]:
    """One process's share. All requests to a network go to one where fold models are asked about it once for all."""
    worker, workers = options.worker, options.workers
    if options.only == "ours":
        return [unit for unit in units if unit.seed // 2 % workers == worker]
    return units[worker::workers]


def choose(server: Server, seeds: list[int], options: argparse.Namespace) -> None:
    """A line for each request: how far off margins are, what it costs; `chosen` reads them."""
    world = server.world
    paths = world.keep.glob("trained-*.pt")
    trained = [one for path in paths for one in torch.load(path, weights_only=True)["networks"]]
    units = list(to_choose(world, seeds, options.count, options.ours, options.only))
    with options.out.open("a", encoding="utf-8") as file:
        for unit in units[options.worker :: options.workers]:
            if world.left < 2 or server.broken.get(unit.method, 0) > 1:
                continue
            found = server.served(unit)
            if found is None:
                continue
            goal = [one for one in trained if unit.name in one["missed"]]
            mean = torch.stack([one["margins"][unit.name].double() for one in goal]).mean(dim=0)
            worse = found["error"] - sum(one["error"] for one in goal) / len(goal)
            line = {"method": unit.method, "set": unit.name, "settings": unit.settings, "seed": unit.seed,
                    "gap": [round(float(v), 2) for v in (found["margins"][unit.name].double() - mean)[::EVERY]],
                    "worse": worse, "share": found["share"], "seconds": found["seconds"], "facts": found["facts"],
                    "note": note("klom_serve")}  # fmt: skip
            file.write(json.dumps(line) + "\n")
            file.flush()
            off = Tensor(line["gap"]).square().mean().sqrt()
            said = f"{unit.method} {unit.settings} {unit.name} {unit.seed}: {off:.2f}, {line['share']:.1%}"
            print(
                f"{said}, mean {Tensor(line['gap']).mean():+.2f}, {worse:+.2%}, {found['seconds']:.2f} s",
                flush=True,
            )
    print(f"worker {options.worker} ends with {world.left:.0f} s left", flush=True)


def chosen(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Settings by method and set: nearest to retraining in the mean over networks, errors kept where any does that."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    seeds: dict[tuple[str, str], dict[str, set[int]]] = {}
    for one in lines:
        seeds.setdefault((one["method"], one["set"]), {}).setdefault(one["settings"], set()).add(one["seed"])
    # Whoever served two networks has a smaller chance in his mean than who served one.
    shared = {key: set.intersection(*each.values()) for key, each in seeds.items()}
    found: dict[tuple[str, str], list[tuple[bool, float, str]]] = {}
    for method, name, settings in dict.fromkeys((one["method"], one["set"], one["settings"]) for one in lines):
        mine = [one for one in lines if (one["method"], one["set"], one["settings"]) == (method, name, settings)]
        mine = [one for one in mine if one["seed"] in shared[method, name]]
        if not mine:
            continue
        # The mean over networks, for one network's own chance is not the method's fault.
        off = float(torch.tensor([one["gap"] for one in mine]).mean(dim=0).square().mean().sqrt())
        worse = sum(one["worse"] for one in mine) / len(mine)
        rank = (worse > TOLERANCE, off if worse <= TOLERANCE else worse, settings)
        found.setdefault((method, name), []).append(rank)
    return {key: Unit("", min(each)[2], "", 0).told for key, each in found.items()}


def picked(world: World, options: argparse.Namespace) -> Listed:
    """Which methods with which settings for which forget set; small sets have what was chosen for large ones."""
    best = {} if options.chosen is None else chosen(options.chosen)
    made: Listed = []
    for method, label, told in listed(world, options.ours):
        if options.only is not None and (method == OURS) != (options.only == "ours"):
            continue
        if method == OURS and options.chosen is not None and not options.ours:
            if label:
                continue  # one setting of ours, like of any other method
        elif method == OURS:
            made.append((method, label, dict.fromkeys(world.sets, told)))
            continue
        each = {name: best.get((method, large_of(name)), told) for name in world.sets}
        made.append((method, label, each))
    return made


def large_of(name: str) -> str:
    """The large set of a kind.

    >>> large_of("random, small")
    'random, large'
    """
    return f"{name.split(',')[0]}, large"


def run(server: Server, seeds: list[int], options: argparse.Namespace) -> None:
    """Chosen settings on other rows and networks."""
    world = server.world
    about = f"{note('klom_serve')}; {accelerator(world.device)}, {world.size.recipe.epochs} epochs"
    found: dict[str, Any] = {"unlearned": [], "about": about, "digest": world.digest}
    every = to_run(world, seeds, picked(world, options))
    units = of_worker([unit for unit in every if options.sets in unit.name], options)
    saved, slow = time.perf_counter(), set[str]()
    for unit in units:
        if world.left < 3:
            print(f"no time from {unit} on", flush=True)
            break
        if server.broken.get(unit.method, 0) > 1 or unit.method in slow:
            continue
        began = time.perf_counter()
        made = server.served(unit)
        took = time.perf_counter() - began
        if took > options.patience:
            slow.add(unit.method)
            print(f"{unit} took {took:.0f} s and is asked no more", flush=True)
        if made is not None:
            found["unlearned"].append(made)
            said = f"{unit.method}{unit.label}, {unit.name}, {unit.seed}: {took:.1f} s"
            print(f"{said}, test error {made['error']:.2%}, {world.left:.0f} s left", flush=True)
        if time.perf_counter() - saved > 5:
            write(options.out, found)
            saved = time.perf_counter()
    write(options.out, found)


def main(arguments: list[str] | None = None) -> None:
    parser = flags(__doc__).out(required=True)
    parser.add_argument("what", choices=("choose", "run"))
    parser.add_argument("--worker", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", choices=("ours", "others"), help="these methods alone")
    parser.add_argument("--sets", default="", help="forget sets whose name holds this text, such as large")
    parser.add_argument("--ours", action="append", metavar="NAME=JSON", help="settings of ours; may be given again")
    parser.add_argument("--chosen", type=Path, help="what `choose` wrote; the usual settings unless given")
    parser.add_argument("--patience", type=float, default=inf, help="methods that take longer are asked no more")
    parser.add_argument("--count", type=int, default=2, help="originals of each set to choose on")
    options = parser.parse_args(arguments)
    with quiet(), matmul("tf32"):
        world = opened(options)
        waited(world, options.parts, options.after)
        seeds = sorted(int(path.stem.split("-")[1]) for path in world.keep.glob("network-*.pt"))
        folds = sorted(int(path.stem.split("-")[1]) for path in world.keep.glob("folds-*.pt"))
        (choose if options.what == "choose" else run)(Server(world, folds), seeds, options)


if __name__ == "__main__":
    main()
