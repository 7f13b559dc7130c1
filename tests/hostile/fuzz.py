"""Damaged inputs of every kind through the real command, each watched: code, time, memory, words, and the disk around.

`python -m tests.hostile.fuzz --count 2000` runs the first two thousand; `--first 1000` begins later. `make fuzz`, for
every night, runs a hundred thousand with `--log`, to which finished pieces are added, so that a run which was stopped
goes on where it was, and with `--out results/fuzz.json` for the summary. The damage of input n depends on the seed and
n alone. `--workers 8` shares the pieces out among processes; `--stop-after 500` begins none after so many seconds.

The package is imported once. Workers are forks of that process and serve a piece each; one that is killed, by its own
alarm or by a crash, is charged to the input it was at, and the next goes on behind it. Prints one JSON line for each
input that broke a promise, and last one with the counts.
"""

import argparse
import io
import json
import os
import platform
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from spotlessnet.cli import main as command
from spotlessnet.core.progress import resident
from tests.cli.workshop import furnish
from tests.hostile.forked import HANGS, ROOM, imported
from tests.hostile.targets import NOTE, Target, cleared, sound, targets

CODES = {0, 2, 3, 4, 5, 7, 9}
"""How a command on a damaged file may end: the damage may go unseen, and nothing else but these may happen."""

LIMIT, MOST_MEMORY = 5.0, 2**30
"""Seconds, and bytes above what was held before."""

TRIES = 3
"""How often an input that took too long, and did nothing else wrong, is tried again."""

PIECE = 250
"""Inputs that one worker serves."""


@dataclass
class Tally:
    """What was seen of some inputs."""

    first: int = 0
    count: int = 0
    codes: dict[str, dict[str, int]] = field(default_factory=dict)
    slowest: float = 0.0
    largest: int = 0
    broken: list[dict[str, Any]] = field(default_factory=list)

    def add(self, seen: dict[str, Any]) -> None:
        """Count one input, and keep it if it broke a promise."""
        kind = self.codes.setdefault(seen["kind"], {})
        kind[str(seen["code"])] = kind.get(str(seen["code"]), 0) + 1
        self.count += 1
        self.slowest, self.largest = max(self.slowest, seen["seconds"]), max(self.largest, seen["memory"])
        if seen["wrong"]:
            self.broken.append(seen)


def joined(tallies: list[Tally]) -> Tally:
    """Several pieces as one."""
    whole = Tally(min((t.first for t in tallies), default=0))
    for tally in tallies:
        whole.count += tally.count
        whole.slowest, whole.largest = max(whole.slowest, tally.slowest), max(whole.largest, tally.largest)
        whole.broken += tally.broken
        for kind, codes in tally.codes.items():
            whole.codes[kind] = dict(Counter(whole.codes.get(kind, {})) + Counter(codes))
    return whole


def around(place: Path) -> list[tuple[str, int, int]]:
    """Everything on the disk beside --out and the note of statistics, with size and time of the last change."""
    found = []
    for root, folders, files in os.walk(place):
        if Path(root) == place / "work":
            folders[:] = [name for name in folders if name != "run"]
        for name in (*folders, *(name for name in files if name != NOTE)):
            state = os.lstat(os.path.join(root, name))
            is_folder = name in folders
            found.append(
                (os.path.join(root, name), 0 if is_folder else state.st_size, 0 if is_folder else state.st_mtime_ns)
            )
    return sorted(found)


