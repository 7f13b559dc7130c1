"""Can the verdict be trusted? Real trainings on digits with wrong labels: who passes, who is caught, how p-values fall.

Run `python benchmarks/calibration.py --out results/calibration.json` for the figures kept there; without `--out` it
only prints them. All networks are trained here: nothing is read from earlier runs.
"""

import json
import os
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from spotlessnet.auditing.equivalence import EquivalenceTest
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.exchanging import exchangeable
from spotlessnet.core.intervals import clopper_pearson, permutation_pvalue, ratio_interval, t_interval
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split, rows
from spotlessnet.core.trained import Trained
from spotlessnet.datasets import digits
from spotlessnet.models.mlp import MLP
from spotlessnet.training.fit_many import fit_many
from spotlessnet.training.pairs import train_pairs

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, command, machine

RECIPE = Recipe(epochs=40, lr=0.1, momentum=0.9, batch_size=50, weight_decay=1e-4)
ADAMW = Recipe(
    epochs=40, lr=0.01, batch_size=50, optimizer="adamw", weight_decay=0.01, decay_toward="zero", decay_on="matrices",
    schedule="cosine", warmup_ratio=0.1, max_grad_norm=1.0,
)  # fmt: skip
RECIPES = {"sgd": RECIPE, "adamw": ADAMW}


def wrong_labels(count: int = 400, share: float = 0.15) -> Split:
    """Some digits to train on, a share of them with wrong labels: the rows that must go."""
    pair = digits.load()
    train = pair.train.select(range(count))
    generator = torch.Generator().manual_seed(0)
    wrong = torch.randperm(count, generator=generator)[: round(share * count)].sort().values
    y = train.labels().clone()
    y[wrong] = (y[wrong] + torch.randint(1, 10, wrong.shape, generator=generator)) % 10
    return rows(train.rows[wrong].tolist(), mislabelled=True)(train.relabel(y), pair.test)


def otherwise(recipe: Recipe) -> Recipe:
    """Another way to train that forgets as well: fewer epochs in smaller batches."""
    return recipe.but(epochs=20, batch_size=25)


def begin(seed: int, recipe: Recipe = RECIPE) -> Trained:
    return Trained.of(MLP(64, 10, hidden=(32,), seed=seed), recipe=recipe)


def pick(group: Evidence, which: np.ndarray[Any, Any]) -> Evidence:
    return group.select(torch.from_numpy(which))


def trained_on(split: Split, recipe: Recipe, kept: int, seeds: range) -> Evidence:
    """Networks trained without the forgotten rows but for the first few, which were kept."""
    keep = ~split.forgotten
    keep[split.forgotten.nonzero().squeeze(1)[:kept]] = True
    starts = torch.stack([begin(seed).weights for seed in seeds])
    rows_of_each = keep.expand(len(seeds), -1)
    weights = fit_many(begin(0), split.whole, recipe, seeds=list(seeds), keep=rows_of_each, starts=starts)
    return Evidence.of([begin(0).at(w) for w in weights], split)


