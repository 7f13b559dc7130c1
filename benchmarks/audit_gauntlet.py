"""Who passes the verdict, who is caught: honest networks, cheats and kept rows, most of them on unused data.

    python benchmarks/audit_gauntlet.py --pack gauntlet.npz
    python benchmarks/audit_gauntlet.py --data gauntlet.npz --workers 14 --stop 520 --out rows.jsonl

One row for each audit, written when it is finished, so that a run may be stopped at any time. An audit has eight seeds
and networks of its own, trained with `fit_many` together with those of a few other audits; it is judged with the
package's own code, from `Evidence.of` on. Forgotten rows are the same in all audits of a setting. Those in `CHOOSING`
served to choose the test, its ways of asking and its levels; those in `CONFIRMING` did not, and share no data set with
them. One thread a worker; without `--data`, scikit-learn and files beside the project are read.
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
from typing import Any, Literal

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, command, machine
from benchmarks.gauntlet_candidates import CANDIDATES, CORE, Audits, Setting
from benchmarks.gauntlet_data import is_here, pack

from spotlessnet.auditing.equivalence import EquivalenceTest, Gates
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.verdict import ROWS, Verdict
from spotlessnet.core.errors import SpotlessError
from spotlessnet.core.progress import quiet

CHOOSING = (
    "digits/perceptron/person-12", "table/deep/wrong-60", "digits/deep/some-60", "wine/perceptron/wrong-5",
    "table/attention/wrong-12", "digits/cnn/class-0", "table/perceptron/wrong-200", "digits/perceptron/wrong-12",
    "table/deep/person-12", "digits/cnn/person-12", "digits/perceptron/twice-12", "wine/deep/wrong-1",
    "digits/attention/wrong-1", "wine/perceptron/some-12", "table/perceptron/class-2", "digits/perceptron/person-12@3",
    "table/perceptron/person-12@2", "table/deep/person-12@3", "table/perceptron/person-12@6",
)  # fmt: skip
CONFIRMING = (
    "mnist/perceptron/wrong-60", "banking/perceptron/wrong-12", "blobs/deep/wrong-60", "faces/cnn/wrong-60",
    "cancer/perceptron/wrong-5", "mnist/deep/person-12", "banking/attention/wrong-60", "mnist/cnn/class-3",
    "blobs/attention/wrong-200", "cifar/cnn/wrong-12", "faces/perceptron/person-12", "mnist/attention/wrong-1",
    "banking/deep/class-3", "faces/deep/wrong-200", "cifar/perceptron/some-60", "mnist/perceptron/twice-12",
    "banking/perceptron/person-12", "blobs/deep/person-12", "cifar/deep/person-12", "banking/perceptron/person-12@2",
    "mnist/perceptron/person-12@3", "faces/deep/person-12@2",
)  # fmt: skip
METHODS_ON = ("mnist/perceptron/wrong-60", "banking/perceptron/wrong-12", "banking/deep/class-3")
METHODS_OF = 5
"""Audits of each of the package's methods, which look at one network after the other."""

ENOUGH = 100
ENDING = 12.0
"""Seconds of `--stop` that are left to the imports before the clock starts, and to ending the workers."""

AT_ONCE = {"perceptron": 4, "deep": 4, "cnn": 2, "attention": 2}
"""Audits whose networks are trained as one program; the larger the networks, the less is gained."""

LARGER = ("cnn", "attention")

LOOKS = 2
"""Looks of the sequential form: with twice the networks where the first says nothing."""

SELDOM = 4
"""Settings of larger networks have their turn once while the others have so many."""

Part = Literal["full", "core", "few", "methods"]
PARTS: dict[Part, tuple[str, ...]] = {"full": CANDIDATES, "core": CORE, "few": ("retrained", "original")}
TURNS: tuple[Part, ...] = ("full", "few", "core", "few", "full", "few")
"""Which candidates come before the audits of each turn; those of later turns are few, for many audits of these."""

Job = tuple[str, tuple[int, ...], Part]
"""A setting, numbers of audits, and which candidates come before them."""

Row = dict[str, Any]


