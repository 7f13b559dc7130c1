"""Out-of-fold distillation at full size with grouped folds: full CIFAR-10, All-CNN, weight decay 5e-4, 20 epochs.

    python benchmarks/large_second.py choose --data DIR --out CHOOSE --label 3 --seeds 300 301
    python benchmarks/large_second.py confirm --data DIR --out OUT --label 7 --seeds 310 311 312 --chosen CHOOSE
    python benchmarks/large_second.py table --out OUT

Requests are those of `benchmarks/large.py`: 100 images of a class (*some*), one annotator's 100 mislabelled images
(*wrong*), all 5,000 of the class (*class*). The rows of *some*, and those of *wrong*, have one id each, so that each
lies in one of three folds: two trainings, once, for all requests. Settings are chosen on other seeds and another class
than are reported, by the root mean square difference of forgotten rows' margins from the coupled retrained network's,
among those that keep retained and test errors within half a point. `--stop` ends a run before the next training;
*class* comes last. Margins are kept beside the rows, for the attack on single rows: knowing each row's mean margin
under unlearned and retrained networks of other seeds, tell which kind a row's margin is from; 0.5 is chance.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf
from pathlib import Path
from typing import Any

import torch

from spotlessnet.auditing.rows import Row, append_rows, read_rows
from spotlessnet.core.data import evenly
from spotlessnet.core.errors import SpotlessError
from spotlessnet.core.intervals import t_interval
from spotlessnet.core.progress import quiet
from spotlessnet.core.registry import markdown_table
from spotlessnet.core.row_keys import RowKeys
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.experiments.few import some
from spotlessnet.methods import OutOfFoldDistillation
from spotlessnet.operators.precision import matmul
from spotlessnet.precomputed.fold_models import WATCHED, FoldModels, measure_held_out
from spotlessnet.precomputed.grouped import grouped_folds, groups_of, joined_by_copies
from spotlessnet.readouts.linear_probe import LinearProbe

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.captured import Captured
from benchmarks.common import Flags, accelerator, device_of, note
from benchmarks.folded import FoldedCaptured
from benchmarks.frontier_second import attacked
from benchmarks.large import (
    COHORTS,
    DISTANCE,
    FORGET,
    OPERATIONS,
    TRAINING,
    WRITING,
    begin,
    counted,
    keep_margins,
    looks,
    margins_file,
    masked,
    measured,
    requests,
)

FOLDS = 3
BUDGETS = {"some": (0.01, 0.05), "wrong": (0.05, 0.01), "class": (0.05, 0.01)}
"""Shares of training FLOPs; the first is the one that settings are chosen at."""

SHIPPED, CHOSEN = "as shipped", "chosen"
CLOSENESS = "margins off, root mean square"
MARGIN, LOSS, PROBE = "margin on forget", "loss on forget", "linear probe"
ERRORS = ("error on retain", "error on test")
TOLERANCE = 0.005
FACTS = ("step_scale", "lr", "rounds", "forget_weight", "rows_in_a_round", "cost_in_trainings", "own_kept")


def variants() -> dict[str, dict[str, Any]]:
    """Settings by name; those tried before are in `benchmarks/large_choose.py`."""
    return {SHIPPED: {}, "three times the rate": {"lr_scale": 0.3}}


@dataclass(eq=False)
class Clock:
    """How long a run may go on."""

    stop: float
    began: float = field(default_factory=time.perf_counter)
    longest: float = 0.0

    @property
    def left(self) -> float:
        return self.stop - (time.perf_counter() - self.began)

    def allows(self, what: float = 1.0) -> bool:
        """Whether so many of the longest trainings so far still fit."""
        return self.left > what * self.longest


@dataclass(eq=False)
class Seed:
    """The networks of one seed."""

    seed: int
    start: Trained
    original: Trained
    folds: FoldModels
    retrained: dict[str, Trained] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)


@dataclass(eq=False)
class Bench:
    """What all seeds share."""

    options: argparse.Namespace
    splits: dict[str, Split]
    captured: Captured
    clock: Clock
    floors: dict[str, Trained] = field(default_factory=dict)

    def trained(self, start: Trained, cohort: str | None, seed: int) -> tuple[float, Trained]:
        """Seconds, and a network trained on all rows or on those that a request leaves, in the same order."""
        whole = self.splits["some"].whole
        data = whole if cohort is None else self.splits[cohort].retain
        took, made = measured(partial(self.captured.fit, start, data, seed=seed, order_of=whole), start.device)
        self.clock.longest = max(self.clock.longest, took)
        print(f"seed {seed}, {cohort or 'original'}: trained in {took:.1f} s, {self.clock.left:.0f} s left", flush=True)
        return took, made

    @cached_property
    def keys(self) -> tuple[RowKeys, torch.Tensor]:
        """Of all rows, and where each row's key stands; once, for the rows of all seeds are the same."""
        whole = self.splits["some"].whole
        keys = RowKeys.of(whole)
        return keys, keys.find(whole)

    def prepared(self, seed: int) -> Seed:
        """Original and fold models, divided as `train_fold_models` divides."""
        start = begin(self.options, seed, device_of(self.options))
        took, original = self.trained(start, None, seed)
        whole, (keys, place) = self.splits["some"].whole, self.keys
        group = groups_of(whole, self.groups(), FOLDS)
        assert group is not None  # there are ids
        drawn = grouped_folds(joined_by_copies(group, place), FOLDS, torch.Generator().manual_seed(seed))
        work = partial(self.fold_weights, start, drawn, seed)
        writing, made = measured(work, start.device)
        print(f"seed {seed}: fold models in {writing:.1f} s", flush=True)
        part = torch.zeros(1, len(whole), dtype=torch.long)
        part[0, place] = drawn
        folds = FoldModels(made, keys, part, origin=original.weights.clone())
        held = self.splits["some"].validation
        assert held is not None  # given by `requests`
        folds = measure_held_out(folds, original, whole, held)
        folds = replace(folds, lack=folds.lacking(original, whole.select(evenly(len(whole), WATCHED))))
        return Seed(seed, start, original, folds, took={TRAINING: took, WRITING: writing})

    def fold_weights(self, start: Trained, drawn: torch.Tensor, seed: int) -> torch.Tensor:
        """Of networks that each miss a part of the rows."""
        whole = self.splits["some"].whole
        kept = (whole.select((drawn != k).nonzero().squeeze(1)) for k in range(FOLDS))
        return torch.stack([self.captured.fit(start, rows, seed=seed + k).weights for k, rows in enumerate(kept)])

    def groups(self) -> list[str]:
        """One id for the rows of *some* and one for those of *wrong*; every other row by itself."""
        ids = [str(i) for i in range(len(self.splits["some"].whole))]
        for cohort in ("some", "wrong"):
            for i in self.splits[cohort].forget.rows.tolist():
                ids[i] = cohort
        return ids

    def cohort(self, ready: Seed, cohort: str) -> None:
        """Retrain, serve the request by every setting, and write the rows down."""
        took, retrained = self.trained(ready.start, cohort, ready.seed)
        ready.retrained[cohort] = retrained
        split, name = self.splits[cohort], f"{self.options.model}, {cohort}"
        small = replace(split, kept=some(split.retain, 5000))
        seen = {"original": ready.original, "retrained": retrained}
        if cohort in self.floors:
            seen["floor"] = self.floors[cohort]
        self.floors[cohort] = retrained  # another seed's retrained network: what even retraining does not repeat
        made = [Row(name, "retrained", TRAINING, ready.seed, took, unit="seconds")]
        made.append(Row(name, "fold models", WRITING, ready.seed, ready.took[WRITING], unit="seconds"))
        for method, network in seen.items():
            made += looks(name, method, ready.seed, network, retrained, split)
        if cohort == "class":
            made += masked(name, ready.seed, ready.original, retrained, split)
            made += [Row(name, m, PROBE, ready.seed, float(LinearProbe()(n, small))) for m, n in seen.items()]
        for method, scrub in self.scrubs(cohort).items():
            made += self.served(name, method, replace(scrub, fold_models=ready.folds), ready, cohort, seen)
        how = f"{accelerator(ready.start.device)}, trained in bfloat16 as CUDA graphs, requests in TF32"
        about = f"{note('large_second')}; {how}"
        append_rows(self.options.out, [replace(row, note=about) for row in made])
        keep_margins(self.options.out, name, ready.seed, seen, some(split.forget, FORGET))

    def served(
        self, name: str, method: str, scrub: OutOfFoldDistillation, ready: Seed, cohort: str, seen: dict[str, Trained]
    ) -> Iterator[Row]:
        """One request, and what came of it."""
        split, retrained = self.splits[cohort], ready.retrained[cohort]
        small = replace(split, kept=some(split.retain, 5000))
        work = partial(scrub, ready.original, split)
        try:
            took, found = measured(work, ready.start.device)
        except (RuntimeError, SpotlessError) as error:  # a method that breaks is a result too, and others go on
            print(f"{name}, {method}, seed {ready.seed}: {error}", flush=True)
            return
        network = ready.original.at(found.mean)
        seen[method] = network
        rows = [replace(row, seconds=took) for row in looks(name, method, ready.seed, network, retrained, split)]
        known = {row.readout: row.value for row in rows}
        yield from rows
        facts = found.diagnostics.record()
        yield from (Row(name, method, f, ready.seed, float(facts[f])) for f in FACTS if facts.get(f) is not None)
        if cohort == "class":
            yield Row(name, method, PROBE, ready.seed, float(LinearProbe()(network, small)))
        if ready.seed == self.options.seeds[0] and self.options.what == "confirm":
            yield counted(work, ready.start, split.whole, name, method, ready.seed)
        said = ", ".join(f"{k} {known[k]:.3f}" for k in (MARGIN, LOSS, DISTANCE, *ERRORS))
        print(f"{name}, {method}, seed {ready.seed}, {took:.2f} s: {said}", flush=True)

    def scrubs(self, cohort: str) -> dict[str, OutOfFoldDistillation]:
        """By name with the share: all settings at the first share, or those shipped and chosen at both."""
        tried = variants() if cohort != "class" else {SHIPPED: {}}
        if self.options.what == "confirm" and self.options.chosen is not None and cohort != "class":
            best = chosen(self.options.chosen, f"{self.options.model}, {cohort}")
            tried |= {f"{CHOSEN}: {best}": variants()[best]}
        budgets = BUDGETS[cohort][: self.options.budgets]
        return {
            f"{name}, {budget:.0%}": OutOfFoldDistillation(compute_budget=self.options.times * budget, **settings)
            for budget in budgets
            for name, settings in tried.items()
        }


