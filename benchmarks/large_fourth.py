"""Out-of-fold distillation at full size, fourth time: calibrated targets, classes with the probe, a ResNet too.

    python benchmarks/large_fourth.py choose --data DIR --out results/large-fourth-choose.jsonl --seeds 600 601
    python benchmarks/large_fourth.py confirm --data DIR --out results/large-fourth.jsonl --label 4 --batch-size 128
    python benchmarks/large_fourth.py table --out results/large-fourth.jsonl

Full CIFAR-10, weight decay 5e-4, 20 epochs, three grouped folds, requests of `benchmarks/large.py`. `choose` retrains
once without a hundred rows of every class and the wrong labels together, so that one training tells of a thousand rows
what targets should be, and keeps what all networks say of them (`*-answers-*.pt` beside the rows); then it serves each
request by every variant. `confirm` retrains for each request by itself and serves it by the settings as shipped, on
another class and other seeds. With `--model resnet` the network is ResNet-18 of 0.4 times the width.
"""

import argparse
import sys
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spotlessnet.core.data import evenly
from spotlessnet.core.progress import quiet
from spotlessnet.core.split import Split
from spotlessnet.core.split import rows as by_number
from spotlessnet.experiments.few import some
from spotlessnet.operators.precision import matmul
from spotlessnet.precomputed.fold_models import READ
from spotlessnet.precomputed.grouped import grouped_folds, groups_of, joined_by_copies
from spotlessnet.readouts.linear_probe import hidden

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, device_of
from benchmarks.lanes import Lanes
from benchmarks.large import FORGET
from benchmarks.large_second import FOLDS, Clock, table
from benchmarks.large_third import BUDGET, Bench, Seed, World, begun

Settings = dict[str, dict[str, dict[str, Any]]]

BEFORE: dict[str, Any] = {"targets": "in minus out"}
CALIBRATED: dict[str, Any] = {
    "targets": "calibrated", "forget_weight": 0.3, "retain_temperature": 3.0, "batch_size": 128
}  # fmt: skip
SQUARES: dict[str, Any] = {"retain_temperature": inf}
HALF: dict[str, Any] = {"forget_weight": 0.5}
SLOW: dict[str, Any] = {"lr_scale": 0.1}
FAST: dict[str, Any] = {"lr_scale": 1.0, "momentum": 0.9, "forget_weight": 0.3}
VARIANTS: Settings = {
    "some": {
        "in minus out": BEFORE,
        "in minus out, squares": BEFORE | SQUARES,
        "calibrated": CALIBRATED,
        "calibrated, squares": CALIBRATED | SQUARES,
        "calibrated, squares, half": CALIBRATED | SQUARES | HALF,
        "calibrated, squares, slow": CALIBRATED | SQUARES | SLOW,
        "calibrated, squares, half, slow": CALIBRATED | SQUARES | HALF | SLOW,
        "calibrated, slow": CALIBRATED | SLOW,
    },
    "wrong": {
        "in minus out, half": BEFORE | HALF,
        "in minus out, squares, half": BEFORE | SQUARES | HALF,
        "calibrated, squares, half": CALIBRATED | SQUARES | HALF,
        "calibrated, squares": CALIBRATED | SQUARES,
        "calibrated, half": CALIBRATED | HALF,
        "calibrated, half, slow": CALIBRATED | HALF | SLOW,
        "calibrated, squares, half, slow": CALIBRATED | SQUARES | HALF | SLOW,
    },
    "class": {
        "as shipped": {},
        "fast": FAST,
        "three times as fast": FAST | {"lr_scale": 3.0},
        "fast, bias not lowered": FAST,
    },
}
SHIPPED: Settings = {cohort: {"as shipped": {}} for cohort in VARIANTS}
LOOKED_AT = 2000
"""Retained rows whose answers are kept."""


@dataclass(eq=False)
class Wider(World):
    """With a hundred rows of every class, for each of which the retrained network says what the target should be."""

    @staticmethod
    def of(options: argparse.Namespace, label: int, device: torch.device) -> "Wider":
        world = World.of(options, label, device)
        return Wider(world.options, world.splits)

    @cached_property
    def many(self) -> Tensor:
        """Rows; those of *some* among them, and none of *wrong*."""
        labels, wrong = self.whole.labels().cpu(), self.splits["wrong"].forget.rows
        own = self.splits["some"].forget.rows
        found = []
        for c in range(10):
            rows = (labels == c).nonzero().squeeze(1)
            rows = rows[~torch.isin(rows, wrong)]
            drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(c))[: len(own)]
            found.append(own if c == self.options.label % 10 else rows[drawn])
        return torch.cat(found)

    def without_all(self) -> Split:
        """The request whose retrained network serves *some* and *wrong* both."""
        one = self.splits["some"]
        rows = torch.cat([self.many, self.splits["wrong"].forget.rows]).tolist()
        return by_number(rows)(self.whole, one.test, validation=one.validation)

    def folds(self, seed: int) -> Tensor:
        ids = [str(i) for i in range(len(self.whole))]
        labels = self.whole.labels().cpu()
        for i in self.many.tolist():
            ids[i] = f"class {int(labels[i])}"
        for i in self.splits["wrong"].forget.rows.tolist():
            ids[i] = "wrong"
        group = groups_of(self.whole, ids, FOLDS)
        assert group is not None  # there are ids
        return grouped_folds(joined_by_copies(group, self.keys[1]), FOLDS, torch.Generator().manual_seed(seed))


