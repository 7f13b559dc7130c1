"""What all benchmark scripts share: flags named as the command's, the record of a run, and tables put into pages.

Figures and images are imported where they are used, so that a machine for training needs neither matplotlib nor Pillow.
"""

import argparse
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from spotlessnet.auditing.rows import Row, read_rows
from spotlessnet.core.data import Data
from spotlessnet.core.files import write_whole
from spotlessnet.core.intervals import t_interval

GREY = "#808080"
"""Ink of figures in pages that are read on white and on black alike."""


@dataclass(frozen=True)
class Place:
    """Where a script's table stands in a page: between two marks, which stay."""

    begin: str
    end: str

    @staticmethod
    def of(script: str, end: str = "end") -> "Place":
        """The marks of `benchmarks/SCRIPT.py`; where a page holds several tables, their ends have names."""
        return Place(f"<!-- written by benchmarks/{script}.py -->", f"<!-- {end} -->")

    def fill(self, page: str, made: str) -> str:
        """The page with what stands between the marks replaced.

        >>> Place("<a>", "<b>").fill("x <a> old <b> y", "new").split()
        ['x', '<a>', 'new', '<b>', 'y']
        """
        start = page.index(self.begin) + len(self.begin)
        end = page.index(self.end, start)  # several tables of a page may share the text of their end marks
        return f"{page[:start]}\n\n{made.strip()}\n\n{page[end:]}"

    def write(self, path: Path, made: str) -> None:
        """Fill the page in a file."""
        path.write_text(self.fill(path.read_text(encoding="utf-8"), made), encoding="utf-8")


class Flags(argparse.ArgumentParser):
    """A parser whose common flags are asked for by name and mean the same in every script."""

    def __init__(self, doc: str | None) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)

    def data(self, help: str, *, required: bool = False) -> "Flags":
        """`--data DIR`."""
        self.add_argument("--data", type=Path, required=required, help=help)
        return self

    def out(self, *, required: bool = False, help: str = "the file for the rows") -> "Flags":
        """`--out FILE`."""
        self.add_argument("--out", "-o", type=Path, required=required, help=help)
        return self

    def seeds(self, default: Iterable[int]) -> "Flags":
        """`--seeds N` for the first N seeds, `--seed S` for one alone; several numbers are those very seeds."""
        which = self.add_mutually_exclusive_group()
        many = "how many seeds, from 0; or several numbers: these seeds"
        which.add_argument("--seeds", type=int, nargs="+", default=list(default), action=_Seeds, help=many)
        which.add_argument("--seed", dest="seeds", type=int, action=_OneSeed, help="this seed; may be given again")
        return self

    def device(self) -> "Flags":
        """`--device auto|cpu|cuda`."""
        self.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
        return self

    def page(self) -> "Flags":
        """`--docs FILE`: the page whose table is renewed."""
        self.add_argument("--docs", type=Path, help="the page whose table is renewed")
        return self

    def table(self) -> "Flags":
        """`--table`: from the rows that are there."""
        self.add_argument("--table", action="store_true", help="measure nothing: the table of the rows in --out")
        return self


class _Seeds(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        assert isinstance(values, list)  # nargs="+"
        setattr(namespace, self.dest, list(range(values[0])) if len(values) == 1 else values)


class _OneSeed(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        # The first one given replaces the default; `seen` tells a default of [0] from a seed 0 that was given.
        seen: list[object] = getattr(namespace, "_seen", [])
        namespace._seen = [*seen, values]
        setattr(namespace, self.dest, namespace._seen)


def use_threads() -> None:
    """As many threads as the environment says, or one: seconds are then comparable between machines."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def device_of(given: argparse.Namespace) -> torch.device:
    """The device that was asked for."""
    if given.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(given.device)


def accelerator(device: torch.device) -> str:
    """What the machine calls it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


@cache
def cifar10(folder: Path) -> tuple[Data, Data]:
    """Training and test rows: from `cifar10.pt`, bytes `[N, 3, 32, 32]` and labels, or from what `load` reads."""
    from spotlessnet.datasets import load
    from spotlessnet.datasets.cifar import NORMALISE

    if not (folder / "cifar10.pt").exists():
        pair = load("cifar10", folder)
        return pair.train, pair.test
    found = torch.load(folder / "cifar10.pt", map_location="cpu", weights_only=True)
    train, test = (Data.of((NORMALISE(found[f"x{part}"]), found[f"y{part}"].long())) for part in ("", "_test"))
    return train, test


def machine() -> str:
    """The processor's side of a record."""
    return (
        f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} threads, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def command(script: str, arguments: Sequence[str] | None = None) -> str:
    """The line that was typed, without the folder of the data, which is another one elsewhere.

    >>> command("attack", ["--data", "/home/me/cifar", "--seed", "0"])
    'python benchmarks/attack.py --data DIR --seed 0'
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    for i, word in enumerate(words):
        if word.startswith("--data="):
            words[i] = "--data=DIR"
        elif i and words[i - 1] == "--data":
            words[i] = "DIR"
    return shlex.join(["python", f"benchmarks/{script}.py", *words])


def note(script: str) -> str:
    """What goes beside every row: the command and the machine."""
    return f"{command(script)}; {machine()}"


def save(path: Path | None, rows: Sequence[Row]) -> None:
    """All rows, at once or not at all."""
    from spotlessnet.report.exports import as_json_lines

    if path is not None:
        write_whole(path, as_json_lines(rows).encode(), replace=True)


def collect(given: argparse.Namespace, script: str, parts: Iterable[Iterable[Row]]) -> list[Row]:
    """The rows of all parts or, with `--table`, those that are there; saved after each part.

    So an interruption costs one part, not hours.
    """
    if getattr(given, "table", False):
        return read_rows(given.out)
    rows: list[Row] = []
    about = note(script)
    for part in parts:
        rows += (replace(row, note=about) for row in part)
        save(given.out, rows)
    return rows


def show(given: argparse.Namespace, made: str, place: Place) -> None:
    """Print a table and, with `--docs`, put it into its page."""
    print(made)
    if given.docs is not None:
        place.write(given.docs, made)


def values_of(rows: Iterable[Row], experiment: str, method: str, readout: str) -> list[float]:
    """One number over seeds."""
    return [r.value for r in rows if (r.experiment, r.method, r.readout) == (experiment, method, readout)]


def mean_and_half(values: Sequence[float]) -> str:
    """A mean with half of its 95 % interval, which one value does not have.

    >>> mean_and_half([1.0]), mean_and_half([1.0, 1.0]), mean_and_half([1.0, 2.0, 3.0])
    ('1', '1', '2 ± 2.5')
    """
    mean, low, high = t_interval(list(values))
    return f"{mean:.3g}" if low == high or len(values) == 1 else f"{mean:.3g} ± {(high - low) / 2:.2g}"


def grey_style() -> dict[Any, Any]:
    """The package's figures with grey ink."""
    from spotlessnet.report.figures import STYLE

    return {name: GREY if value == STYLE["text.color"] else value for name, value in STYLE.items()}