def run(options: argparse.Namespace) -> None:
    """All seeds: *some* and *wrong* first, then *class* as far as time allows."""
    clock, device = Clock(options.stop), device_of(options)
    splits = requests(options, device)
    print(f"rows read, {clock.left:.0f} s left", flush=True)
    with matmul("tf32"), quiet():
        captured = FoldedCaptured(begin(options, 0, device), splits["some"].whole)
        bench = Bench(options, splits, captured, clock)
        ready: list[Seed] = []
        for seed in options.seeds:
            if not clock.allows(3.6):  # original, fold models, one retrained network and its requests
                break
            ready.append(bench.prepared(seed))
            for cohort in (c for c in options.cohorts if c != "class"):
                if clock.allows(1.3):
                    bench.cohort(ready[-1], cohort)
        for one in ready:
            if "class" in options.cohorts and clock.allows(1.5):
                bench.cohort(one, "class")
    print(f"done, {clock.left:.0f} s left", flush=True)


Margins = dict[tuple[str, int], dict[str, torch.Tensor]]


def margins_of(paths: list[Path]) -> Margins:
    """Of every request and seed: margins of its rows under every network."""
    found: Margins = {}
    for path in paths:
        for line in margins_file(path).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found[row["experiment"], row["seed"]] = {m: torch.tensor(v).double() for m, v in row["margins"].items()}
    return found


