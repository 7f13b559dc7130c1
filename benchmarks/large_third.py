"""Out-of-fold distillation at full size by the package itself: chosen on one seed and class, confirmed on others.

    python benchmarks/large_third.py run --data DIR --out results/large-third.jsonl --stop 520
    python benchmarks/large_third.py table --out results/large-third.jsonl

Full CIFAR-10, All-CNN (or ResNet), weight decay 5e-4, 20 epochs; requests and grouped folds are those of
`benchmarks/large_second.py`, trained several at once (`benchmarks/lanes.py`). On `--choose-seed` and `--choose-label`
every setting serves its request; what comes nearest to the retrained network's margins, row by row, among those that
keep retained and test errors within half a point, is written down as chosen. On `--seeds` and `--label`, which nothing
was chosen on, all settings are served again, so that the table shows those that were not chosen, too. *class* comes
last, for as many seeds as the time allows. Every request's rows are written as soon as they are known.
"""

import argparse
import copy
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from spotlessnet.auditing.rows import Row, append_rows
from spotlessnet.core.data import evenly
from spotlessnet.core.errors import SpotlessError
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.progress import quiet
from spotlessnet.core.row_keys import RowKeys
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.experiments.few import some
from spotlessnet.methods import OutOfFoldDistillation
from spotlessnet.methods.out_of_fold import method as distillation
from spotlessnet.models.all_cnn import AllCNN
from spotlessnet.operators.precision import matmul
from spotlessnet.precomputed.fold_models import WATCHED, FoldModels, measure_held_out
from spotlessnet.precomputed.grouped import grouped_folds, groups_of, joined_by_copies
from spotlessnet.readouts.linear_probe import LinearProbe

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, accelerator, device_of, note
from benchmarks.lanes import Lanes, Training
from benchmarks.large import FORGET, RECIPE, begin, counted, keep_margins, looks, masked, measured, requests
from benchmarks.large_second import ERRORS, FOLDS, LOSS, MARGIN, PROBE, Clock, chosen_among, table

FACTS = ("step_scale", "parts_taken_back", "lr", "rounds", "rows_in_a_round", "cost_in_trainings")
BUDGET = {"some": 0.01, "wrong": 0.05, "class": 0.05}
NEW: dict[str, Any] = {"targets": "in minus out"}
SQUARES: dict[str, Any] = {"temperature": inf, "retain_temperature": 1.0, "forget_weight": 0.3}
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "some": {"in minus out": NEW, "in minus out, held-out rows not asked": NEW, "as shipped": {}},
    "wrong": {"in minus out": NEW, "in minus out, half of the visits": NEW | {"forget_weight": 0.5}, "as shipped": {}},
    "class": {"as shipped": {}, "bias not lowered, squares": SQUARES},
}
"""At most three for a request."""


@dataclass(eq=False)
class Seed:
    """The networks of one seed."""

    seed: int
    start: Trained
    original: Trained
    folds: FoldModels
    retrained: dict[str, Trained]


@dataclass(eq=False)
class World:
    """The rows and requests of one class."""

    options: argparse.Namespace
    splits: dict[str, Split]

    @staticmethod
    def of(options: argparse.Namespace, label: int, device: torch.device) -> "World":
        mine = copy.copy(options)
        mine.label = label
        return World(mine, requests(mine, device))

    @property
    def whole(self) -> Any:
        return self.splits["some"].whole

    @cached_property
    def keys(self) -> tuple[RowKeys, Tensor]:
        keys = RowKeys.of(self.whole)
        return keys, keys.find(self.whole)

    def folds(self, seed: int) -> Tensor:
        """Which fold every row lies in: the rows of *some* in one, those of *wrong* in one."""
        ids = [str(i) for i in range(len(self.whole))]
        for cohort in ("some", "wrong"):
            for i in self.splits[cohort].forget.rows.tolist():
                ids[i] = cohort
        group = groups_of(self.whole, ids, FOLDS)
        assert group is not None  # there are ids
        return grouped_folds(joined_by_copies(group, self.keys[1]), FOLDS, torch.Generator().manual_seed(seed))