def calibrate(pairs: int, draws: int, nulls: int, sets: int, seeds: int = 8, recipe: Recipe = RECIPE) -> dict[str, Any]:
    """Train a pool, then audit random groups from it. Groups of one audit never share a network."""
    began, split = time.perf_counter(), wrong_labels()
    pool = train_pairs(partial(begin, recipe=recipe), split, seeds=pairs)
    original, retrained, held_out = (Evidence.of(g, split) for g in (pool.original, pool.retrained, pool.held_out))
    others = range(2 * pairs, 3 * pairs)
    candidates = {
        "retrained": retrained,
        "original": original,
        "trained otherwise": trained_on(split, otherwise(recipe), 0, others),
        "one row kept": trained_on(split, recipe, 1, others),
        "three rows kept": trained_on(split, recipe, 3, others),
    }
    trained_in, generator = time.perf_counter() - began, np.random.default_rng(0)

    def groups(many: int) -> list[np.ndarray[Any, Any]]:
        return np.split(generator.permutation(pairs)[: many * seeds], many)

    words: dict[str, Counter[str]] = {name: Counter() for name in candidates}
    for draw in range(draws):
        a, b = groups(2)
        audit, reference = EquivalenceTest(seed=draw), (pick(original, a), pick(retrained, a))
        other = pick(held_out, groups(1)[0])
        for name, pool_of in candidates.items():
            words[name][audit(reference[0], pick(pool_of, b), reference[1], other).outcome] += 1
    gap, by_row = [], []
    for draw in range(nulls):
        ours, theirs = (retrained.margins[group] for group in groups(2))
        gap.append(permutation_pvalue(ours.mean(1), theirs.mean(1), _distance, draws=199, seed=draw))
        by_row.append(exchangeable(ours, theirs, permutations=199, seed=draw))
    mean, covered = float(retrained.margins.mean()), Counter[str]()
    for _ in range(sets):
        a, b = groups(2)
        _, low, high = t_interval(retrained.margins[a].mean(1))
        covered["mean margin"] += low <= mean <= high
        base = retrained.margins[a].mean(1)
        share = ratio_interval(retrained.margins[b].mean(1) - base, original.margins[a].mean(1) - base, 0.95)
        covered["remembered share"] += share.low <= 0 <= share.high
    return {
        "networks": 6 * pairs,
        "forgotten_rows": len(split.forget),
        "retained_rows": len(split.retain),
        "seeds_per_audit": seeds,
        "error_on_forgotten": {"original": _mean(original.forget_error), "retrained": _mean(retrained.forget_error)},
        "error_on_test": {"original": _mean(original.test_error), "retrained": _mean(retrained.test_error)},
        "margin_on_forgotten": {"original": _mean(original.margins), "retrained": _mean(retrained.margins)},
        **{title: _rate(words[name], word, draws) for title, name, word in WANTED},
        "null_p_values": {
            name: {"draws": nulls, "ks_p": float(stats.kstest(p, "uniform").pvalue)}
            for name, p in (("mean margin", gap), ("row by row", by_row))
        },
        "coverage_of_95": {name: count / sets for name, count in covered.items()} | {"sets": sets},
        "seconds": {"training": round(trained_in, 1), "all": round(time.perf_counter() - began, 1)},
    }


WANTED = (
    ("retrained_pass", "retrained", "forgotten"),
    ("original_caught", "original", "not forgotten"),
    ("trained_otherwise_pass", "trained otherwise", "forgotten"),
    ("one_row_kept_caught", "one row kept", "not forgotten"),
    ("three_rows_kept_caught", "three rows kept", "not forgotten"),
)
"""The word that each kind of network should get."""


def _rate(words: Counter[str], wanted: str, draws: int) -> dict[str, Any]:
    share = clopper_pearson(words[wanted], draws)
    return {"share": share.value, "low": share.low, "high": share.high, **words}


def _distance(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    return abs(float(a.mean() - b.mean()))


def _mean(values: torch.Tensor) -> float:
    return round(float(values.mean()), 4)


def flags() -> Flags:
    parser = Flags(__doc__).out(help="the file for the figures")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--nulls", type=int, default=500)
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--optimizer", choices=list(RECIPES), default="sgd", help="how the networks are trained")
    return parser


def main() -> None:
    given = flags().parse_args()
    figures = calibrate(given.pairs, given.draws, given.nulls, given.sets, recipe=RECIPES[given.optimizer])
    record = {
        "command": command("calibration"),
        "seeds": f"trainings 0 to {3 * given.pairs - 1}, labels 0, groups 0",
        "machine": f"{machine()}, {os.cpu_count()} cores",
        "figures": figures,
    }
    text = json.dumps(record, indent=2, allow_nan=False)
    print(text)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