def mean_of(rows: list[Row], experiment: str, method: str, readout: str) -> float:
    """Over seeds."""
    return statistics.mean(
        row.value for row in rows if (row.experiment, row.method, row.readout) == (experiment, method, readout)
    )


def chosen(path: Path, experiment: str) -> str:
    """The best of `variants`."""
    return chosen_among(path, experiment, list(variants()))


def chosen_among(path: Path, experiment: str, names: list[str]) -> str:
    """The setting that comes nearest to retrained networks' margins, row by row, and keeps the errors.

    Where none does, the first. A method is a name of a setting, or that with a share of the training after a comma.
    """
    rows, known = read_rows(path), margins_of([path])
    seeds = [seed for name, seed in known if name == experiment]
    offs: dict[str, float] = {}
    for method in dict.fromkeys(row.method for row in rows if row.experiment == experiment):
        name = method if method in names else method.rpartition(", ")[0]
        if name not in names or not all(method in known[experiment, seed] for seed in seeds):
            continue
        worse = [mean_of(rows, experiment, method, e) - mean_of(rows, experiment, "retrained", e) for e in ERRORS]
        if max(worse) > TOLERANCE:
            continue
        both = [(known[experiment, s][method], known[experiment, s]["retrained"]) for s in seeds]
        offs[name] = statistics.mean(float((a - b).square().mean().sqrt()) for a, b in both)
    best = min(offs, key=offs.__getitem__) if offs else names[0]
    print(f"{experiment}: {offs}; chosen: {best}", flush=True)
    return best


