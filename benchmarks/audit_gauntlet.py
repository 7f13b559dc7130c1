"""Who passes the verdict, who is caught: honest networks, cheats and kept rows, most of them on unused data.

    python benchmarks/audit_gauntlet.py --pack gauntlet.npz
    python benchmarks/audit_gauntlet.py --data gauntlet.npz --workers 14 --stop 520 --out rows.jsonl

One row for each audit, written when it is finished, so that a run may be stopped at any time; with the same `--out` it
then goes on with the audits that have no row. An audit has eight seeds and networks of its own, trained with `fit_many`
together with those of a few other audits; it is judged with the package's own code, from `Evidence.of` on. Forgotten
rows are the same in all audits of a setting. Those in `CHOOSING` served to choose the test, its ways of asking and its
levels; those in `CONFIRMING` did not, and share no data set with them. One thread a worker; without `--data`,
scikit-learn and files beside the project are read.
"""

import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty
from typing import Any, Literal

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, command, machine
from benchmarks.gauntlet_candidates import CANDIDATES, CORE, SEEDS, Audits, Setting
from benchmarks.gauntlet_data import is_here, pack

from spotlessnet.auditing.equivalence import EquivalenceTest, Gates
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.exchanging import StandingOut
from spotlessnet.auditing.looks import LOOKS, goes_on
from spotlessnet.auditing.verdict import ROWS, CouldHide, Verdict
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
    "mnist/perceptron/person-12@3", "faces/deep/person-12@2", "cifar/perceptron/person-12@4",
    "banking/deep/person-12@4", "faces/perceptron/person-12@4", "mnist/perceptron/person-12@5",
)  # fmt: skip
AFTERWARDS = (
    "hastie/perceptron/wrong-12", "hastie/deep/some-60", "moons/perceptron/wrong-60", "circles/deep/wrong-12",
    "moons/deep/class-1", "hastie/perceptron/person-12", "moons/deep/person-12@2", "circles/perceptron/person-12@3",
)  # fmt: skip
"""Of data that were added when the test and its figures were settled, and looked at once."""

METHODS_ON = ("mnist/perceptron/wrong-60", "banking/perceptron/wrong-12", "banking/deep/class-3")
METHODS_OF = 5
"""Audits of each of the package's methods, which look at one network after the other."""

ENOUGH = 100
ENDING = 12.0
"""Seconds of `--stop` that are left to the imports before the clock starts, and to ending the workers."""

AT_ONCE = {"perceptron": 4, "deep": 4, "cnn": 2, "attention": 2}
"""Audits whose networks are trained as one program; the larger the networks, the less is gained."""

LARGER = ("cnn", "attention")

SELDOM = 12
"""Settings of larger networks have their turn once while the others have so many."""

Part = Literal["full", "core", "few", "methods"]
PARTS: dict[Part, tuple[str, ...]] = {"full": CANDIDATES, "core": CORE, "few": ("retrained", "original")}
TURNS: tuple[Part, ...] = ("full", "core", "core", "core")
"""Which candidates come before the audits of each turn; those of later turns are few, for many audits of these."""

Job = tuple[str, tuple[int, ...], Part]
"""A setting, numbers of audits, and which candidates come before them."""

Row = dict[str, Any]
Done = tuple[str, str, bool, int]
"""Setting, candidate, whether it is a method's, and number of an audit that has a row."""