def rows_of(job: Job, packed: Path | None) -> Iterator[Row]:
    """One row for each audit of each candidate."""
    name, numbers, part = job
    setting = Setting.of(name, packed)
    audits = Audits(setting, numbers)
    made = audits.methods() if part == "methods" else audits.candidates()
    names = list(made) if part == "methods" else [one for one in PARTS[part] if one in made]
    audits.train(["references", "audited originals", "original", *names, *(["teacher"] if part != "few" else [])])
    judges = Judges(setting, audits)
    about = {"setting": name, "used_for": "choosing" if name in CHOOSING else "confirming",
             "method": part == "methods", "forgotten_rows": len(setting.rows)}  # fmt: skip
    for candidate in names:
        began = time.perf_counter()
        try:
            groups = looked(setting, made[candidate]())
        except SpotlessError as error:  # a method that such a request does not suit, or that burst
            refused = {"outcome": "refused", "reason": str(error)[:120]}
            yield from ({**about, "candidate": candidate, "audit": n, **refused} for n in numbers)
            continue
        spent = round((time.perf_counter() - began) / len(numbers), 2)
        found = judges.rows(candidate, groups, with_file=part == "full", again=candidate in CORE and part != "methods")
        yield from ({**about, "candidate": candidate, **row, "seconds": [spent, *row["seconds"]]} for row in found)


def looked(setting: Setting, groups: torch.Tensor) -> list[Evidence]:
    """What the networks of each audit answer; all are looked at together, which is faster."""
    A, S, _ = groups.shape
    every = Evidence.of(setting.networks(groups.flatten(0, 1)), setting.split, setting.trained.recipe)
    return [every.select(torch.arange(i * S, (i + 1) * S)) for i in range(A)]


@dataclass(frozen=True, eq=False)
class Beside:
    """What one look of an audit judges by."""

    original: Evidence
    references: list[Evidence]
    gates: list[Gates]

    @staticmethod
    def of(original: Evidence, references: Evidence, tests: Sequence[EquivalenceTest]) -> "Beside":
        """What every one of the tests says of the networks that the audit itself trains."""
        halves = [references.select(half) for half in torch.arange(len(references)).chunk(2)]
        return Beside(original, halves, [test.gates(original, *halves) for test in tests])


class Judges:
    """The audits of one job: each judges a candidate at once, and in sequence with more networks where that is said."""

    def __init__(self, setting: Setting, audits: Audits) -> None:
        self.setting, self.numbers = setting, audits.numbers
        self.tests = [
            [EquivalenceTest(seed=number), EquivalenceTest(seed=number, looks=LOOKS)] for number in self.numbers
        ]
        self.first = [Beside.of(*both, tests) for *both, tests in zip(*self._own(audits), self.tests, strict=True)]
        self.second: dict[int, Beside] = {}

    def _own(self, audits: Audits) -> list[list[Evidence]]:
        """Originals and references of every audit."""
        return [looked(self.setting, audits.group(name)) for name in ("audited originals", "references")]

    def rows(self, candidate: str, groups: Sequence[Evidence], *, with_file: bool, again: bool) -> Iterator[Row]:
        """What every audit says of its candidates."""
        found = [self._first(i, group, with_file) for i, group in enumerate(groups)]
        more = [i for i, row in enumerate(found) if again and row["in_sequence"]["outcome"] == "inconclusive"]
        began = time.perf_counter()
        if more:
            self._second(candidate, more, groups, found)
        spent = round((time.perf_counter() - began) / max(1, len(more)), 2)
        for i, row in enumerate(found):
            yield {"audit": self.numbers[i], **row, "seconds": [*row["seconds"], spent if i in more else 0.0]}

    def _first(self, i: int, group: Evidence, with_file: bool) -> Row:
        began, own, (test, in_sequence) = time.perf_counter(), self.first[i], self.tests[i]
        verdicts = [
            one(own.original, group, *own.references, gates=gates)
            for one, gates in zip((test, in_sequence), own.gates, strict=True)
        ]
        one, known = group.select(torch.tensor([0])), own.gates[0].known.found
        file = test.judge_file(own.original, one, own.references, own.gates[0]).state if with_file else None
        return {
            **told(verdicts[0]),
            "p_original": None if known is None else [_short(known.p_networks), _short(known.p_rows)],
            "file": file,
            "in_sequence": {**told(verdicts[1]), "pairs": len(group)},
            "seconds": [round(time.perf_counter() - began, 2)],
        }

    def _second(self, candidate: str, some: list[int], groups: Sequence[Evidence], found: list[Row]) -> None:
        """Twice the networks, of audits that the first look left open."""
        unknown = [i for i in some if i not in self.second]
        if unknown:
            both = self._own(Audits(self.setting, [self.numbers[i] for i in unknown], look=1))
            for i, original, references in zip(unknown, *both, strict=True):
                had = self.first[i]
                every = references.join(had.references[0]).join(had.references[1])
                self.second[i] = Beside.of(had.original.join(original), every, self.tests[i][1:])
        more = Audits(self.setting, [self.numbers[i] for i in some], look=1).candidates()[candidate]()
        for i, others in zip(some, looked(self.setting, more), strict=True):
            own, group = self.second[i], groups[i].join(others)
            verdict = self.tests[i][1](own.original, group, *own.references, gates=own.gates[0])
            found[i] = {**found[i], "in_sequence": {**told(verdict), "pairs": len(group)}}