def keep_answers(out: Path, name: str, world: Wider, ready: Seed, drawn: Tensor) -> None:
    """What all networks say of the rows that were left out, of held-out and of retained ones; features of the class."""
    whole, some_split = world.whole, world.splits["some"]
    assert some_split.validation is not None  # given by `requests`
    gone = world.splits["gone"]
    rows = {
        "many": whole.select(world.many),
        "wrong": world.splits["wrong"].forget,
        "held": some_split.validation,
        "retained": gone.retain.select(evenly(len(gone.retain), LOOKED_AT)),
    }
    networks = {"original": ready.original, "retrained": ready.retrained["gone"]}
    networks |= {f"fold {k}": ready.folds.fold(ready.original, k) for k in range(FOLDS)}
    kept: dict[str, Any] = {
        f"{n}, {r}": network.predict(data, READ).cpu().half()
        for n, network in networks.items()
        for r, data in rows.items()
    }
    kept |= {f"labels, {r}": data.labels().cpu() for r, data in rows.items()}
    kept["missed by, many"], kept["missed by, wrong"] = drawn[world.many], drawn[rows["wrong"].rows]
    if "class" in ready.retrained:
        split = world.splits["class"]
        of_class = {"class": some(split.forget, LOOKED_AT), "others": some(split.retain, LOOKED_AT)}
        seen = {"start": ready.start, "original": ready.original, "without the class": ready.retrained["class"]}
        for n, network in seen.items():
            for r, data in of_class.items():
                kept[f"hidden, {n}, {r}"] = hidden(network, data).half()
                kept[f"{n}, {r}"] = network.predict(data, READ).cpu().half()
    torch.save(kept, out.with_name(f"{out.stem}-answers-{name}-{ready.seed}.pt"))


def choose(bench: Bench, world: Wider, out: Path) -> None:
    """Every variant on every seed that the time allows."""
    options = bench.options
    for seed in options.seeds:
        if not bench.clock.allows(1.3 * (FOLDS + 3)):
            return
        cohorts = ["gone", "class"] if "class" in options.cohorts else ["gone"]
        ready = bench.prepared(world, seed, cohorts)
        for cohort in ("some", "wrong"):
            ready.retrained[cohort] = ready.retrained["gone"]
        keep_answers(out, options.model, world, ready, world.folds(seed))
        for cohort in options.cohorts:
            if bench.clock.left > options.reserve:
                bench.cohort(world, ready, cohort, out)


def confirm(bench: Bench, world: World, out: Path) -> None:
    """As shipped; *class* comes last."""
    options = bench.options
    plain = [cohort for cohort in options.cohorts if cohort != "class"]
    ready = []
    for seed in options.seeds:
        if not bench.clock.allows(1.3 * (len(plain) + FOLDS + 1)):
            break
        ready.append(bench.prepared(world, seed, plain))
        for cohort in plain:
            bench.cohort(world, ready[-1], cohort, out)
    if "class" in options.cohorts:
        bench.classes(world, ready, out)


def run(options: argparse.Namespace) -> None:
    """Rows are read, steps captured, and all seeds follow."""
    clock, device = Clock(options.stop), device_of(options)
    world = (Wider if options.what == "choose" else World).of(options, options.label, device)
    print(f"rows read, {clock.left:.0f} s left", flush=True)
    with matmul("tf32"), quiet():
        lanes = Lanes(begun(options, 0, device), world.whole, options.lanes)
        print(f"{options.lanes} lanes ready, {clock.left:.0f} s left", flush=True)
        settings = VARIANTS if options.what == "choose" else SHIPPED
        bench = Bench(options, clock, lanes, settings=settings, script="large_fourth")
        if isinstance(world, Wider):
            world.splits["gone"] = world.without_all()
            choose(bench, world, options.out)
        else:
            confirm(bench, world, options.out)
    print(f"done, {clock.left:.0f} s left", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = (
        Flags(__doc__)
        .data("folder with images and weights")
        .out(required=True)
        .seeds((610, 620, 630, 640, 650))
        .device()
    )
    parser.add_argument("what", choices=("choose", "confirm", "table"))
    parser.add_argument("--model", choices=("all-cnn", "resnet"), default="all-cnn")
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, help="of trainings, whose rate grows with it; 128 unless said")
    parser.add_argument("--cohorts", nargs="+", choices=tuple(BUDGET), default=list(BUDGET))
    parser.add_argument("--label", type=int, default=3, help="the class that is forgotten, in part or whole")
    parser.add_argument("--choose-seed", type=int, help="on which operations are counted; the first unless said")
    parser.add_argument("--lanes", type=int, default=1, help="trainings at once")
    parser.add_argument("--forget", type=int, default=FORGET)
    parser.add_argument("--rows", type=int, help="the most training rows, for a rehearsal")
    parser.add_argument("--times", type=float, default=1.0, help="budgets multiplied by this, for a rehearsal")
    parser.add_argument("--tiny", action="store_true", help="a small network, for a rehearsal")
    parser.add_argument("--reserve", type=float, default=10.0, help="seconds left below which no request is begun")
    parser.add_argument("--stop", type=float, default=inf, help="seconds; no training begins that would end later")
    options = parser.parse_args(arguments)
    options.choose_seed = options.seeds[0] if options.choose_seed is None else options.choose_seed
    if options.what == "table":
        print(table([options.out]))
    else:
        run(options)


if __name__ == "__main__":
    main()
