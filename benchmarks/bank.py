"""Verdicts from a bank: three networks without the rows, or as many as a sequential audit asks for.

    python benchmarks/audit_gauntlet.py --pack gauntlet.npz
    python benchmarks/bank.py --data gauntlet.npz --workers 4 --stop 520 --out results/bank.jsonl
    python benchmarks/bank.py --out results/bank.jsonl --table        # count what is there

One row for each candidate of each audit, written when it is finished. Requests, networks and candidates are those of
`audit_gauntlet.py`; `SETTINGS` are of its `CONFIRMING`, which served to choose nothing. Every audit has networks of its
own, and is judged by the package's own code from `Evidence.of` on.
"""

import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, command, machine
from benchmarks.gauntlet_candidates import SEEDS, Audits, Setting
from benchmarks.gauntlet_data import is_here

from spotlessnet.auditing.bank import LOOKS
from spotlessnet.auditing.bank_test import BankTest
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.verdict import Verdict
from spotlessnet.core.intervals import clopper_pearson
from spotlessnet.core.registry import markdown_table

SETTINGS = ("mnist/perceptron/wrong-60", "banking/perceptron/wrong-12", "blobs/deep/wrong-60")
CANDIDATES = ("retrained", "original", "fine-tuned")
LONGER = ("a tenth kept", "one row kept", "half epochs", "margins matched", "logits matched")
"""Those that mostly take all looks: of the first audit of each job alone."""

AT_ONCE = 3
"""Audits whose networks are trained as one program."""

ENOUGH = 1000

Job = tuple[str, int]
"""A setting, and the number of the first audit."""


def rows_of(job: Job, packed: Path | None) -> list[dict[str, Any]]:
    """What both forms of the bank say of each candidate."""
    torch.set_num_threads(1)
    name, first = job
    setting = Setting.of(name, packed)
    audits = Audits(setting, range(first, first + AT_ONCE))
    known = audits.candidates()
    audits.train(("references", "audited originals", *CANDIDATES, *LONGER, "teacher"))

    def look(weights: torch.Tensor) -> Evidence:
        return Evidence.of(setting.networks(weights), setting.split, setting.trained.recipe)

    rows = []
    for candidate in (one for one in (*CANDIDATES, *LONGER) if one in known):
        groups = known[candidate]()
        for i, number in enumerate(audits.numbers[: 1 if candidate in LONGER else AT_ONCE]):
            began = time.perf_counter()
            original, references = (look(audits.group(who)[i]) for who in ("audited originals", "references"))
            three, in_turn, spent = both_forms(original, look(groups[i]), references, number)
            rows.append({
                "setting": name, "audit": number, "candidate": candidate, "networks": SEEDS,
                "three": three.outcome, "three_hidden": _hidden(three), "three_reason": three.reason[:120],
                "sequential": in_turn.outcome, "sequential_hidden": _hidden(in_turn), "trainings": spent,
                "three_checks": _checks(three), "sequential_checks": _checks(in_turn),
                "seconds": round(time.perf_counter() - began, 2),
            })  # fmt: skip
    return rows


def both_forms(original: Evidence, group: Evidence, references: Evidence, seed: int) -> tuple[Verdict, Verdict, int]:
    """From the first three references; and in sequence, with the number of references that it took."""
    file = group.select(torch.tensor([0]))

    def judge(test: BankTest, count: int) -> Verdict:
        return test.judge(original, group, references.select(torch.arange(count)), delivered=file)

    three = judge(BankTest(seed=seed), LOOKS[0])
    for count in LOOKS:
        found = judge(BankTest(seed=seed, looks=len(LOOKS)), count)
        if found.outcome != "inconclusive":
            break
    return three, found, count


def _hidden(verdict: Verdict) -> dict[str, Any] | None:
    return None if verdict.could_hide is None else vars(verdict.could_hide)


def _checks(verdict: Verdict) -> dict[str, Any]:
    return {check.name: [check.state, check.value, check.low, check.high, check.note] for check in verdict.checks}


def summary(rows: list[dict[str, Any]]) -> str:
    """What a page says: of every candidate, each outcome with its exact 95 % limits, and trainings in the mean."""
    cells = []
    for candidate in dict.fromkeys(row["candidate"] for row in rows):
        some = [row for row in rows if row["candidate"] == candidate]
        mean = sum(row["trainings"] for row in some) / len(some)
        cells.append((candidate, *(_counts(some, form) for form in ("three", "sequential")), f"{mean:.1f}"))
    head = ("network", "3 references", "in sequence", "trainings in the mean")
    return markdown_table(head, cells)


def _counts(rows: list[dict[str, Any]], form: str) -> str:
    found = Counter(row[form] for row in rows)
    words = []
    for outcome, count in found.most_common():
        share = clopper_pearson(count, len(rows))
        words.append(f"{outcome} {count} of {len(rows)} ({100 * share.low:.0f}–{100 * share.high:.0f} %)")
    none = [row for row in rows if row[form] == "forgotten" and not row[f"{form}_hidden"]["single"]]
    kept = rows[0]["candidate"] == "one row kept"
    return "; ".join([*words, *([f"{len(none)} of them said that none could have hidden"] if kept else [])])


def jobs(settings: list[str], first: int) -> Iterator[Job]:
    """All settings in turn, so that a run that is stopped has looked at all of them alike."""
    for number in range(first, first + ENOUGH, AT_ONCE):
        yield from ((name, number) for name in settings)


def main() -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    flags = Flags(__doc__).out().table()
    flags.add_argument("--data", type=Path, help="the file that `audit_gauntlet.py --pack` wrote")
    flags.add_argument("--settings", nargs="+", default=list(SETTINGS), help="data/network/cohort")
    flags.add_argument("--workers", type=int, default=2)
    flags.add_argument("--stop", type=float, default=600, help="seconds after which nothing more is written")
    flags.add_argument("--first", type=int, default=0, help="number of the first audit: the next run of more audits")
    given = flags.parse_args()
    if given.table:
        print(summary([json.loads(line) for line in given.out.read_text(encoding="utf-8").splitlines()]))
        return
    began = time.monotonic()
    settings = [name for name in given.settings if is_here(name.split("/")[0], given.data)]
    about = {"command": command("bank"), "machine": machine()}
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        found = pool.imap_unordered(partial(rows_of, packed=given.data), jobs(settings, given.first))
        while (left := given.stop - (time.monotonic() - began)) > 0:
            try:
                rows = found.next(timeout=left)
            except (multiprocessing.TimeoutError, StopIteration):
                break
            lines = "".join(json.dumps({**row, **about}) + "\n" for row in rows)
            print(*(f"{r['setting']} {r['audit']} {r['candidate']} {r['three']}" for r in rows), sep="\n", flush=True)
            if given.out:
                with given.out.open("a", encoding="utf-8") as out:
                    out.write(lines)
        pool.terminate()


if __name__ == "__main__":
    main()