def told(verdict: Verdict) -> Row:
    """A verdict in plain values."""
    hidden = verdict.could_hide
    return {
        "outcome": verdict.outcome,
        "reason": verdict.reason[:60],
        "oracle": verdict.oracle,
        "power": verdict.power,
        "checks": {check.name: [check.state, *(_short(v) for v in (check.value, check.low, check.high))]
                   for check in verdict.checks},
        "p": verdict.checks[ROWS].note,
        "could_hide": None if hidden is None else vars(hidden),
    }  # fmt: skip


def _short(value: float) -> float | None:
    return float(f"{value:.3g}") if math.isfinite(value) else None


def jobs(
    settings: Sequence[str], methods: bool, first: int, turns: Sequence[Part] = TURNS, count: int = ENOUGH
) -> Iterator[Job]:
    """All settings in turn, again and again, so that a run that is stopped has looked at all of them alike."""
    for r in range(count):
        for name in settings:
            kind = name.split("/")[1]
            turn, rest = (r, 0) if kind not in LARGER else divmod(r, SELDOM)
            numbers = tuple(range(first + turn * AT_ONCE[kind], first + min(count, (turn + 1) * AT_ONCE[kind])))
            if numbers and not rest:
                yield name, numbers, turns[turn] if turn < len(turns) else "few"
        if methods and r < METHODS_OF:
            yield from ((name, (first + r,), "methods") for name in METHODS_ON if name in settings)


def work(todo: Any, done: Any, packed: Path | None) -> None:
    """One worker: jobs come in, rows go out."""
    torch.set_num_threads(1)
    for job in iter(todo.get, None):
        try:
            with quiet():
                for row in rows_of(job, packed):
                    done.put(row)
        except Exception as error:  # one broken audit must not end the others: it is written down
            done.put({"setting": job[0], "audit": job[1][0], "method": job[2] == "methods", "candidate": job[2],
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
        again = row.get("in_sequence", {})
        print(*(row.get(name) for name in ("setting", "audit", "candidate", "outcome")), again.get("outcome"),
              again.get("pairs"), row.get("seconds"), flush=True)  # fmt: skip
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
    flags.add_argument("--turns", nargs="+", choices=list(PARTS), default=TURNS, help="candidates of the first audits")
    flags.add_argument("--without-methods", action="store_true", help="leave the package's own methods out")
    given = flags.parse_args()
    if given.pack is not None:
        pack(given.pack)
        return
    settings = [name for name in given.settings if is_here(name.split("/")[0], given.data)]
    for name in set(given.settings) - set(settings):
        print(f"{name}: the data are not here")
    queue = list(jobs(settings, not given.without_methods, given.first, given.turns))
    run(queue, given.workers, given.stop, given.data, given.out)


if __name__ == "__main__":
    main()