def share_closed(rows: list[Row], experiment: str, method: str, readout: str) -> str:
    """Of the way from the original to retrained networks, in means over seeds; 100 % is as retrained."""
    first, last, now = (mean_of(rows, experiment, m, readout) for m in ("original", "retrained", method))
    return f"{(first - now) / (first - last):.0%}"


def interval(values: list[float], digits: int = 2) -> str:
    """Mean and 95 % interval over seeds."""
    if not values:
        return ""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    mean, low, high = t_interval(values)
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def attack(known: Margins, experiment: str, method: str) -> list[float]:
    """An AUC for each seed; none with fewer than three seeds."""
    seeds = [s for name, s in known if name == experiment and method in known[name, s]]
    if len(seeds) < 3 or method == "retrained":
        return []
    ours, theirs = (torch.stack([known[experiment, s][m] for s in seeds]) for m in (method, "retrained"))
    return attacked(ours, theirs)


def table(paths: list[Path]) -> str:
    """Every request and method: shares of the gap, the attacker, errors beside retrained networks', the price."""
    rows, known = [row for path in paths for row in read_rows(path)], margins_of(paths)
    made = []
    for experiment, method in dict.fromkeys((row.experiment, row.method) for row in rows):
        mine = [row for row in rows if (row.experiment, row.method) == (experiment, method)]
        if method == "fold models" or MARGIN not in {row.readout for row in mine}:
            continue
        seeds = {row.seed for row in mine if row.readout == MARGIN}
        paired = [row for row in rows if row.seed in seeds]
        shares = [share_closed(paired, experiment, method, readout) for readout in (MARGIN, LOSS)]
        floor = [row for row in paired if row.method == "floor"]
        away = mean_of(paired, experiment, method, DISTANCE)
        worse = [mean_of(paired, experiment, method, e) - mean_of(paired, experiment, "retrained", e) for e in ERRORS]
        flops = [row.value for row in mine if row.readout == OPERATIONS]
        probes = [row.value for row in mine if row.readout == PROBE]
        took = [row.seconds for row in mine if row.readout == MARGIN and row.seconds == row.seconds]
        near = mean_of(floor, experiment, "floor", DISTANCE) if any(r.experiment == experiment for r in floor) else None
        made.append(
            [experiment, method, str(len(seeds)), *shares, f"{away:.3f}" + ("" if near is None else f" ({near:.3f})"),
             interval(attack(known, experiment, method)), *(f"{100 * w:+.2f}" for w in worse),
             interval(probes), f"{statistics.mean(flops):.2%}" if flops else "",
             f"{statistics.mean(took):.1f} s" if took else ""]
        )  # fmt: skip
    head = ("request", "method", "seeds", "margin", "loss", "distance (floor)", "attacker's AUC", "retained, points",
            "test, points", "probe", "FLOPs", "time")  # fmt: skip
    return markdown_table(head, made)


def flags() -> Flags:
    parser = Flags(__doc__).data("folder with images and weights").out(required=True).seeds((300, 301)).device()
    parser.add_argument("what", choices=("choose", "confirm", "table"))
    parser.add_argument("--model", choices=("all-cnn", "resnet"), default="all-cnn")
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--cohorts", nargs="+", choices=COHORTS, default=["some", "wrong"])
    parser.add_argument("--label", type=int, default=3, help="the class that is forgotten, in part or whole")
    parser.add_argument("--forget", type=int, default=FORGET)
    parser.add_argument("--rows", type=int, help="the most training rows, for a rehearsal")
    parser.add_argument("--times", type=float, default=1.0, help="budgets multiplied by this, for a rehearsal")
    parser.add_argument("--budgets", type=int, default=1, help="how many of each request's")
    parser.add_argument("--chosen", type=Path, help="rows of `choose`")
    parser.add_argument("--stop", type=float, default=inf, help="seconds; no training begins that would end later")
    parser.add_argument("--also", nargs="*", type=Path, default=[], help="further files of rows for the table")
    return parser


def main(arguments: list[str] | None = None) -> None:
    options = flags().parse_args(arguments)
    work: Callable[[], None] = partial(run, options)
    if options.what == "table":
        print(table([options.out, *options.also]))
    else:
        work()


if __name__ == "__main__":
    main()
