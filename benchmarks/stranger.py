"""A stranger's first hour: a new environment with the wheel alone, README, networks of their own, notebooks.

python benchmarks/stranger.py                        # installs everything anew, torch included
python benchmarks/stranger.py --dependencies FOLDER  # sees the packages in FOLDER; installs the wheel alone
python benchmarks/stranger.py --page                 # the page again, from the rows

Nothing of the repository can be imported while it runs. It stops where a step fails, where a command of this package
says nothing for a second, and where a network answers test data worse than the five points that are announced.
"""

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.docs.blocks import blocks

from spotlessnet.core.errors import count_of

ROOT = Path(__file__).parents[1]
FILES, NOTEBOOKS = ROOT / "docs" / "first_hour", ROOT / "docs" / "notebooks"
ROWS, PAGE = ROOT / "results" / "first_hour.json", ROOT / "docs" / "first_hour.md"
BEGIN, END = "<!-- first hour: written by benchmarks/stranger.py -->", "<!-- end of first hour -->"

ANNOUNCED = 0.05
"""How much more often a network may be wrong before it is refused: the default of `--max-damage`."""

SHOWN = 12
"""Lines of a step's output on the page, at most."""

OTHERS = ("train", "forget", "audit", "precompute", "compare", "reproduce")
"""Commands that the hour does not need: they are asked for help."""

CNN = (
    "--model cnn.py:build --weights cnn.pt --init cnn-init.pt --data cnn.py:examples --test cnn.py:test "
    "--train cnn.py:train --forget person.csv --mislabelled"
)
BERT = (
    "--model texts.py:build --weights bert --init bert-init --data texts.py:examples --test texts.py:test "
    "--train texts.py:trainer --forget people.csv"
)


@dataclass(frozen=True)
class Step:
    """One line that the stranger types, and what came of it.

    **Arguments:**

    - `first`: seconds until something was said, and `work`: those of the processor among them.
    - `seconds`: until it ended.
    """

    part: str
    typed: str
    code: int
    first: float
    work: float
    seconds: float
    said: str

    @property
    def is_command(self) -> bool:
        """Whether it is a command of this package, which must show a sign of life at once."""
        return bool(re.match(r"(spotless|python -m spotlessnet)\b", self.typed))


def typed(readme: Path) -> list[tuple[str, str, int]]:
    """All lines, in order: part, line, exit code that it must end with."""
    welcome = ["spotless --version", "python -m spotlessnet --version", "spotless list methods"]
    welcome += ["spotless completion bash", *(f"spotless {name} --help" for name in OTHERS)]
    known = [("The command", line, 0) for line in welcome]
    known += [("README", block.text.strip(), block.code) for block in blocks(readme) if block.is_command]
    known += [("README", "spotless verify run/ --forget forget.csv --id-column row", 0)]
    known += [("README", "spotless demo --dry-run", 0)]
    own = [
        "python cnn.py",
        "python forget_in_cnn.py",
        f"spotless scrub {CNN} --audit --dry-run",
        f"spotless scrub {CNN} --audit --out cnn-run/",
        "spotless verify cnn-run/ --forget person.csv",
        "python look_at_cnn.py",
    ]
    face = [
        "python texts.py",
        "python forget_in_texts.py",
        f"spotless scrub {BERT} --out bert-folder/",
        "python look_at_texts.py bert-folder/pretrained",
        "spotless inspect bert-training/",
        "spotless scrub --training bert-training/ --test texts.py:test --forget people.csv --audit --seeds 5 "
        "--out bert-run/",
        "spotless verify bert-run/ --forget people.csv",
        "spotless purge bert-training/",
    ]
    known += [("A CNN of one's own", line, 0) for line in own]
    known += [("A classifier of Hugging Face", line, 0) for line in face]
    names = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
    return known + [("Notebooks", f"python run_notebook.py {name}", 0) for name in names]