@dataclass(eq=False)
class Bench:
    """Trainings, requests and rows."""

    options: argparse.Namespace
    clock: Clock
    lanes: Lanes
    floors: dict[str, Trained] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=lambda: SETTINGS)
    script: str = "large_third"

    def prepared(self, world: World, seed: int, cohorts: Sequence[str] | None = None) -> Seed:
        """Original, fold models and the retrained networks of *some* and *wrong*, or as said, side by side."""
        start = begun(world.options, seed, device_of(self.options))
        drawn, whole = world.folds(seed), world.whole
        jobs = [Training(start, whole, seed)]
        cohorts = [c for c in ("some", "wrong") if c in self.options.cohorts] if cohorts is None else cohorts
        jobs += [Training(start, world.splits[c].retain, seed, order_of=whole) for c in cohorts]
        kept = [whole.select((drawn != k).nonzero().squeeze(1)) for k in range(FOLDS)]
        jobs += [Training(start, rows, seed + k) for k, rows in enumerate(kept)]
        took, made = measured(partial(self.lanes.fit, jobs), start.device)
        self.clock.longest = max(self.clock.longest, took / len(jobs))
        print(f"seed {seed}: {len(jobs)} trainings in {took:.1f} s, {self.clock.left:.0f} s left", flush=True)
        original, weights = made[0], torch.stack([one.weights for one in made[-FOLDS:]])
        keys, place = world.keys
        part = torch.zeros(1, len(whole), dtype=torch.long)
        part[0, place] = drawn
        folds = FoldModels(weights, keys, part, origin=original.weights.clone())
        held = world.splits["some"].validation
        assert held is not None  # given by `requests`
        folds = measure_held_out(folds, original, whole, held)
        folds = replace(folds, lack=folds.lacking(original, whole.select(evenly(len(whole), WATCHED))))
        print(f"seed {seed}: scales {folds.scales}, ratio {folds.gap_ratio}", flush=True)
        return Seed(seed, start, original, folds, dict(zip(cohorts, made[1:], strict=False)))

    def cohort(self, world: World, ready: Seed, cohort: str, out: Path) -> None:
        """Serve the request by every setting, and write the rows down."""
        split, retrained = world.splits[cohort], ready.retrained[cohort]
        name = f"{self.options.model}, {cohort}"
        seen = {"original": ready.original, "retrained": retrained}
        if cohort in self.floors:
            seen["floor"] = self.floors[cohort]
        self.floors[cohort] = retrained  # another seed's retrained network: what even retraining does not repeat
        how = f"{note(self.script)}; {accelerator(ready.start.device)}, trained in bfloat16, requests in TF32"
        about = f"{how}; class {world.options.label}"
        made = [Row(name, "fold models", "gap ratio", ready.seed, float(ready.folds.gap_ratio or 1))]
        for method, network in seen.items():
            made += looks(name, method, ready.seed, network, retrained, split)
        if cohort == "class":
            made += masked(name, ready.seed, ready.original, retrained, split)
            made += [Row(name, m, PROBE, ready.seed, probe(n, split)) for m, n in seen.items()]
        append_rows(out, [replace(row, note=about) for row in made])
        for method, settings in self.settings[cohort].items():
            asked = ready.folds
            if "not asked" in method:
                asked = replace(asked, scales=None, gap_ratio=None)
            budget = self.options.times * BUDGET[cohort]
            scrub = OutOfFoldDistillation(compute_budget=budget, fold_models=asked, **settings)
            rows = list(self.served(name, method, scrub, ready, world, cohort, seen))
            append_rows(out, [replace(row, note=about) for row in rows])
        keep_margins(out, name, ready.seed, seen, some(split.forget, FORGET))

    def served(
        self,
        name: str,
        method: str,
        scrub: OutOfFoldDistillation,
        ready: Seed,
        world: World,
        cohort: str,
        seen: dict[str, Trained],
    ) -> Iterator[Row]:
        """One request, and what came of it."""
        split = world.splits[cohort]
        # Where the bias of the head is not lowered first, what is taught must come from layers below it.
        left = patch.object(distillation, "suppress_class_bias", lambda trained, *_: trained.weights)
        with left if "bias not lowered" in method else nullcontext():
            yield from self.looked(name, method, partial(scrub, ready.original, split), ready, cohort, split, seen)

    def looked(
        self,
        name: str,
        method: str,
        work: Callable[[], Gaussian],
        ready: Seed,
        cohort: str,
        split: Split,
        seen: dict[str, Trained],
    ) -> Iterator[Row]:
        """Do the work, and look at the network."""
        retrained = ready.retrained[cohort]
        try:
            took, found = measured(work, ready.start.device)
        except (RuntimeError, SpotlessError) as error:  # a method that breaks is a result too, and others go on
            print(f"{name}, {method}, seed {ready.seed}: {error}", flush=True)
            return
        network = seen[method] = ready.original.at(found.mean)
        rows = [replace(row, seconds=took) for row in looks(name, method, ready.seed, network, retrained, split)]
        yield from rows
        facts = found.diagnostics.record()
        yield from (Row(name, method, f, ready.seed, float(facts[f])) for f in FACTS if facts.get(f) is not None)
        if cohort == "class":
            yield Row(name, method, PROBE, ready.seed, probe(network, split))
        if ready.seed == self.options.choose_seed and method == next(iter(self.settings[cohort])):
            yield counted(work, ready.start, split.whole, name, method, ready.seed)
        known = {row.readout: row.value for row in rows}
        said = ", ".join(f"{k} {known[k]:.3f}" for k in (MARGIN, LOSS, *ERRORS))
        more = ", ".join(f"{f} {facts[f]:.3g}" for f in FACTS if facts.get(f) is not None)
        print(f"{name}, {method}, seed {ready.seed}, {took:.2f} s: {said}; {more}", flush=True)

    def classes(self, world: World, ready: list[Seed], out: Path) -> None:
        """*class*, as many seeds at once as there are lanes."""
        count = len(self.lanes.lanes)
        for i in range(0, len(ready), count):
            few = ready[i : i + count]
            if not self.clock.allows(1.3 * len(few)):
                return
            split = world.splits["class"]
            jobs = [Training(one.start, split.retain, one.seed, order_of=split.whole) for one in few]
            for one, made in zip(few, self.lanes.fit(jobs), strict=True):
                one.retrained["class"] = made
                if self.clock.left > 3:
                    self.cohort(world, one, "class", out)


