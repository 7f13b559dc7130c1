"""Plant every error and see its named test notice, in forks of one process that has torch imported already.

`python -m tests.mutants.planting --workers 2 --log mutants.log`: what the log holds is not tried again, and none is
begun after `--stop-after` seconds. Prints each error that went unnoticed, and last how many were noticed.

Most of the time of `pytest -m slow tests/test_mutants.py`, which does the same, goes into starting Python for each.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "spotlessnet"
OPTIONS = ("-o", "addopts=", "-q", "-x", "-p", "no:cacheprovider", "-p", "tests.mutants.hurry")
"""Without type checks at run time: the numbers must tell."""

USED = ("torch", "torch.func", "numpy", "scipy.stats", "sklearn.datasets", "safetensors.torch")
"""Imported before the forks. Not what brings a plugin of pytest, which must come first, nor the package itself."""


def plant(file: str, right: str, wrong: str, place: Path) -> Path:
    """The package with one line made wrong, in a folder of its own."""
    source = place / "spotlessnet"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("__pycache__"))
    text = (source / file).read_text(encoding="utf-8")
    if text.count(right) != 1:
        raise SystemExit(f"{file} must hold once: {right}")
    (source / file).write_text(text.replace(right, wrong), encoding="utf-8")
    return place


def tried(source: Path, test: str) -> tuple[int, str]:
    """Run one test on a package in a fork of this process: its code, and what it said."""
    told = source / "told"
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            sys.path.insert(0, str(source))
            os.environ["PYTHONPATH"] = str(source)
            os.dup2(os.open(told, os.O_WRONLY | os.O_CREAT, 0o600), 1)
            os.dup2(1, 2)
            code = int(pytest.main([*OPTIONS, f"tests/{test}"]))
            package = sys.modules.get("spotlessnet")
            # Another copy of the package would notice nothing.
            if package is None or not str(package.__file__).startswith(str(source)):
                code = 98
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, told.read_text() if told.is_file() else ""


def is_noticed(code: int, said: str) -> bool:
    """1 is "tests ran and some failed"; anything else is another kind of error, such as a file that does not parse."""
    return code == 1 and "error" not in (said.splitlines() or ["error"])[-1]


def work(share: int, workers: int, log: Path, stop_after: float, match: str) -> None:
    """Try the errors of one share that the log does not hold."""
    for name in USED:
        __import__(name)
    from tests.mutants import ALL

    began = time.monotonic()
    for planted in [planted for planted in ALL if match in planted.name][share::workers]:
        if planted.name in noticed(log) or time.monotonic() - began > stop_after:
            continue
        with tempfile.TemporaryDirectory() as place:
            source = plant(planted.file, planted.right, planted.wrong, Path(place).resolve())
            code, said = tried(source, planted.test)
        line = {"name": planted.name, "test": planted.test, "noticed": is_noticed(code, said), "code": code}
        if not line["noticed"]:
            print(f"{planted.name}: {planted.test} did not notice ({code}): {said[-800:]}", flush=True)
        handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(handle, json.dumps(line).encode() + b"\n")
        os.close(handle)


def noticed(log: Path) -> dict[str, bool]:
    """Of each error that the log tells of, whether it was noticed."""
    lines = log.read_text().split("\n")[:-1] if log.is_file() else []
    return {told["name"]: told["noticed"] for told in map(json.loads, lines)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--stop-after", type=float, default=float("inf"))
    parser.add_argument("--match", default="", help="only errors whose name holds this")
    parser.add_argument("--log", type=Path, required=True)
    given = parser.parse_args()
    log = given.log.resolve()
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    begun = []
    for share in range(given.workers):
        pid = os.fork()
        if pid == 0:
            work(share, given.workers, log, given.stop_after, given.match)
            os._exit(0)
        begun.append(pid)
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in begun]
    found = noticed(log)
    from tests.mutants import ALL

    print(f"{sum(found.get(planted.name, False) for planted in ALL)} of {len(ALL)} noticed, {len(found)} tried")
    return int(any(ended) or not all(found.values()))


if __name__ == "__main__":
    sys.exit(main())