def environment(folder: Path, wheel: Path, dependencies: list[Path]) -> dict[str, str]:
    """A new environment with the wheel in it, and what a shell there has."""
    venv.create(folder, with_pip=not dependencies, symlinks=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    if dependencies:
        inside = next((folder / "lib").glob("python*/site-packages"))
        # Plain paths: files of theirs that would add more, such as a checkout, are not read.
        (inside / "dependencies.pth").write_text("".join(f"{path.resolve()}\n" for path in dependencies))
        subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True)
    else:
        versions = ["-c", str(ROOT / "constraints.txt")]
        subprocess.run([*install, *versions, f"{wheel}[trainers]", "nbclient", "ipykernel"], check=True)
    around = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    search = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**around, "PATH": search, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "110"}


def run(part: str, line: str, home: Path, around: dict[str, str]) -> Step:
    """Type one line; when the first sign came, and what was said."""
    began = time.monotonic()
    signs: list[tuple[float, float]] = []
    heard: dict[str, bytes] = {}
    with subprocess.Popen(
        ["sh", "-e", "-c", f"exec {line}"], cwd=home, env=around, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:

        def listen(name: str, stream: object) -> None:
            number = stream.fileno()  # type: ignore[attr-defined]  # a pipe
            text = b""
            while piece := os.read(number, 65536):
                if not signs:
                    signs.append((time.monotonic() - began, worked(process.pid)))
                text += piece
            heard[name] = text

        listeners = [
            threading.Thread(target=listen, args=(n, s)) for n, s in (("err", process.stderr), ("out", process.stdout))
        ]
        for one in listeners:
            one.start()
        for one in listeners:
            one.join()
        code = process.wait()
    took = time.monotonic() - began
    said = (heard["err"] + heard["out"]).decode(errors="replace")
    said = said.replace(str(home), ".").replace(str(home.parent), "..")
    first, work = min(signs, default=(took, took))
    return Step(part, line, code, round(first, 2), round(work, 2), round(took, 1), tidy(said))


def worked(process: int) -> float:
    """Seconds of the processor that a running process took; not known where there is no `/proc`."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.nan
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tidy(said: str) -> str:
    r"""Without bars of others, which are drawn over themselves, and without ends of lines that nobody sees.

    >>> tidy("a  \rb 10it/s]\nc   \n")
    'c'
    """
    lines = [line.split("\r")[-1].rstrip() for line in said.splitlines()]
    return "\n".join(line for line in lines if "it/s]" not in line).strip()


def accuracies(said: str) -> list[float]:
    r"""Shares of test data that were answered rightly, before and after.

    >>> accuracies("before: 91.4% on test data\nafter: 92.0% on test data")
    [0.914, 0.92]
    """
    return [float(share) / 100 for share in re.findall(r"([\d.]+)% on test data", said)]


def check(step: Step, code: int) -> None:
    """Stop at the first thing that a stranger should not meet."""
    told = f"{step.typed}\n{step.said}"
    if step.code != code:
        raise SystemExit(f"A step ended with {step.code} instead of {code}: {told}")
    # Where others hold the processor, only its own seconds say how long the command would take.
    if step.is_command and step.first > 1 and not (step.work < 0.5 and os.getloadavg()[0] > (os.cpu_count() or 1)):
        raise SystemExit(f"The first sign of life came after {step.first} s: {told}")
    if len(found := accuracies(step.said)) == 2 and found[1] < found[0] - ANNOUNCED:
        raise SystemExit(f"More accuracy was lost than was announced: {told}")


def visit(folder: Path, wheel: Path, dependencies: list[Path], leave_out: tuple[str, ...] = ()) -> list[Step]:
    """The whole hour, or without some of its parts."""
    home = folder / "home"
    shutil.copytree(FILES, home)
    for notebook in NOTEBOOKS.glob("*.ipynb"):
        shutil.copy(notebook, home)
    readme = ROOT / "README.md"
    for block in blocks(readme):
        if block.is_file:
            (home / block.title).write_text(block.text, encoding="utf-8")
    around = environment(folder / "venv", wheel, dependencies)
    where = ["python", "-c", "import spotlessnet; print(spotlessnet.__file__)"]
    place = subprocess.run(where, cwd=home, env=around, capture_output=True, text=True, check=True).stdout
    if not place.startswith(str(folder / "venv")):
        raise SystemExit(f"Not the wheel's package is imported, but that of {place}")
    steps = []
    for part, line, code in typed(readme):
        if part in leave_out:
            continue
        steps.append(run(part, line, home, around))
        print(f"{steps[-1].seconds:6.1f} s  {line[:100]!r}", flush=True)
        check(steps[-1], code)
    return steps


def cell(line: str) -> str:
    """A line that was typed, short enough for a table."""
    line = re.sub(r"\s*\\\n\s*", " ", line)
    return f"`{line if len(line) <= 60 else line[:57] + '...'}`"


def page(steps: list[Step], machine: str) -> str:
    """A table of all steps, then what each said."""
    commands = [step for step in steps if step.is_command]
    late = max(commands, key=lambda step: step.first)
    seconds = sum(step.seconds for step in steps)
    pairs = [found for step in steps if len(found := accuracies(step.said)) == 2]
    lost = max(before - after for before, after in pairs)
    worst = f"the most that was lost is {lost:.1%}" if lost > 0 else "none was lost"
    lines = [
        f"{len(steps)} steps in {seconds / 60:.0f} minutes ({machine}); every one ended as it should. The slowest of "
        f"{len(commands)} commands gave its first sign of life after {late.first:.2f} s, {late.work:.2f} s of them of "
        f"the processor; {sum(step.first <= 1 for step in commands)} gave it within a second. "
        f"Of accuracy on test data {worst}, in {len(pairs)} comparisons; "
        f"{ANNOUNCED:.0%} is the most that is announced.",
        "",
        "| step | typed | first sign | in all |",
        "|---|---|---:|---:|",
    ]
    for number, step in enumerate(steps, 1):
        sign = f"{step.first:.2f}\u00a0s" if step.is_command else "–"  # a number stays with its unit
        lines.append(f"| {number} | {cell(step.typed)} | {sign} | {step.seconds:.1f}\u00a0s |")
    part = ""
    for number, step in enumerate(steps, 1):
        if step.part != part:
            part = step.part
            lines += ["", f"## {part}"]
        if step.typed.endswith("--help"):
            continue
        lines += ["", f"Step {number}:", "", "```text", f"$ {step.typed}", *shown(step.said), "```"]
    return "\n".join(lines)


def shown(said: str) -> list[str]:
    """The first and the last lines of what was said."""
    lines = [line[:160] + (" ..." if len(line) > 160 else "") for line in said.splitlines()]
    if len(lines) <= SHOWN:
        return lines
    left = count_of(len(lines) - SHOWN, "line")
    return [*lines[: SHOWN // 2], f"[... {left} ...]", *lines[-SHOWN // 2 :]]


def written(text: str, made: str) -> str:
    """The page with what stands between its marks replaced."""
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return f"{text[:start]}\n\n{made.strip()}\n\n{text[end:]}"


def main() -> None:
    """Make the visit, keep its rows, and write its page."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--dependencies", type=Path, action="append", default=[], help="a site-packages folder to see")
    flags.add_argument("--page", action="store_true", help="make no visit: the page of the rows")
    given = flags.parse_args()
    if not given.page:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            build = [sys.executable, str(ROOT / "requirements" / "wheel.py"), str(folder), "https://example.org/a/b"]
            subprocess.run(build, check=True)
            [wheel] = folder.glob("*.whl")
            steps = visit(folder, wheel, given.dependencies)
        made = ", ".join(
            [f"Python {sys.version_info.major}.{sys.version_info.minor}", "one thread", "no terminal", busy()]
        )
        told = {"machine": made, "steps": [asdict(step) for step in steps]}
        ROWS.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), from_rows()), encoding="utf-8")


def busy() -> str:
    """How many others wanted the processor, by the load of the last quarter of an hour."""
    return f"{os.getloadavg()[2]:.0f} processes at work on {os.cpu_count()} cores"


def from_rows() -> str:
    """What stands between the marks, from the last visit."""
    told = json.loads(ROWS.read_text(encoding="utf-8"))
    return page([Step(**one) for one in told["steps"]], told["machine"])


if __name__ == "__main__":
    main()