def begun(options: argparse.Namespace, seed: int, device: torch.device) -> Trained:
    """Before training: pre-trained or, for a rehearsal, small and with random weights."""
    if not options.tiny:
        made = begin(options, seed, device)
        size = getattr(options, "batch_size", None)
        if size is None or made.recipe is None:
            return made
        # The rate grows with the batch: an epoch then goes as far.
        return replace(made, recipe=made.recipe.but(batch_size=size, lr=made.recipe.lr * size / made.recipe.batch_size))
    network = AllCNN(10, filters=(6, 9), seed=seed).to(device).eval()
    return Trained.of(network, init=network, recipe=RECIPE.but(epochs=options.epochs, lr=0.05))


def probe(network: Trained, split: Split) -> float:
    """Of the last hidden layer, on some of the rows."""
    return float(LinearProbe()(network, replace(split, kept=some(split.retain, 5000))))


def run(options: argparse.Namespace) -> None:
    """The choosing seed, then all others, then *class*."""
    clock, device = Clock(options.stop), device_of(options)
    choosing = World.of(options, options.choose_label, device)
    print(f"rows read, {clock.left:.0f} s left", flush=True)
    chosen_at = options.out.with_name(f"{options.out.stem}-choose.jsonl")
    plain = [cohort for cohort in options.cohorts if cohort != "class"]
    with matmul("tf32"), quiet():
        lanes = Lanes(begun(options, 0, device), choosing.whole, options.lanes)
        print(f"{options.lanes} lanes ready, {clock.left:.0f} s left", flush=True)
        bench = Bench(options, clock, lanes)
        first = bench.prepared(choosing, options.choose_seed)
        for cohort in plain:
            bench.cohort(choosing, first, cohort, chosen_at)
            names = [name for name in SETTINGS[cohort] if name != "as shipped"]
            chosen_among(chosen_at, f"{options.model}, {cohort}", ["as shipped", *names])
        world = World.of(options, options.label, device)
        lanes.relabel(world.whole)
        ready: list[Seed] = []
        bench.floors.clear()
        trainings = len(plain) + FOLDS + 1
        for seed in options.seeds:
            if not clock.allows(1.3 * trainings):
                break
            ready.append(bench.prepared(world, seed))
            for cohort in plain:
                bench.cohort(world, ready[-1], cohort, options.out)
        if "class" in options.cohorts:
            bench.classes(world, ready, options.out)
    print(f"done, {clock.left:.0f} s left", flush=True)


def main(arguments: list[str] | None = None) -> None:
    seeds = (510, 520, 530, 540, 550)
    parser = Flags(__doc__).data("folder with images and weights").out(required=True).seeds(seeds).device()
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--model", choices=("all-cnn", "resnet"), default="all-cnn")
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--cohorts", nargs="+", choices=tuple(BUDGET), default=list(BUDGET))
    parser.add_argument("--label", type=int, default=8, help="the class that is forgotten, in part or whole")
    parser.add_argument("--choose-seed", type=int, default=320)
    parser.add_argument("--choose-label", type=int, default=3)
    parser.add_argument("--lanes", type=int, default=4, help="trainings at once")
    parser.add_argument("--forget", type=int, default=FORGET)
    parser.add_argument("--rows", type=int, help="the most training rows, for a rehearsal")
    parser.add_argument("--times", type=float, default=1.0, help="budgets multiplied by this, for a rehearsal")
    parser.add_argument("--tiny", action="store_true", help="a small network, for a rehearsal")
    parser.add_argument("--stop", type=float, default=inf, help="seconds; no training begins that would end later")
    options = parser.parse_args(arguments)
    if options.what == "table":
        print(table([options.out]))
    else:
        began = time.perf_counter()
        run(options)
        print(f"{time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
