"""Who passes the verdict, who is caught: honest networks, cheats and kept rows, most of them on unused data.

    python benchmarks/audit_gauntlet.py --pack gauntlet.npz
    python benchmarks/audit_gauntlet.py --data gauntlet.npz --workers 14 --stop 520 --out rows.jsonl

One row for each audit, written when it is finished, so that a run may be stopped at any time. An audit has eight seeds
and networks of its own, trained with `fit_many` together with those of a few other audits; it is judged with the package's own code, from `Evidence.of` on.
Settings in `CHOOSING` served to choose the test, its ways of asking and its levels; those in `CONFIRMING` did not, and
share no data set with them. One thread a worker; without `--data`, scikit-learn and files beside the project are read.
"""

import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, command, machine
from benchmarks.gauntlet_candidates import SEEDS, Audits, Setting
from benchmarks.gauntlet_data import is_here, pack

from spotlessnet.auditing.equivalence import EquivalenceTest, Gates
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.verdict import ROWS
from spotlessnet.core.errors import SpotlessError
from spotlessnet.core.scrub import METHODS

CHOOSING = (
    "digits/perceptron/person-12", "table/deep/wrong-60", "digits/deep/some-60", "wine/perceptron/wrong-5",
    "table/attention/wrong-12", "digits/cnn/class-0", "table/perceptron/wrong-200", "digits/perceptron/wrong-12",
    "table/deep/person-12", "digits/cnn/person-12", "digits/perceptron/twice-12", "wine/deep/wrong-1",
    "digits/attention/wrong-1", "wine/perceptron/some-12", "table/perceptron/class-2",
)  # fmt: skip
CONFIRMING = (
    "mnist/perceptron/wrong-60", "banking/perceptron/wrong-12", "blobs/deep/wrong-60", "faces/cnn/wrong-60",
    "cancer/perceptron/wrong-5", "mnist/deep/person-12", "banking/attention/wrong-60", "mnist/cnn/class-3",
    "blobs/attention/wrong-200", "cifar/cnn/wrong-12", "faces/perceptron/person-12", "mnist/attention/wrong-1",
    "banking/deep/class-3", "faces/deep/wrong-200", "cifar/perceptron/some-60", "mnist/perceptron/twice-12",
)  # fmt: skip
METHODS_ON = ("mnist/perceptron/wrong-60", "banking/perceptron/wrong-12", "banking/deep/class-3")
METHODS_OF = 10
"""Audits of each of the package's methods: they are not trained as one program."""

WRAPPER = "within-budget"
"""It stands around another method, and has no settings of its own."""

ENOUGH = 100
ENDING = 12.0
"""Seconds of `--stop` that are left to the imports before the clock starts, and to ending the workers."""

AT_ONCE = {"perceptron": 4, "deep": 4, "cnn": 2, "attention": 2}
"""Audits whose networks are trained as one program; the larger the networks, the less is gained."""

Job = tuple[str, tuple[int, ...], str]
"""A setting, numbers of audits, and the method of the package that is audited; all other candidates if empty."""


def rows_of(job: Job, packed: Path | None) -> Iterator[dict[str, Any]]:
    """One row for each audit of each candidate."""
    name, numbers, method = job
    setting = Setting.of(name, packed)
    audits = Audits(setting, numbers)
    judges = [Judge.of(setting, audits, i) for i in range(len(numbers))]
    used = "choosing" if name in CHOOSING else "confirming"
    candidates = [(method, lambda: audits.scrubbed(method))] if method else audits.candidates()
    for candidate, make in candidates:
        began = time.perf_counter()
        about = {"setting": name, "used_for": used, "candidate": candidate, "method": bool(method),
                 "forgotten_rows": len(setting.rows)}  # fmt: skip
        try:
            groups = make()
        except SpotlessError as error:  # a method that such a request does not suit, or that burst
            yield from ({**about, "audit": n, "outcome": "refused", "reason": str(error)[:120]} for n in numbers)
            continue
        made = (time.perf_counter() - began) / len(numbers)
        for number, judge, weights in zip(numbers, judges, groups, strict=True):
            began = time.perf_counter()
            try:
                found = judge(weights)
            except SpotlessError as error:
                found = {"outcome": "refused", "reason": str(error)[:120]}
            seconds = [round(made, 2), round(time.perf_counter() - began, 2)]
            yield {**about, "audit": number, **found, "seconds": seconds}


