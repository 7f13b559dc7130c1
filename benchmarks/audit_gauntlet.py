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
import multiprocessing
import os
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from queue import Empty
from typing import Any, Literal

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, command, machine
from benchmarks.gauntlet_candidates import CANDIDATES, CORE, ELSEWHERE, REPLAYED, TUNED, Audits, Setting
from benchmarks.gauntlet_data import is_here, pack
from benchmarks.gauntlet_judges import Judges, Row, looked

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
"""Of two classes. They were added when the test had no look at tuned networks, showed that it needs one, and have
served to choose that since."""

TWO_CLASSES = (
    "xor/perceptron/wrong-12", "xor/deep/some-60", "quantiles/perceptron/person-12", "quantiles/deep/wrong-12",
    "quantiles/perceptron/some-60", "odd/perceptron/wrong-60", "odd/deep/some-60", "odd/deep/person-12",
)  # fmt: skip
"""Of two classes too, and of data that served to choose nothing."""

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

Part = Literal["full", "core", "tuned", "origins", "wide", "few", "methods"]
ORIGINS = ("retrained", REPLAYED, "original", *TUNED, "one row kept", "a tenth kept")
"""Of which it matters whether the audit could know where they come from."""

PARTS: dict[Part, tuple[str, ...]] = {
    "full": CANDIDATES,
    "core": CORE,
    "tuned": ("retrained", REPLAYED, "original", "half batch", "cosine", *TUNED),
    "origins": ORIGINS,
    "wide": (*ORIGINS, *ELSEWHERE),
    "few": ("retrained", REPLAYED, "original"),
}
TURNS: tuple[Part, ...] = ("full", "core", "core", "core")
"""Which candidates come before the audits of each turn; those of later turns are few, for many audits of these."""

Job = tuple[str, tuple[int, ...], Part]
"""A setting, numbers of audits, and which candidates come before them."""

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
    served = {**dict.fromkeys(CHOOSING, "choosing"), **dict.fromkeys(AFTERWARDS, "two classes, choosing"),
              **dict.fromkeys(TWO_CLASSES, "two classes")}  # fmt: skip
    about = {"setting": name, "used_for": served.get(name, "confirming"),
             "method": part == "methods", "forgotten_rows": len(setting.rows)}  # fmt: skip
    weights = torch.empty(0)
    groups: list[Any] = []
    for candidate in names:
        began = time.perf_counter()
        try:
            before, weights = weights, made[candidate]()
            groups = groups if weights is before else looked(setting, weights)
            spent = round((time.perf_counter() - began) / len(numbers), 2)
            again = candidate in CORE and part != "methods"
            found = [*judges.rows(candidate, groups, with_file=part == "full", again=again)]
        except SpotlessError as error:  # a method that such a request does not suit, or that burst
            refused = {"outcome": "refused", "reason": str(error)[:120]}
            yield from ({**about, "candidate": candidate, "audit": n, **refused} for n in numbers)
            continue
        yield from ({**about, "candidate": candidate, **row, "seconds": [spent, *row["seconds"]]} for row in found)


def jobs(
    settings: Sequence[str],
    methods: bool,
    first: int,
    turns: Sequence[Part] = TURNS,
    count: int = ENOUGH,
    then: Part = "few",
) -> Iterator[Job]:
    """All settings in turn, again and again, so that a run that is stopped has looked at all of them alike."""
    for r in range(count):
        for name in settings:
            kind = name.split("/")[1]
            turn, rest = (r, 0) if kind not in LARGER else divmod(r, SELDOM)
            numbers = tuple(range(first + turn * AT_ONCE[kind], first + min(count, (turn + 1) * AT_ONCE[kind])))
            if numbers and not rest:
                yield name, numbers, turns[turn] if turn < len(turns) else then
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
    flags.add_argument("--then", choices=list(PARTS), default="few", help="candidates of all audits after these")
    flags.add_argument("--without-methods", action="store_true", help="leave the package's own methods out")
    given = flags.parse_args()
    if given.pack is not None:
        pack(given.pack)
        return
    packed = given.data / "gauntlet.npz" if given.data is not None and given.data.is_dir() else given.data
    settings = [name for name in given.settings if is_here(name.split("/")[0], packed)]
    for name in set(given.settings) - set(settings):
        print(f"{name}: the data are not here")
    queue = list(jobs(settings, not given.without_methods, given.first, given.turns, then=given.then))
    run(queue, given.workers, given.stop, packed, given.out)


if __name__ == "__main__":
    main()
