"""Under the null: p-values, limits and bets of audits whose candidates were retrained as their references were.

    python benchmarks/audit_gauntlet.py --pack gauntlet.npz
    python benchmarks/calibration.py --data gauntlet.npz --workers 2 --stop 480 --out results/calibration.jsonl
    python benchmarks/calibration.py --out results/calibration.jsonl --table       # count what is there

Every audit trains 8 originals, 16 references and 8 candidates of its own, and as many for a second look, so that
p-values of one setting are independent and may be held against the uniform distribution. Rows and labels of a setting
are the same in all audits.
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
from spotlessnet.auditing.evidence import Evidence
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

SETTINGS = ("digits/perceptron/wrong-60", "mnist/perceptron/wrong-60", "banking/perceptron/wrong-12",
            "table/perceptron/person-12@2", "digits/perceptron/some-60")  # fmt: skip
FIRST = 3000
"""Number of the first audit: networks that no other benchmark trains."""

ENOUGH = 1000
Job = tuple[str, int]


def begin(seed: int, recipe: Recipe = ADAMW) -> Trained:
    """An untrained network of `calibration_adamw.py`."""
    return Trained.of(MLP(64, 10, hidden=(32,), seed=seed), recipe=recipe)


def audit(job: Job, packed: Path | None = None) -> dict[str, Any]:
    """One audit of networks that never saw the rows, as it would be after a first and after a second look."""
    torch.set_num_threads(1)
    name, number = job
    began, setting = time.perf_counter(), Setting.of(name, packed)
    with quiet():
        groups = [networks(setting, number, look) for look in (0, 1)]
    both = [one.join(more) for one, more in zip(*groups, strict=True)]
    first, second = (look_at(number, *some) for some in (groups[0], both))
    ours, theirs = (group.channels or [] for group in both[1:])
    held = wealth_over_ways([one.select(torch.arange(SEEDS)) for one in ours], theirs, both[1].labels)
    return {
        "setting": name, "audit": number, **first, "second": second, "most_wealth": max(held),
        "wealth_at_looks": [held[k - 1] for k in LOOKS], "seconds": round(time.perf_counter() - began, 2),
    }  # fmt: skip


def networks(setting: Setting, number: int, look: int) -> list[Evidence]:
    """Originals, candidates and references of one look."""
    made = Audits(setting, [number], look)
    made.train(("audited originals", "retrained", "references"))
    groups = (made.group(name)[0] for name in ("audited originals", "retrained", "references"))
    return [Evidence.of(setting.networks(w), setting.split, setting.trained.recipe) for w in groups]


def look_at(number: int, original: Evidence, candidate: Evidence, references: Evidence) -> dict[str, Any]:
    """p-values, limits of the share, and what a test of one look and one of two looks would say."""
    one, other = (references.select(half) for half in torch.arange(len(references)).chunk(2))
    once, in_two = EquivalenceTest(seed=number), EquivalenceTest(seed=number, looks=2).one_look()
    found = standing_out(
        candidate.channels or [], references.channels or [], candidate.labels, seed=number, permutations=1999
    )
    checks = once.checks(original, candidate, one, other)
    stricter = in_two.checks(original, candidate, one, other)
    return {
        "p_networks": found.p_networks, "p_rows": found.p_rows, "share": [checks[SHARE].low, checks[SHARE].high],
        "says": once.outcome(checks), "says_of_two": in_two.outcome(stricter),
        "share_of_two": [stricter[SHARE].low, stricter[SHARE].high],
    }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What should be uniform, what should be rare, and how often limits hold zero, the truth."""
    n = len(rows)
    p = [row["p_networks"] for row in rows]
    looks = [(row, row["second"]) for row in rows]
    return {
        "audits": n,
        "networks_ks": float(stats.kstest(p, "uniform").pvalue),
        "networks_at_5": sum(one <= 0.05 for one in p),
        "rows_at_2": sum(row["p_rows"] <= 0.02 for row in rows),
        "accused": sum(row["says"] == "not forgotten" for row in rows),
        "accused_in_two": sum(any(look["says_of_two"] == "not forgotten" for look in both) for both in looks),
        "share_covered": sum(row["share"][0] <= 0 <= row["share"][1] for row in rows),
        "share_above": sum(row["share"][0] > 0 for row in rows),
        "held_twenty": sum(row["most_wealth"] >= 20 for row in rows),
    }


COLUMNS = ("networks_at_5", "rows_at_2", "accused", "accused_in_two", "share_covered", "held_twenty")


def table(rows: list[dict[str, Any]]) -> str:
    """One line a setting; counts with their exact 95 % limits."""
    cells = []
    for name in dict.fromkeys(row["setting"] for row in rows):
        found = summary([row for row in rows if row["setting"] == name])
        n = found["audits"]
        limits = {key: clopper_pearson(found[key], n) for key in COLUMNS}
        counts = [f"{found[key]} ({100 * one.low:.1f}–{100 * one.high:.1f} %)" for key, one in limits.items()]
        cells.append((name, str(n), f"{found['networks_ks']:.2f}", *counts))
    head = ("setting", "audits", "uniform? (KS p)", "networks p ≤ .05", "rows p ≤ .02", "accused",
            "accused in two looks", "share: 90 % limits hold 0", "bets ever hold 20")  # fmt: skip
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