def rows_of(job: Job, packed: Path | None, done: Collection[Done] = ()) -> Iterator[Row]:
    """One row for each audit of each candidate that has none yet."""
    name, numbers, part = job
    setting = Setting.of(name, packed)
    audits = Audits(setting, numbers)
    made = audits.methods() if part == "methods" else audits.candidates()
    names = [one for one in (made if part == "methods" else PARTS[part]) if one in made]
    names = [one for one in names if not all((name, one, part == "methods", number) in done for number in numbers)]
    if not names:
        return
    audits.train(["references", "audited originals", "original", *names, *(["teacher"] if part != "few" else [])])
    judges = Judges(setting, audits)
    served = {**dict.fromkeys(CHOOSING, "choosing"), **dict.fromkeys(AFTERWARDS, "afterwards")}
    about = {"setting": name, "used_for": served.get(name, "confirming"),
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


@dataclass(frozen=True)
class SeveralLevels(EquivalenceTest):
    """Shuffles and planted rows are the same at every level: what one test has computed serves the others.

    **Arguments:**

    - `held`: what was found, beside the networks it was found of, so that no others can have their place in memory.
    """

    held: dict[tuple[int, ...], tuple[Any, Any]] = field(default_factory=dict, repr=False, compare=False)

    def _once(self, networks: Sequence[Evidence], make: Callable[[], Any]) -> Any:
        key = tuple(map(id, networks))
        if key not in self.held:
            self.held[key] = networks, make()
        return self.held[key][1]

    def stood_out(
        self, candidate: Evidence, references: Sequence[Evidence], weights: torch.Tensor | None
    ) -> StandingOut | None:
        """Both tests."""
        found: StandingOut | None = self._once(
            [candidate, *references], lambda: super(SeveralLevels, self).stood_out(candidate, references, weights)
        )
        return found

    def could_hide(self, original: Evidence, candidate: Evidence, references: Sequence[Evidence]) -> CouldHide:
        """Planted rows."""
        found: CouldHide = self._once(
            [original, candidate, *references],
            lambda: super(SeveralLevels, self).could_hide(original, candidate, references),
        )
        return found


@dataclass(frozen=True, eq=False)
class Own:
    """Networks that an audit itself has trained by one of its looks, and what every one of its tests says of them."""

    original: Evidence
    references: list[Evidence]
    gates: list[Gates]

    @staticmethod
    def of(original: Evidence, references: Evidence, tests: Sequence[EquivalenceTest]) -> "Own":
        """References in halves, as pairs and held-out networks are."""
        halves = [references.select(half) for half in torch.arange(len(references)).chunk(2)]
        return Own(original, halves, [test.gates(original, *halves) for test in tests])

    def join(self, original: Evidence, references: Evidence, tests: Sequence[EquivalenceTest]) -> "Own":
        """With those of the next look."""
        every = references.join(self.references[0]).join(self.references[1])
        return Own.of(self.original.join(original), every, tests)


class Judges:
    """The audits of one job: each judges a candidate at once, and in sequence with more networks where that is said."""

    def __init__(self, setting: Setting, audits: Audits) -> None:
        self.setting, self.numbers = setting, audits.numbers
        once = [SeveralLevels(seed=number) for number in self.numbers]
        self.tests = [[test, replace(test, looks=LOOKS)] for test in once]
        originals, references = self._own(audits)
        first = [Own.of(*each) for each in zip(originals, references, self.tests, strict=True)]
        self.looks = [dict(enumerate(first)), *({} for _ in range(1, LOOKS))]

    def _own(self, audits: Audits) -> list[list[Evidence]]:
        """Originals and references of every audit."""
        return [looked(self.setting, audits.group(name)) for name in ("audited originals", "references")]

    def rows(self, candidate: str, groups: Sequence[Evidence], *, with_file: bool, again: bool) -> Iterator[Row]:
        """What every audit says of its candidates."""
        found, verdicts = [], {}
        for i, group in enumerate(groups):
            row, verdicts[i] = self._first(i, group, with_file)
            found.append(row)
        networks = dict(enumerate(groups))
        for look in range(1, LOOKS if again else 1):
            some = [i for i, verdict in verdicts.items() if goes_on(verdict)]
            began = time.perf_counter()
            self._look_again(candidate, look, some, networks, verdicts)
            spent = round((time.perf_counter() - began) / max(1, len(some)), 2)
            for i, row in enumerate(found):
                row["seconds"].append(spent if i in some else 0.0)
        for i, row in enumerate(found):
            last = {**told(verdicts[i]), "pairs": len(networks[i])}
            if len(networks[i]) == SEEDS:  # the same figures as of one look
                last = {name: value for name, value in last.items() if name not in ("checks", "p")}
            yield {"audit": self.numbers[i], **row, "in_sequence": last}

    def _first(self, i: int, group: Evidence, with_file: bool) -> tuple[Row, Verdict]:
        began, own, (test, in_sequence) = time.perf_counter(), self.looks[0][i], self.tests[i]
        verdicts = [
            one(own.original, group, *own.references, gates=gates)
            for one, gates in zip((test, in_sequence), own.gates, strict=True)
        ]
        one, known = group.select(torch.tensor([0])), own.gates[0].known.found
        file = test.judge_file(own.original, one, own.references, own.gates[0]).state if with_file else None
        row = {
            **told(verdicts[0]),
            "p_original": None if known is None else [_short(known.p_networks), _short(known.p_rows)],
            "file": file,
            "seconds": [round(time.perf_counter() - began, 2)],
        }
        return row, verdicts[1]

    def _look_again(
        self, candidate: str, look: int, some: list[int], networks: dict[int, Evidence], verdicts: dict[int, Verdict]
    ) -> None:
        """Twice the networks, of audits that the look before left open."""
        if not some:
            return
        unknown = [i for i in some if i not in self.looks[look]]
        if unknown:
            both = self._own(Audits(self.setting, [self.numbers[i] for i in unknown], look))
            for i, original, references in zip(unknown, *both, strict=True):
                self.looks[look][i] = self.looks[look - 1][i].join(original, references, self.tests[i][1:])
        more = Audits(self.setting, [self.numbers[i] for i in some], look).candidates()[candidate]()
        for i, others in zip(some, looked(self.setting, more), strict=True):
            own, networks[i] = self.looks[look][i], networks[i].join(others)
            verdicts[i] = self.tests[i][1](own.original, networks[i], *own.references, gates=own.gates[0])


def told(verdict: Verdict) -> Row:
    """A verdict in plain values."""
    hidden = verdict.could_hide
    return {
        "outcome": verdict.outcome,
        "withheld": withheld(verdict),
        "oracle": verdict.oracle,
        "power": verdict.power,
        "checks": {check.name: [check.state, *(_short(v) for v in (check.value, check.low, check.high))]
                   for check in verdict.checks},
        "p": verdict.checks[ROWS].note,
        "could_hide": None if hidden is None else vars(hidden),
    }  # fmt: skip


def withheld(verdict: Verdict) -> str:
    """What stood between an inconclusive verdict and a word."""
    if verdict.outcome != "inconclusive":
        return ""
    if verdict.oracle == "not forgotten":
        return "fails its own check"
    if verdict.power != "not forgotten":
        return "no trace"
    if verdict.could_hide is not None:
        return "half could hide" if verdict.could_hide.half else "single rows could hide"
    return ", ".join(f"{check.name} {check.state}" for check in verdict.checks if check.state != "same")


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


def work(todo: Any, done: Any, packed: Path | None, before: Collection[Done] = ()) -> None:
    """One worker: jobs come in, rows go out; of audits `before` there are rows."""
    torch.set_num_threads(1)
    for job in iter(todo.get, None):
        try:
            with quiet():
                for row in rows_of(job, packed, before):
                    done.put(row)
        except Exception as error:  # one broken audit must not end the others: it is written down
            done.put({"setting": job[0], "audit": job[1][0], "method": job[2] == "methods", "candidate": job[2],
                      "outcome": "broken", "reason": f"{type(error).__name__}: {error}"[:300]})  # fmt: skip


def finished(out: Path | None) -> set[Done]:
    """Audits that have a row in a file of an earlier run."""
    if out is None or not out.exists():
        return set()
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    kept = [row for row in rows if row["outcome"] != "broken"]
    return {(row["setting"], row["candidate"], row["method"], row["audit"]) for row in kept}


def run(queue: Sequence[Job], workers: int, stop: float, packed: Path | None, out: Path | None) -> int:
    """All jobs that time allows; rows are written as they come."""
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    before = finished(out)
    for job in [*queue, *[None] * workers]:
        todo.put(job)
    pool = [context.Process(target=work, args=(todo, done, packed, before), daemon=True) for _ in range(workers)]
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
    flags.add_argument("--data", type=Path, help="the file that --pack wrote, or a folder with gauntlet.npz in it")
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
    packed = given.data / "gauntlet.npz" if given.data is not None and given.data.is_dir() else given.data
    settings = [name for name in given.settings if is_here(name.split("/")[0], packed)]
    for name in set(given.settings) - set(settings):
        print(f"{name}: the data are not here")
    queue = list(jobs(settings, not given.without_methods, given.first, given.turns))
    run(queue, given.workers, given.stop, packed, given.out)


if __name__ == "__main__":
    main()