@dataclass(frozen=True, eq=False)
class Judge:
    """What one audit judges by."""

    setting: Setting
    test: EquivalenceTest
    original: Evidence
    references: list[Evidence]
    gates: Gates

    @staticmethod
    def of(setting: Setting, audits: Audits, i: int) -> "Judge":
        """Look at the networks that the audit itself trains."""
        original, both = (_look(setting, audits.alike[name][i]) for name in ("audited originals", "references"))
        references = [both.select(half) for half in torch.arange(2 * SEEDS).chunk(2)]
        test = EquivalenceTest(seed=audits.numbers[i])
        return Judge(setting, test, original, references, test.gates(original, *references))

    def __call__(self, weights: torch.Tensor) -> dict[str, Any]:
        """What is said of a candidate, and of its first network as a file."""
        group = _look(self.setting, weights)
        verdict = self.test(self.original, group, *self.references, gates=self.gates)
        one = group.select(torch.tensor([0]))
        file = self.test.judge_file(self.original, one, self.references, self.gates).state
        hidden, known = verdict.could_hide, self.gates.known.found
        return {
            "outcome": verdict.outcome,
            "reason": verdict.reason[:60],
            "oracle": verdict.oracle,
            "power": verdict.power,
            "checks": {check.name: [check.state, *(_short(v) for v in (check.value, check.low, check.high))]
                       for check in verdict.checks},
            "p": verdict.checks[ROWS].note,
            "p_original": None if known is None else [_short(known.p_networks), _short(known.p_rows)],
            "file": file,
            "could_hide": None if hidden is None else vars(hidden),
        }  # fmt: skip


def _look(setting: Setting, weights: torch.Tensor) -> Evidence:
    return Evidence.of(setting.networks(weights), setting.split, setting.trained.recipe)


def _short(value: float) -> float | None:
    return float(f"{value:.3g}") if math.isfinite(value) else None


def jobs(settings: Sequence[str], methods: bool, first: int, count: int = ENOUGH) -> Iterator[Job]:
    """All settings in turn, again and again, so that a run that is stopped has looked at all of them alike."""
    known = [name for name in METHODS.names() if name != WRAPPER] if methods else []
    for r in range(count):
        for name in settings:
            many = AT_ONCE[name.split("/")[1]]
            numbers = tuple(range(first + r * many, min(first + count, first + (r + 1) * many)))
            if numbers:
                yield name, numbers, ""
        for name in (one for one in METHODS_ON if one in settings and r < METHODS_OF):
            yield from ((name, (first + r,), method) for method in known)


def work(todo: Any, done: Any, packed: Path | None) -> None:
    """One worker: jobs come in, rows go out."""
    torch.set_num_threads(1)
    for job in iter(todo.get, None):
        try:
            for row in rows_of(job, packed):
                done.put(row)
        except Exception as error:  # one broken audit must not end the others: it is written down
            done.put({"setting": job[0], "audit": job[1][0], "method": bool(job[2]), "candidate": job[2] or "all",
                      "outcome": "broken", "reason": f"{type(error).__name__}: {error}"[:300]})  # fmt: skip


def run(queue: Sequence[Job], workers: int, stop: float, packed: Path | None, out: Path | None) -> int:
    """All jobs that time allows; rows are written as they come."""
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    for job in [*queue, *[None] * workers]:
        todo.put(job)
    pool = [context.Process(target=work, args=(todo, done, packed), daemon=True) for _ in range(workers)]
    for process in pool:
        process.start()
    about = {"command": command("audit_gauntlet"), "machine": machine()}
    count = 0
    while time.monotonic() - began < stop - ENDING:
        try:
            row = done.get(timeout=0.5)
        except Empty:
            if not any(process.is_alive() for process in pool):
                break
            continue
        count += 1
        line = json.dumps({**row, **about})
        if out is not None:
            with out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        print(row["setting"], row["audit"], row["candidate"], row["outcome"], row.get("seconds"), flush=True)
    for process in pool:
        process.terminate()
    todo.cancel_join_thread()
    print(f"{count} rows in {time.monotonic() - began:.0f} s", flush=True)
    return count


def main() -> None:
    # Before workers start: each has one thread, whatever the machine would give it.
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    flags = Flags(__doc__).out()
    flags.add_argument("--pack", type=Path, help="write all data into this file, and do nothing else")
    flags.add_argument("--data", type=Path, help="the file that --pack wrote")
    flags.add_argument("--settings", nargs="+", default=list(CONFIRMING), help="data/network/cohort")
    flags.add_argument("--workers", type=int, default=2)
    flags.add_argument("--stop", type=float, default=600, help="seconds, never exceeded")
    flags.add_argument("--first", type=int, default=0, help="number of the first audit: the next run of more audits")
    flags.add_argument("--without-methods", action="store_true", help="leave the package's own methods out")
    given = flags.parse_args()
    if given.pack is not None:
        pack(given.pack)
        return
    settings = [name for name in given.settings if is_here(name.split("/")[0], given.data)]
    for name in set(given.settings) - set(settings):
        print(f"{name}: the data are not here")
    queue = list(jobs(settings, not given.without_methods, given.first))
    run(queue, given.workers, given.stop, given.data, given.out)


if __name__ == "__main__":
    main()
