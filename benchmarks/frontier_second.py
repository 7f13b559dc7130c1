"""Targets, folds and losses of out-of-fold distillation compared on small problems, on a CPU.

    python benchmarks/frontier_second.py --data DIR --out results/frontier-second-cpu.jsonl --seeds 0 1 2 3 4
    python benchmarks/frontier_second.py --data DIR --out results/frontier-second-cpu.jsonl --seeds 10 11 12 13 14
    python benchmarks/frontier_second.py --out results/frontier-second-cpu.jsonl --table

One training set a problem: one annotator's 40 rows have wrong labels (*wrong*), 40 ordinary rows are one person's
(*some*), all rows of a class go (*class*); every other id has ten rows. One original, one retrained network for each
request and fold models by id (*grouped*) and row by row (*random*) for each seed. The first seed draws rows and
requests, so that seeds from 10 on are other rows, too. Margin share: how much of the way from the original's mean
margin on the forgotten rows to the retrained network's; 1 is as retrained. AUC: telling an unlearned from a retrained
network by one row's margin, knowing each row's mean margin under both with the other seeds (U-LiRA's question, row by
row); 0.5 is as retrained. Seeds 0 to 4 choose, 10 to 14 confirm; a choice that did not confirm was changed, and 20 to
24 confirm what became of it. DIR holds the image shards.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spotlessnet.auditing.rows import Row, append_rows, read_rows
from spotlessnet.core.data import Data
from spotlessnet.core.intervals import t_interval
from spotlessnet.core.progress import Meter, quiet
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Request, Split
from spotlessnet.core.trained import Trained
from spotlessnet.datasets import load
from spotlessnet.methods import OutOfFoldDistillation
from spotlessnet.precomputed.fold_models import FoldModels, train_fold_models
from spotlessnet.readouts import ActivationDistance, Error, MeanLoss
from spotlessnet.readouts.margin import margins
from spotlessnet.training.fit import fit

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, note, use_threads

COHORTS = ("some", "wrong", "class")
FORGET, FOLDS = 40, 3
MARGIN, AUC = "margin on forget", "AUC of a row"


@dataclass(frozen=True)
class Problem:
    """A data set, how many of its rows and classes, the shape of an image, and the recipe."""

    data: str
    rows: int
    classes: int
    channels: int
    side: int
    recipe: Recipe

    def network(self, seed: int) -> nn.Module:
        """A small network: of linear layers for 8 x 8 pixels, with two convolutions for more."""
        torch.manual_seed(seed)
        if self.side == 8:
            return nn.Sequential(
                nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, self.classes)
            )
        wide = 24 * (self.side // 8) ** 2
        return nn.Sequential(
            nn.Conv2d(self.channels, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(wide, 64), nn.ReLU(), nn.Linear(64, self.classes),
        )  # fmt: skip


PROBLEMS = {
    "digits": Problem("digits", 1200, 10, 1, 8, Recipe(epochs=40, lr=0.1, batch_size=64, weight_decay=5e-4)),
    "mnist": Problem("mnist", 1500, 10, 1, 28, Recipe(epochs=25, lr=0.05, batch_size=64, weight_decay=5e-4)),
    "cifar": Problem("cifar10", 1500, 5, 3, 32, Recipe(epochs=30, lr=0.03, batch_size=64, weight_decay=5e-4)),
}


def variants() -> dict[str, tuple[str, OutOfFoldDistillation]]:
    """Whose fold models, and the settings."""
    ours = OutOfFoldDistillation
    new: Literal["in minus out"] = "in minus out"
    old: Literal["out of fold"] = "out of fold"
    made: dict[str, tuple[str, OutOfFoldDistillation]] = {}
    shrunk: Literal["in minus out, shrunk"] = "in minus out, shrunk"
    as_long: dict[str, Any] = {"max_step_scale": 1.0}  # no search for the length
    sharp: dict[str, Any] = {"temperature": inf, "retain_temperature": 1.0}
    for budget in (0.3,):
        told = {
            f"{old}, random, T=3, as long as it is": ("random", ours(targets=old, temperature=3.0, **as_long)),
            f"{old}, grouped, T=3": ("grouped", ours(targets=old, temperature=3.0)),
            f"{new}, grouped, T=3": ("grouped", ours(targets=new, temperature=3.0)),
            f"{shrunk}, grouped, T=3": ("grouped", ours(targets=shrunk, temperature=3.0)),
            f"{new}, grouped, T=10, weight .5": ("grouped", ours(targets=new, temperature=10.0, forget_weight=0.5)),
            f"{new}, grouped, squares, D_r at 1": ("grouped", ours(targets=new, **sharp)),
            f"{old}, grouped, squares, D_r at 1": ("grouped", ours(targets=old, **sharp)),
        }
        made |= {f"{name}, {budget:.0%}": (f, replace(m, compute_budget=budget)) for name, (f, m) in told.items()}
    made["preset, grouped, 30%"] = ("grouped", ours(compute_budget=0.3))
    return made


def rows_of(problem: Problem, folder: Path | None, seed: int) -> tuple[Data, Data, dict[str, Tensor]]:
    """Training rows with ids, test rows, and the positions of each request."""
    draw = torch.Generator().manual_seed(seed)
    pair = load(problem.data) if problem.data == "digits" else load(problem.data, folder)
    drawn = []
    for part, count in ((pair.train, problem.rows), (pair.test, 500)):
        mine = (part.labels() < problem.classes).nonzero().squeeze(1)
        taken = part.select(mine[torch.randperm(len(mine), generator=draw)[:count]])
        x, y = next(iter(taken.batches(len(taken))))[:2]
        assert isinstance(x, Tensor)
        drawn.append((x, y.clone()))
    (x, y), test = drawn
    wrong, some = torch.arange(FORGET), torch.arange(FORGET, 2 * FORGET)
    y[wrong] = (y[wrong] + torch.randint(1, problem.classes, (FORGET,), generator=draw)) % problem.classes
    ids = ["annotator"] * FORGET + ["person"] * FORGET + [f"{i // 10}" for i in range(len(y) - 2 * FORGET)]
    right = torch.arange(len(y)) >= FORGET
    chosen = {"some": some, "wrong": wrong, "class": ((y == 0) & right).nonzero().squeeze(1)}
    return Data.of((x, y), columns={"id": ids}), Data.of(test), chosen


def split_of(train: Data, test: Data, gone: Tensor, cohort: str) -> Split:
    """A request; half of the test rows say how sure one may be of rows that nobody saw."""
    forget = train.select(gone)
    half = len(test) // 2
    held, judged = test.select(range(half)), test.select(range(half, len(test)))
    kept = train.without(forget)
    if cohort == "class":  # a wrong label of the class goes too, or the class would stay known by it alone
        label = int(forget.labels()[0])
        kept = kept.select((kept.labels() != label).nonzero().squeeze(1))
    return Split(forget, kept, test=judged, validation=held, request=Request(mislabelled=cohort == "wrong"))


def one_seed(
    name: str, problem: Problem, train: Data, splits: dict[str, Split], seed: int, only: str
) -> Iterator[tuple[Row, Tensor | None]]:
    """Rows of every method; margins of the forgotten rows come with that of the margin."""
    began = Trained.of(problem.network(seed), recipe=problem.recipe)
    began = replace(began, init=began.weights)
    original = fit(began, train, seed=seed)
    held = splits["some"].validation
    folds: dict[str, FoldModels] = {
        kind: train_fold_models(original, train, folds=FOLDS, groups=groups, held=held, seed=seed)
        for kind, groups in (("grouped", "id"), ("random", None))
    }
    for cohort, split in splits.items():
        retrained = fit(began, split.retain, seed=seed, order_of=train)
        networks = {"original": original, "retrained": retrained}
        # Another seed's retrained network: what even retraining does not repeat.
        networks["floor"] = fit(began, split.retain, seed=seed + 1000, order_of=train)
        for method, network in networks.items():
            yield from looks(f"{name}, {cohort}", method, seed, network, retrained, split, 0.0)
        for method, (kind, scrub) in variants().items():
            if only not in method:
                continue
            with Meter(original.device) as meter:
                found = original.at(replace(scrub, fold_models=folds[kind], seed=seed)(original, split).mean)
            yield from looks(f"{name}, {cohort}", method, seed, found, retrained, split, meter.seconds)


def looks(
    experiment: str, method: str, seed: int, network: Trained, retrained: Trained, split: Split, seconds: float
) -> Iterator[tuple[Row, Tensor | None]]:
    """One row per readout."""
    seen = margins(network, split.forget)
    yield Row(experiment, method, MARGIN, seed, float(seen.mean()), unit="logits", seconds=seconds), seen
    for readout in (ActivationDistance(retrained), MeanLoss("forget"), Error("retain"), Error("test")):
        yield Row(experiment, method, readout.name, seed, float(readout(network, split)), unit=readout.unit), None


def attacked(ours: Tensor, theirs: Tensor) -> list[float]:
    """For each seed the AUC of its rows, by the log-likelihood ratio of margins under Gaussians of the other seeds."""
    aucs = []
    for s in range(len(ours)):
        others = [i for i in range(len(ours)) if i != s]
        means = [group[others].mean(dim=0) for group in (ours, theirs)]
        spread = torch.cat([group[others] - mean for group, mean in zip((ours, theirs), means, strict=True)]).std()
        scores = [(means[0] - means[1]) * (g[s] - (means[0] + means[1]) / 2) / spread**2 for g in (ours, theirs)]
        above = scores[0].unsqueeze(1) - scores[1].unsqueeze(0)
        aucs.append(float((above > 0).double().mean() + 0.5 * (above == 0).double().mean()))
    return aucs


def measure(name: str, options: argparse.Namespace) -> list[Row]:
    """All seeds of a problem; the attack needs them together."""
    problem = PROBLEMS[name]
    train, test, chosen = rows_of(problem, options.data, options.seeds[0])
    splits = {cohort: split_of(train, test, chosen[cohort], cohort) for cohort in COHORTS}
    made: list[Row] = []
    seen: dict[tuple[str, str], list[Tensor]] = {}
    for seed in options.seeds:
        for row, rows in one_seed(name, problem, train, splits, seed, options.only):
            made.append(row)
            if rows is not None:
                seen.setdefault((row.experiment, row.method), []).append(rows.double())
        print(f"{name}, seed {seed} done", flush=True)
    if len(options.seeds) > 2:
        for (experiment, method), each in seen.items():
            theirs = torch.stack(seen[experiment, "retrained"])
            if method != "retrained":
                found = attacked(torch.stack(each), theirs)
                made += [
                    Row(experiment, method, AUC, s, a, unit="AUC") for s, a in zip(options.seeds, found, strict=True)
                ]
    return [replace(row, note=note("frontier_second")) for row in made]


def table(rows: list[Row]) -> str:
    """Margin share, AUC, and how retained and test errors differ from the retrained networks', over seeds."""
    lines = ["| problem, request | method | margin share | AUC | D_r, points | test, points | distance |"]
    lines.append("|---|---|---:|---:|---:|---:|---:|")
    known = {row.key: row.value for row in rows}
    for experiment, method in dict.fromkeys((row.experiment, row.method) for row in rows):
        seeds = sorted({row.seed for row in rows if (row.experiment, row.method) == (experiment, method)})

        def of(readout: str, who: str = method, where: str = experiment, at: list[int] = seeds) -> list[float]:
            return [known[where, who, readout, seed] for seed in at if (where, who, readout, seed) in known]

        first, last = (statistics.mean(of(MARGIN, who)) for who in ("original", "retrained"))
        share = (first - statistics.mean(of(MARGIN))) / (first - last)
        auc = t_interval(of(AUC)) if of(AUC) else None
        errors = ("error on retain", "error on test")
        worse = [100 * (statistics.mean(of(e)) - statistics.mean(of(e, "retrained"))) for e in errors]
        said = "" if auc is None else f"{auc.value:.2f} [{auc.low:.2f}, {auc.high:.2f}]"
        away = statistics.mean(of("activation distance on forget"))
        lines.append(
            f"| {experiment} | {method} | {share:.0%} | {said} | {worse[0]:+.2f} | {worse[1]:+.2f} | {away:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = Flags(__doc__).data("folder with image shards").out(required=True).seeds(range(5)).table()
    parser.add_argument("--only", default="", help="methods whose name holds this text; others are left out")
    parser.add_argument("--problems", nargs="+", choices=tuple(PROBLEMS), default=list(PROBLEMS))
    options = parser.parse_args()
    use_threads()
    if not options.table:
        for name in options.problems:
            with quiet():
                append_rows(options.out, measure(name, options))
    rows = read_rows(options.out)
    for tens in sorted({row.seed // 10 for row in rows}):
        print(f"\nseeds {10 * tens} to {10 * tens + 9}\n")
        print(table([row for row in rows if row.seed // 10 == tens]))


if __name__ == "__main__":
    main()
