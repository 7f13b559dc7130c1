"""Answers from fold models in the six small settings of `benchmarks/frontier.py`, settings for each kind of request.

    python benchmarks/frontier_taught.py choose  --data DIR --out results/frontier-taught-choose.jsonl --seeds 0 1 2
    python benchmarks/frontier_taught.py confirm --data DIR --out results/frontier-taught.jsonl \
        --chosen results/frontier-taught-choose.jsonl --seeds 30 31 32 33 34 35

Fold models are trained once beside each network. `choose` tries all settings and prefers, for each kind of request,
the one whose smaller gap closed over both networks is largest, among those that keep retained and test rows. `confirm`
takes these, on seeds that nothing was chosen on.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from spotlessnet.auditing.rows import Row, append_rows, read_rows
from spotlessnet.core.progress import Meter
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.datasets import load
from spotlessnet.methods import OutOfFoldDistillation
from spotlessnet.operators.precision import matmul
from spotlessnet.precomputed.fold_models import FoldModels, train_fold_models
from spotlessnet.training.fit import fit

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, accelerator, device_of
from benchmarks.frontier import (
    COHORTS,
    MODELS,
    OPERATIONS,
    RECIPE,
    WRITING,
    gaps,
    measure,
    split_of,
    start_of,
    trained_trio,
)
from benchmarks.large import operations

TAUGHT, SMALL = "unlabel, from fold models", "unlabel, from fold models, in half batches"
BATCHES = {TAUGHT: RECIPE.batch_size, SMALL: RECIPE.batch_size // 2}
PARTS, DIVISIONS = 3, 4
"""Of the fold models: twelve networks, each without a third of the rows: eight trainings, once for all requests."""

LIMIT = 0.245
"""Of the operations of a retraining, for one request."""

SPEEDS, SHARES, TEMPERATURES = (0.25, 0.5), (0.12, 0.2, 0.3), (1.0, 2.0, 3.0)
Setting = tuple[float, float, float]
"""Speed, share and temperature."""

RISES = {"retain": 0.005, "test": 0.01}
"""What a setting that is chosen may cost in errors on retained and on test rows, in the mean."""

Wanted = Callable[[str, str], Mapping[str, Setting]]
"""For a method and a kind of request: settings by the name that their rows get."""


def everything(method: str, cohort: str) -> dict[str, Setting]:
    """All settings, each under a name of its own."""
    return {f"{method} | {name_of(each)}": each for each in product(SPEEDS, SHARES, TEMPERATURES)}


def name_of(setting: Setting) -> str:
    return "speed={:g} share={:g} T={:g}".format(*setting)


def run(options: argparse.Namespace, wanted: Wanted) -> None:
    device = device_of(options)
    about = f"torch {torch.__version__}, {accelerator(device)}, TF32"
    pair = load("cifar10", options.data)
    done = {row.key for row in read_rows(options.out)}
    warm = False
    for seed, model, cohort in product(options.seeds, options.models, options.cohorts):
        name = f"{model} {cohort}"
        split = split_of(cohort, pair.train, pair.test, seed, device)
        start = start_of(model, options.data, seed, device)
        with matmul("tf32"):
            if not warm:  # kernels are chosen on first use; that time belongs to nobody
                fit(start, split.whole, RECIPE.but(epochs=2, patience=None))
                warm = True
            try:
                original, retrained, other, meter = trained_trio(start, split, seed)
                with Meter(start.device) as writing:
                    fold_models = train_fold_models(original, split.whole, folds=PARTS, repeats=DIVISIONS, seed=seed)
            except ArithmeticError as error:  # the training itself broke: no reference, no row
                print(f"{name} seed {seed} left out: {error}", flush=True)
                continue
            made = [Row(name, "fold models", WRITING, seed, writing.seconds, unit="seconds", note=about)]
            assert original.recipe is not None  # given by `trained_trio`
            epochs = f"{about}; {original.recipe.epochs} epochs"
            for method, network in {"original": original, "retrained": retrained, "floor": other}.items():
                made += measure(name, method, seed, network, retrained, split, meter, epochs)
            for method in BATCHES:
                scrubs = {
                    k: scrub_of(method, s, fold_models, original, split) for k, s in wanted(method, cohort).items()
                }
                for i, (key, scrub) in enumerate(scrubs.items()):
                    made += asked(scrub, original, retrained, split, (name, key, seed), about, count=not i)
        append_rows(options.out, [row for row in made if row.key not in done])
        print(f"{name} seed {seed} done", flush=True)


def scrub_of(
    method: str, setting: Setting, fold_models: FoldModels, original: Trained, split: Split
) -> OutOfFoldDistillation:
    """The method with a setting, for as many epochs as a part of retraining pays for."""
    assert original.recipe is not None  # given by `trained_trio`
    speed, share, temperature = setting
    told = OutOfFoldDistillation(
        batch_size=BATCHES[method],
        momentum=RECIPE.momentum,
        label_boost=0.0,
        max_step_scale=1.5,
        fold_models=fold_models,
    )
    told = replace(told, lr_scale=speed, forget_weight=share, temperature=temperature)
    most, rows = original.recipe.epochs, len(split.whole)
    prices = {e: told.price(split, e).in_trainings(rows, most) for e in range(1, most)}
    within = LIMIT * len(split.retain) / rows
    return replace(told, epochs=max((e for e, price in prices.items() if price <= within), default=1))


def asked(
    scrub: OutOfFoldDistillation,
    original: Trained,
    retrained: Trained,
    split: Split,
    key: tuple[str, str, int],
    about: str,
    *,
    count: bool,
) -> list[Row]:
    """The rows of one request, with its operations if they are to be counted."""
    name, method, seed = key
    try:
        with Meter(original.device) as meter:
            found = scrub(original, split)
    except ArithmeticError as error:  # a method that breaks is a result too
        print(f"{name} {method} seed {seed}: {error}", flush=True)
        return []
    note = f"{about}; {name_of((scrub.lr_scale or 0.0, scrub.forget_weight or 0.0, scrub.temperature or 0.0))}"
    made = list(measure(name, method, seed, original.at(found.mean), retrained, split, meter, note))
    if count:
        with FlopCounterMode(display=False) as counter:
            scrub(original, split)
        share = counter.get_total_flops() / operations(original, split.retain)
        made.append(Row(name, method, OPERATIONS, seed, share, unit="retrainings", note=about))
    return made


def choose(path: str) -> dict[tuple[str, str], Setting]:
    """For each method and kind of request the best setting over both networks that keeps retained and test rows."""
    found, rows = gaps(path), {row.key: row.value for row in read_rows(path)}
    best: dict[tuple[str, str], tuple[float, Setting]] = {}
    for method, cohort in product(BATCHES, COHORTS):
        names = [f"{model} {cohort}" for model in MODELS]
        for key, setting in everything(method, cohort).items():
            won = [sum(found[key][name][0]) / sum(found[key][name][1]) for name in names if found[key][name][0]]
            harm = max((rise(rows, name, key, part) / RISES[part] for name in names for part in RISES), default=0.0)
            score = min(won, default=-1.0) - 100 * (harm > 1)
            if (method, cohort) not in best or score > best[method, cohort][0]:
                best[method, cohort] = (score, setting)
    return {key: setting for key, (_, setting) in best.items()}


def rise(rows: Mapping[tuple[str, str, str, int], float], name: str, method: str, part: str) -> float:
    """Of an error above retraining's, in the mean; infinite if a seed is missing.

    A seed whose original has itself lost retained rows tells nothing of what a method costs, and is left out.
    """
    kept, readout = "error on retain", f"error on {part}"
    seeds = [key[3] for key in rows if key[:3] == (name, "retrained", kept)]
    lost = {s: rows[name, "original", kept, s] - rows[name, "retrained", kept, s] for s in seeds}
    above = [
        rows.get((name, method, readout, seed), math.inf) - rows[name, "retrained", readout, seed]
        for seed in seeds
        if lost[seed] <= RISES["retain"]
    ]
    return statistics.mean(above) if above else 0.0


def flags() -> Flags:
    parser = Flags(__doc__).data("folder with image shards and weights", required=True).out(required=True)
    parser.seeds(range(3)).device()
    parser.add_argument("what", choices=("choose", "confirm"))
    parser.add_argument("--chosen", type=Path, help="rows of the choosing run, for `confirm`")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--cohorts", nargs="+", choices=COHORTS, default=list(COHORTS))
    return parser


def main() -> None:
    parser = flags()
    options = parser.parse_args()
    if options.what == "choose":
        run(options, everything)
        print(json.dumps({", ".join(key): name_of(best) for key, best in choose(options.out).items()}, indent=1))
    else:
        if options.chosen is None:
            parser.error("`confirm` takes the settings that were chosen: give --chosen")
        best = choose(options.chosen)
        run(options, lambda method, cohort: {f"{method} | ": best[method, cohort]})


if __name__ == "__main__":
    main()
