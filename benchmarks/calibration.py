"""Under the null: p-values, limits and bets of audits whose candidates were retrained as their references were.

    python benchmarks/audit_gauntlet.py --pack gauntlet.npz
    python benchmarks/calibration.py --data gauntlet.npz --workers 2 --stop 480 --out results/calibration.jsonl
    python benchmarks/calibration.py --out results/calibration.jsonl --table       # count what is there

Every audit trains 8 originals, 16 references and 8 candidates of its own, so that p-values of one setting are
independent and may be held against the uniform distribution. Rows and labels of a setting are the same in all audits.
"""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, command, machine
from benchmarks.gauntlet_candidates import SEEDS, Audits, Setting

from spotlessnet.auditing.bank import LOOKS
from spotlessnet.auditing.betting import wealth_over_ways
from spotlessnet.auditing.equivalence import EquivalenceTest
from spotlessnet.auditing.evidence import Evidence, joined
from spotlessnet.auditing.exchanging import standing_out
from spotlessnet.auditing.verdict import SHARE
from spotlessnet.core.intervals import clopper_pearson
from spotlessnet.core.progress import quiet
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.registry import markdown_table
from spotlessnet.core.trained import Trained
from spotlessnet.models.mlp import MLP

ADAMW = Recipe(
    epochs=40, lr=0.01, batch_size=50, optimizer="adamw", weight_decay=0.01, decay_toward="zero", decay_on="matrices",
    schedule="cosine", warmup_ratio=0.1, max_grad_norm=1.0,
)  # fmt: skip
"""Of `calibration_adamw.py`."""

SETTINGS = ("digits/perceptron/wrong-60", "mnist/perceptron/wrong-60", "banking/perceptron/wrong-12")
FIRST = 3000
"""Number of the first audit: networks that no other benchmark trains."""

ENOUGH = 1000
Job = tuple[str, int]


def begin(seed: int, recipe: Recipe = ADAMW) -> Trained:
    """An untrained network of `calibration_adamw.py`."""
    return Trained.of(MLP(64, 10, hidden=(32,), seed=seed), recipe=recipe)


def audit(job: Job, packed: Path | None = None) -> dict[str, Any]:
    """One audit of networks that never saw the rows."""
    torch.set_num_threads(1)
    name, number = job
    began, setting = time.perf_counter(), Setting.of(name, packed)
    made = Audits(setting, [number])
    seeds = [seed for group in (1, 3, 0) for seed in made.seeds(group, SEEDS if group else 2 * SEEDS)]
    keep = setting.kept.repeat(len(seeds), 1)
    keep[:SEEDS] = True
    with quiet():
        groups = made.fit(seeds, keep, made.starts(seeds)).split(SEEDS)
        recipe = setting.trained.recipe
        found = [Evidence.of(setting.networks(weights), setting.split, recipe) for weights in groups]
    candidate, references = found[1], joined([group.channels or [] for group in found[2:]])
    ours = candidate.channels or []
    beside = standing_out(ours, references, candidate.labels, seed=number)
    share = EquivalenceTest(seed=number).checks(found[0], found[1], found[2], found[3])[SHARE]
    held = wealth_over_ways(ours, references, candidate.labels)
    return {
        "setting": name, "audit": number, "p_networks": beside.p_networks, "p_rows": beside.p_rows,
        "share": [share.low, share.high], "most_wealth": max(held), "wealth_at_looks": [held[k - 1] for k in LOOKS],
        "seconds": round(time.perf_counter() - began, 2),
    }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What should be uniform, what should be rare, and how often limits hold zero, the truth."""
    n = len(rows)
    p = [row["p_networks"] for row in rows]
    return {
        "audits": n,
        "networks_ks": float(stats.kstest(p, "uniform").pvalue),
        "networks_at_5": sum(one <= 0.05 for one in p),
        "rows_at_2": sum(row["p_rows"] <= 0.02 for row in rows),
        "both": sum(row["p_networks"] <= 0.05 and row["p_rows"] <= 0.02 for row in rows),
        "share_covered": sum(row["share"][0] <= 0 <= row["share"][1] for row in rows),
        "held_twenty": sum(row["most_wealth"] >= 20 for row in rows),
    }


COLUMNS = ("networks_at_5", "rows_at_2", "both", "share_covered", "held_twenty")


def table(rows: list[dict[str, Any]]) -> str:
    """One line a setting; counts with their exact 95 % limits."""
    cells = []
    for name in dict.fromkeys(row["setting"] for row in rows):
        found = summary([row for row in rows if row["setting"] == name])
        n = found["audits"]
        limits = {key: clopper_pearson(found[key], n) for key in COLUMNS}
        counts = [f"{found[key]} ({100 * one.low:.1f}–{100 * one.high:.1f} %)" for key, one in limits.items()]
        cells.append((name, str(n), f"{found['networks_ks']:.2f}", *counts))
    head = ("setting", "audits", "uniform? (KS p)", "networks p ≤ .05", "rows p ≤ .02", "both", "share: 90 % limits "
            "hold 0", "bets ever hold 20")  # fmt: skip
    return markdown_table(head, cells)


def jobs(settings: list[str], first: int) -> Iterator[Job]:
    """All settings in turn."""
    for number in range(first, first + ENOUGH):
        yield from ((name, number) for name in settings)


def read(path: Path | None) -> list[dict[str, Any]]:
    """Rows of earlier runs."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    flags = Flags(__doc__).out().table()
    flags.add_argument("--data", type=Path, help="the file that `audit_gauntlet.py --pack` wrote")
    flags.add_argument("--settings", nargs="+", default=list(SETTINGS), help="data/network/cohort")
    flags.add_argument("--workers", type=int, default=2)
    flags.add_argument("--stop", type=float, default=600, help="seconds after which nothing more is written")
    flags.add_argument("--first", type=int, default=FIRST, help="number of the first audit")
    given = flags.parse_args()
    began, about = time.monotonic(), {"command": command("calibration"), "machine": machine()}
    if not given.table:
        with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
            found = pool.imap_unordered(partial(audit, packed=given.data), jobs(given.settings, given.first))
            while (left := given.stop - (time.monotonic() - began)) > 0:
                try:
                    row = found.next(timeout=left)
                except (multiprocessing.TimeoutError, StopIteration):
                    break
                print(row["setting"], row["audit"], row["p_networks"], row["p_rows"], row["seconds"], flush=True)
                if given.out:
                    with given.out.open("a", encoding="utf-8") as out:
                        out.write(json.dumps({**row, **about}) + "\n")
            pool.terminate()
    print(table(read(given.out)))


if __name__ == "__main__":
    main()
