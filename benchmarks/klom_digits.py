"""KLoM and an attacker for every method of the package, on digits and a CPU: what each reaches for which price.

    python benchmarks/klom_digits.py choose --out klom-digits-choose.jsonl      # settings, on other rows and seeds
    python benchmarks/klom_digits.py run --out klom-digits.pt --chosen klom-digits-choose.jsonl
    python benchmarks/klom_page.py klom-digits.pt --out results/klom-digits.jsonl

The problem is that of `benchmarks/frontier_second.py`: 1,200 digits, a perceptron with two hidden layers, one person's
40 ordinary rows (*some*) and one annotator's 40 mislabelled rows (*wrong*). Every network misses either, neither or
both, as in `benchmarks/klom.py`; so half of them are originals and half retrained networks for each request. Every
method that goes on training has the same grid of rates and epochs, out-of-fold distillation that of rounds and weights;
the setting is chosen whose margins on the forgotten rows come nearest to retrained networks' means, among those that
keep the test error within a point and cost at most a quarter of a training. Methods without such settings are tried as
they come; one whose first request takes more than `--patience` seconds is left out and said so.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Any

import torch

from spotlessnet.core.data import Data
from spotlessnet.core.errors import SpotlessError
from spotlessnet.core.progress import Meter, quiet
from spotlessnet.core.scrub import METHODS, Scrub
from spotlessnet.core.split import Request, Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods import OutOfFoldDistillation, Retrain
from spotlessnet.precomputed.fold_models import FoldModels, train_fold_models
from spotlessnet.readouts import Error
from spotlessnet.readouts.margin import margins
from spotlessnet.training.fit_many import fit_many
from spotlessnet.training.many import Executor, Finished, Task
from spotlessnet.training.tuning import Tuning

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, note, use_threads
from benchmarks.frontier_second import FOLDS, PROBLEMS, rows_of

PROBLEM = PROBLEMS["digits"]
SETS = ("some", "wrong")
LEFT_OUT = ("retrain", "within-budget", "mixed-linear", "hiding", "sisa", "fisher", "variational")
"""The reference, a wrapper, for another network, for classes, trained otherwise; the last two add noise alone."""

DEAREST = 0.25
TOLERANCE = 0.01


@dataclass(eq=False)
class World:
    """Rows, requests, and networks that miss some of them."""

    train: Data
    test: Data
    sets: dict[str, Data]
    networks: dict[int, Trained]

    @staticmethod
    def of(draw: int, count: int) -> "World":
        """All networks as one program."""
        train, test, chosen = rows_of(PROBLEM, None, draw)
        sets = {name: train.select(chosen[name]) for name in SETS}
        seeds = [1000 * draw + i for i in range(count)]
        begun = [_start(seed) for seed in seeds]
        keep = torch.ones(count, len(train), dtype=torch.bool)
        for i in range(count):
            for name in missed(i):
                keep[i, sets[name].rows] = False
        starts = torch.stack([one.weights for one in begun])
        made = fit_many(begun[0], train, seeds=seeds, keep=keep, starts=starts)
        networks = {i: replace(one.at(w), init=one.weights) for i, (one, w) in enumerate(zip(begun, made, strict=True))}
        return World(train, test, sets, networks)

    def seen(self, i: int) -> Data:
        """The rows of a network."""
        rows = self.train
        for name in missed(i):
            rows = rows.without(self.sets[name])
        return rows

    def split(self, i: int, name: str) -> Split:
        """A request to one of its originals."""
        half = len(self.test) // 2
        held, judged = self.test.select(range(half)), self.test.select(range(half, len(self.test)))
        kept = self.seen(i).without(self.sets[name])
        return Split(self.sets[name], kept, judged, held, request=Request(mislabelled=name == "wrong"))

    def originals(self, name: str) -> list[int]:
        return [i for i in self.networks if name not in missed(i)]

    def looked(self, network: Trained, *names: str) -> dict[str, Any]:
        """Margins and test error."""
        half = len(self.test) // 2
        always = self.train.select(range(80, len(self.train), 4))
        asked = self.sets | {"retain": always, "validation": self.test.select(range(half, len(self.test)))}
        error = float(Error("test")(network, self.split(0, "some")))
        return {"margins": {n: margins(network, asked[n]).float() for n in names}, "error": error}


def missed(i: int) -> list[str]:
    """The requests whose rows a network never saw."""
    return [name for bit, name in enumerate(SETS) if (0, 3, 1, 2)[i % 4] >> bit & 1]


def _start(seed: int) -> Trained:
    began = Trained.of(PROBLEM.network(seed), recipe=PROBLEM.recipe)
    return replace(began, init=began.weights)


def grid() -> dict[str, list[dict[str, Any]]]:
    """Settings of every method by name."""
    found: dict[str, list[dict[str, Any]]] = {}
    lr = PROBLEM.recipe.lr
    for entry in METHODS.entries():
        kind = entry.thing
        if entry.name in LEFT_OUT:
            continue
        own = {f.name for f in fields(kind)}  # type: ignore[arg-type]  # every method is a dataclass
        if kind is OutOfFoldDistillation:
            squares = {"targets": "in minus out", "temperature": inf, "retain_temperature": 1.0}
            budgets = ({"compute_budget": 0.24, "epochs": epochs} for epochs in (5, 10, 20, 40))
            each = [b | more for b in budgets for more in ({}, squares, squares | {"forget_weight": 0.5})]
            found[entry.name] = each
        elif entry.name == "truncated-retrain":
            found[entry.name] = [{"epoch_fraction": 0.2}]
        elif issubclass(kind, Tuning):
            found[entry.name] = [{"epochs": e, "lr": r * lr} for e in (2, 5) for r in (0.03, 0.1, 0.3, 1.0)]
        elif "lr_scale" in own and "epochs" in own:
            found[entry.name] = [{"epochs": e} for e in (2, 5)]
        else:
            found[entry.name] = [{}]
    return found


class AskedError(Exception):
    """The trainings that fold models need, before any of them is done."""


@dataclass(frozen=True)
class Collecting(Executor):
    """Says what must be trained, or hands out what was."""

    made: tuple[Finished, ...] = ()

    def run(self, tasks: Sequence[Task], data: Data, label: str) -> list[Finished]:
        if not self.made:
            raise AskedError(tasks)
        return list(self.made)


def all_folds(world: World, which: Sequence[int]) -> dict[int, FoldModels]:
    """Three fold models for each of these originals, by id, all trained as one program."""

    def folds_of(i: int, executor: Executor) -> FoldModels:
        held = world.split(i, "some").validation
        told = {"folds": FOLDS, "groups": "id", "held": held, "seed": i, "executor": executor}
        return train_fold_models(world.networks[i], world.seen(i), **told)

    keep, seeds, starts = [], [], []
    for i in which:
        try:
            folds_of(i, Collecting())
        except AskedError as asked:
            for task in asked.args[0]:
                seen = torch.zeros(len(world.train), dtype=torch.bool)
                seen[world.seen(i).rows[task.keep[0]]] = True
                keep.append(seen)
                seeds.append(task.seeds[0])
                starts.append(task.begun[0].weights)
    begun = _start(0)
    made = fit_many(begun, world.train, seeds=seeds, keep=torch.stack(keep), starts=torch.stack(starts))
    parts = made.split(FOLDS)
    return {
        i: folds_of(i, Collecting(made=tuple({"weights": w} for w in part)))
        for i, part in zip(which, parts, strict=True)
    }


def served(world: World, i: int, name: str, scrub: Scrub, folds: FoldModels | None) -> tuple[Trained, float, float]:
    """The network after the request, seconds, and the share of a training."""
    split, network = world.split(i, name), world.networks[i]
    if isinstance(scrub, OutOfFoldDistillation):
        scrub = replace(scrub, fold_models=folds)
    with Meter() as meter:
        done = scrub.reseeded(i)(network, split)
    whole = Retrain().cost(network, split).usual * len(split.whole) / len(split.retain)
    return network.at(done.mean), meter.seconds, scrub.cost(network, split).usual / whole


def choose(options: argparse.Namespace) -> None:
    """Every setting on a few originals; a line for each."""
    world = World.of(61, options.networks or 16)
    folds = all_folds(world, [i for i in world.networks if len(missed(i)) < len(SETS)])
    slow: set[str] = set()
    with options.out.open("a", encoding="utf-8") as file:
        for name, told in ((n, s) for n in grid() if options.only in n for s in grid()[n]):
            for cohort in SETS if name not in slow else ():
                goal = [i for i in world.networks if cohort in missed(i)]
                mean = torch.stack([margins(world.networks[i], world.sets[cohort]) for i in goal]).mean(dim=0)
                usual = sum(float(Error("test")(world.networks[i], world.split(0, cohort))) for i in goal) / len(goal)
                offs, worse, share = [], [], 0.0
                for i in world.originals(cohort)[:4]:
                    try:
                        after, took, share = served(world, i, cohort, METHODS.find(name)(**told), folds[i])
                    except (SpotlessError, RuntimeError) as error:
                        print(f"{name} {told}: {error}"[:200], flush=True)
                        break
                    offs.append(margins(after, world.sets[cohort]) - mean)
                    worse.append(float(Error("test")(after, world.split(0, cohort))) - usual)
                    if took > options.patience:
                        slow.add(name)
                        break
                if len(offs) < 4:
                    continue
                # The mean over networks, for one network's own chance is not the method's fault.
                off = float(torch.stack(offs).mean(dim=0).square().mean().sqrt())
                line = {"method": name, "set": cohort, "settings": told, "off": off, "share": share,
                        "worse": sum(worse) / len(worse), "note": note("klom_digits")}  # fmt: skip
                file.write(json.dumps(line) + "\n")
                print(f"{name}, {cohort}, {told}: off {off:.2f}, {share:.1%}, {line['worse']:+.2%}", flush=True)
    print(f"left out, for they are slow: {sorted(slow)}", flush=True)


def chosen(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, request and settings. Where no setting keeps errors and price, the one nearest to that."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for name, cohort in dict.fromkeys((line["method"], line["set"]) for line in lines):
        mine = [line for line in lines if (line["method"], line["set"]) == (name, cohort)]
        fit = [line for line in mine if line["worse"] <= TOLERANCE and line["share"] <= DEAREST]
        best = min(fit, key=lambda line: line["off"]) if fit else min(mine, key=lambda line: line["worse"])
        yield name, cohort, best["settings"]


def run(options: argparse.Namespace) -> None:
    """Chosen settings on other rows and networks."""
    world = World.of(62, options.networks or 80)
    found: dict[str, Any] = {"networks": [], "unlearned": [], "about": note("klom_digits"), "rows": {}}
    for i, network in world.networks.items():
        told = {"seed": i, "missed": missed(i), "seconds": 0.0}
        found["networks"].append(told | world.looked(network, *SETS, "retain", "validation"))
    folds = all_folds(world, [i for i in world.networks if len(missed(i)) < len(SETS)])
    print("trained", flush=True)
    for name, cohort, settings in chosen(options.chosen):
        for i in world.originals(cohort):
            try:
                after, took, share = served(world, i, cohort, METHODS.find(name)(**settings), folds[i])
            except (SpotlessError, RuntimeError) as error:
                print(f"{name} {settings}: {error}"[:200], flush=True)
                continue
            told = {"seed": i, "set": cohort, "method": name, "seconds": took, "share": share}
            found["unlearned"].append(told | world.looked(after, cohort, "retain", "validation"))
        torch.save(found, options.out)
        print(f"{name}, {cohort}: {settings}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = Flags(__doc__).out(required=True)
    parser.add_argument("what", choices=("choose", "run"))
    parser.add_argument("--networks", type=int, help="16 to choose, 80 to run")
    parser.add_argument("--chosen", type=Path)
    parser.add_argument("--only", default="", help="methods whose name holds this text")
    parser.add_argument("--patience", type=float, default=3.0)
    options = parser.parse_args(arguments)
    use_threads()
    with quiet():
        (choose if options.what == "choose" else run)(options)


if __name__ == "__main__":
    main()