def peak() -> int:
    """The most bytes held since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def tried(number: int, target: Target, seed: int, place: Path) -> dict[str, Any]:
    """Damage one file, run its command, and tell what happened."""
    hurt, path = target.hurt(random.Random(f"{seed} {number}")), Path(target.path)
    path.write_bytes(hurt)
    before, held = around(place), resident()
    forget_peak()
    out, err = io.StringIO(), io.StringIO()
    signal.alarm(HANGS)
    began = time.perf_counter()
    with redirect_stdout(out), redirect_stderr(err):
        code = command(list(target.words))
    seconds = time.perf_counter() - began
    signal.alarm(0)
    memory, said = max(0, peak() - int(held)), err.getvalue()
    one_line = said.count("\n") == 1 and said.startswith("error[") and said.rstrip("\n").isprintable()
    wrong = {
        "code": code not in CODES,
        "line": said != "" if code == 0 else not one_line,
        "seconds": seconds > LIMIT,
        "memory": memory > MOST_MEMORY or "memory of this machine did not suffice" in said,
        "disk": around(place) != before,
    }
    path.write_bytes(target.content)
    cleared()
    told = {"number": number, "kind": target.kind, "code": code, "seconds": round(seconds, 3), "memory": memory}
    broken = [name for name, is_so in wrong.items() if is_so]
    return told | {"wrong": broken} | ({"said": said[:400], "hurt": hurt[:3000].hex()} if broken else {})


def worked(numbers: range, chosen: list[Target], seed: int, place: Path) -> list[dict[str, Any]]:
    """Serve numbers in a fork; whatever kills it is charged to the number it was at."""
    told = place.parent / "told.jsonl"
    told.write_text("")
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            asked = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (asked + ROOM, asked + ROOM))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with told.open("w") as stream:
                for number in numbers:
                    target = chosen[number % len(chosen)]
                    seen = tried(number, target, seed, place)
                    for _ in range(TRIES):  # a busy machine lets a process wait; an input that is slow stays slow
                        if seen["wrong"] == ["seconds"]:
                            seen = tried(number, target, seed, place)
                    stream.write(json.dumps(seen) + "\n")
                    stream.flush()
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode() + b"\n")
            os._exit(99)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    served: list[dict[str, Any]] = [json.loads(line) for line in told.read_text().splitlines()]
    if code:
        number = numbers[len(served)]
        target = chosen[number % len(chosen)]
        hurt = target.hurt(random.Random(f"{seed} {number}"))
        Path(target.path).write_bytes(target.content)
        cleared()
        fell = {"number": number, "kind": target.kind, "code": code, "wrong": ["killed"], "hurt": hurt[:3000].hex()}
        served.append(fell | {"seconds": round(time.perf_counter() - began, 3), "memory": 0})
    return served


def pieces(first: int, count: int, done: set[int]) -> list[range]:
    """The numbers to run, in pieces that begin at multiples of `PIECE` so that a log of another run fits."""
    ends = first + count
    begins = [first, *range((first // PIECE + 1) * PIECE, ends, PIECE)]
    return [range(a, b) for a, b in zip(begins, [*begins[1:], ends], strict=True) if a not in done]


def logged(log: Path | None) -> list[Tally]:
    """The pieces of which a log tells; a last line that a killed process cut short tells of none."""
    if log is None or not log.is_file():
        return []
    return [Tally(**json.loads(line)) for line in log.read_text().split("\n")[:-1]]


def note(log: Path, tally: Tally) -> None:
    """Add a piece to a log to which others may add theirs at the same time: one call, so that no two lines mix."""
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, json.dumps(asdict(tally)).encode() + b"\n")
    os.close(handle)


def fuzzed(asked: argparse.Namespace) -> Tally:
    """Run all inputs of a share that the log does not hold yet, and give the tally of all that it holds then."""
    began, log = time.monotonic(), asked.log
    done = logged(log)
    torch.set_num_threads(1)
    sys.dont_write_bytecode = True
    home = Path.cwd()
    # Each file is flushed to the disk as the command does it, and a disk in memory flushes at once.
    quick = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=quick) as outer:
        place = Path(outer) / "watched"
        for name in ("home", "tmp"):
            (place / name).mkdir(parents=True)
        os.environ |= {"HOME": str(place / "home"), "TMPDIR": str(place / "tmp")}
        os.chdir(furnish(place / "work"))
        imported()
        chosen = targets(Path.cwd())
        for target in chosen:  # what is not read while it is sound tests nothing; and all is imported by this
            ended = sound(target)
            assert ended.code == target.code, (target.kind, ended.err)
        left = pieces(asked.first, asked.count, {tally.first for tally in done})
        for numbers in left[asked.share :: asked.workers]:
            if time.monotonic() - began > asked.stop_after:
                break
            tally = Tally(numbers.start)
            while tally.count < len(numbers):
                for seen in worked(numbers[tally.count :], chosen, asked.seed, place):
                    tally.add(seen)
            for broken in tally.broken:
                print(json.dumps(broken), flush=True)
            done.append(tally)
            if log is not None:
                note(home / log, tally)
        os.chdir(home)
    return joined(done)


def shared_out(asked: argparse.Namespace) -> Tally:
    """As `fuzzed`, in several processes; what one of them says is said here."""
    if asked.log is None:
        raise SystemExit("--workers needs --log, by which they tell what they did.")
    command = [sys.executable, "-m", "tests.hostile.fuzz"]
    for name in ("seed", "first", "count", "workers", "stop_after", "log"):
        command += [f"--{name.replace('_', '-')}", str(getattr(asked, name))]
    begun = [subprocess.Popen([*command, "--share", str(i)]) for i in range(asked.workers)]
    ended = [process.wait() for process in begun]
    if any(ended):
        raise SystemExit(f"Of {asked.workers} processes these ended otherwise than with 0: {ended}.")
    return joined(logged(asked.log))


def summary(whole: Tally, seed: int, workers: int) -> dict[str, Any]:
    """What results/fuzz.json says."""
    asked = ("git", "describe", "--always", "--abbrev=40", "--dirty= with changes", "--exclude=*")
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    parts = (f"{platform.system()} {platform.machine()}", f"{os.cpu_count()} cores, {workers} used")
    versions = (f"Python {platform.python_version()}", f"torch {torch.__version__}")
    totals = sum((Counter(codes) for codes in whole.codes.values()), Counter())
    return {
        "command": "make fuzz",
        "seed": seed,
        "commit": commit,
        "machine": ", ".join((*parts, *versions)),
        "inputs": whole.count,
        "broken": len(whole.broken),
        "allowed_codes": sorted(CODES),
        "exit_codes": dict(sorted(totals.items())),
        "exit_codes_by_kind": {kind: dict(sorted(codes.items())) for kind, codes in sorted(whole.codes.items())},
        "slowest_seconds": whole.slowest,
        "largest_mebibytes_above_baseline": round(whole.largest / 2**20, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("seed", 0), ("first", 0), ("count", 2000), ("workers", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--stop-after", type=float, default=float("inf"))
    parser.add_argument("--share", type=int, help="which of the --workers this process is")
    for name in ("log", "out"):
        parser.add_argument(f"--{name}", type=Path)
    given = parser.parse_args()
    is_one_of_many = given.share is not None
    if given.workers > 1 and not is_one_of_many:
        whole = shared_out(given)
    else:
        given.share = given.share or 0
        whole = fuzzed(given)
    if is_one_of_many:
        return 0
    told = summary(whole, given.seed, given.workers)
    if given.out is not None:
        given.out.write_text(json.dumps(told, indent=2) + "\n")
    print(json.dumps(told))
    return int(bool(whole.broken))


if __name__ == "__main__":
    sys.exit(main())
