"""Can the verdict be trusted on networks trained with AdamW? Audits on digits, each with networks and rows of its own.

    python benchmarks/calibration_adamw.py --audits 100 --workers 16 --stop 500 --out results/calibration-adamw.jsonl
    python benchmarks/calibration_adamw.py --out results/calibration-adamw.jsonl --table       # count what is there

Every audit draws 400 digits, gives 60 of them wrong labels, trains 8 pairs and 8 held-out networks, and judges 8
networks that were retrained without the 60 rows and 8 that were not, both trained with seeds of their own, each group
with a ninth network that stands for the file taken away and is judged by itself too. No network takes part in two
audits. A row is written for each candidate; audits whose rows are there are not run again.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from spotlessnet.auditing.equivalence import EquivalenceTest
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.core.intervals import clopper_pearson
from spotlessnet.core.progress import quiet
from spotlessnet.core.registry import markdown_table
from spotlessnet.core.split import Split, rows
from spotlessnet.datasets import digits
from spotlessnet.training.pairs import train_pairs

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.calibration import ADAMW, begin
from benchmarks.common import Flags, command, machine

TRAINED_ON, WRONG, SEEDS = 400, 60, 8
APART = 1000
"""Between the first seeds of two audits."""

WANTED = {"retrained": "forgotten", "original": "not forgotten"}
"""The word that each candidate should get."""


def wrong_labels(audit: int) -> Split:
    """Digits of one audit, some of them with wrong labels: the rows that must go."""
    pair, draw = digits.load(), torch.Generator().manual_seed(audit)
    some = torch.randperm(len(pair.train), generator=draw)[:TRAINED_ON].sort().values
    train = pair.train.select(some)
    wrong = torch.randperm(TRAINED_ON, generator=draw)[:WRONG].sort().values
    y = train.labels().clone()
    y[wrong] = (y[wrong] + torch.randint(1, 10, wrong.shape, generator=draw)) % 10
    return rows(train.rows[wrong].tolist(), mislabelled=True)(train.relabel(y), pair.test)


def audit(number: int) -> list[dict[str, Any]]:
    """One audit of both candidates, with networks that no other audit sees."""
    torch.set_num_threads(1)
    began, split, first = time.process_time(), wrong_labels(number), APART * (1 + number)
    start = partial(begin, recipe=ADAMW)
    with quiet():
        ours = train_pairs(start, split, seeds=SEEDS, first=first)
        others = train_pairs(start, split, seeds=SEEDS + 1, first=first + APART // 2)
        original, *references = (Evidence.of(group, split) for group in (ours.original, ours.retrained, ours.held_out))
        test = EquivalenceTest(seed=number)
        found = []
        for name, group in (("retrained", others.held_out), ("original", others.original)):
            candidate, delivered = (Evidence.of(some, split) for some in (group[:SEEDS], group[SEEDS:]))
            file = test.judge_file(original, delivered, references)
            verdict = test(original, candidate, *references, extra=[file])
            found.append(
                {
                    "audit": number, "candidate": name, "outcome": verdict.outcome, "reason": verdict.reason,
                    "forget_error": float(candidate.forget_error.mean()), "seconds": time.process_time() - began,
                }
            )  # fmt: skip
    return found


def run(numbers: list[int], workers: int, stop: float) -> Iterator[list[dict[str, Any]]]:
    """Audits side by side, as they end; none begins that would end after `stop` seconds."""
    began, longest, waiting = time.monotonic(), 0.0, iter(numbers)
    running: dict[Future[list[dict[str, Any]]], float] = {}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        while True:
            while len(running) < workers and time.monotonic() - began + 1.2 * longest < stop:
                number = next(waiting, None)
                if number is None:
                    break
                running[pool.submit(audit, number)] = time.monotonic()
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                longest = max(longest, time.monotonic() - running.pop(done))
                yield done.result()


def read(path: Path | None) -> list[dict[str, Any]]:
    """Rows of earlier runs."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def table(found: list[dict[str, Any]]) -> str:
    """How often each candidate got the word that it should get, with the exact 95 % interval."""
    cells = []
    for name, word in WANTED.items():
        words = Counter(row["outcome"] for row in found if row["candidate"] == name)
        share = clopper_pearson(words[word], max(1, words.total()))
        cells.append((name, word, f"{words[word]} of {words.total()}", f"{share.low:.3f} to {share.high:.3f}"))
    return markdown_table(("candidate", "should be", "was", "95 % interval"), cells)


def flags() -> Flags:
    parser = Flags(__doc__).out().table()
    parser.add_argument("--audits", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the number of the first audit")
    parser.add_argument("--workers", type=int, default=1, help="processes, each of one thread")
    parser.add_argument("--stop", type=float, default=float("inf"), help="seconds after which no audit begins")
    return parser


def main() -> None:
    """Audit, keep rows, count."""
    given = flags().parse_args()
    found = read(given.out)
    known = {row["audit"] for row in found}
    numbers = [one for one in range(given.first, given.first + given.audits) if one not in known]
    for made in run([] if given.table else numbers, given.workers, given.stop):
        found += made
        if given.out is None:
            continue
        about = {"command": command("calibration_adamw"), "machine": machine()}
        with given.out.open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps({**row, **about}) + "\n" for row in made)
    print(table(found))


if __name__ == "__main__":
    main()
