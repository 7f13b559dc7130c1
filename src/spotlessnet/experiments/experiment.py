"""`Experiment`: one table or figure of a paper, at three sizes, with a record of every run beside its rows."""

import importlib
import json
import platform
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from spotlessnet.auditing.rows import Row, append_lines, read_rows
from spotlessnet.core.errors import DataError, check_choice
from spotlessnet.operators.precision import matmul

ROWS, RUNS = "rows.jsonl", "runs.jsonl"


@dataclass(frozen=True, kw_only=True)
class Sized:
    """What the settings of every experiment have.

    **Arguments:**

    - `size`: `"toy"` runs anywhere in seconds, `"full"` is the paper's own, `"tiny"` walks the full path on few rows.
    - `seeds`: of the trainings, each with its retrained partner.
    - `device`: `"auto"`, `"cpu"` or `"cuda"`.
    """

    size: str = "toy"
    seeds: tuple[int, ...] = (0, 1, 2)
    device: str = "auto"

    @property
    def place(self) -> torch.device:
        """The device that was asked for."""
        check_choice("device", self.device, ("auto", "cpu", "cuda"))
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)


@dataclass(frozen=True)
class Published:
    """One number that a paper prints.

    **Arguments:**

    - `experiment`, `method`, `readout`: the rows of ours that it stands beside, in their unit.
    - `source`: where it is printed.
    - `at_most`: the paper says that ours must be no larger, not that it must be near.
    """

    experiment: str
    method: str
    readout: str
    value: float
    source: str
    at_most: bool = False


@dataclass(frozen=True)
class Experiment:
    """A table or figure: the module that holds its `Settings`, `PAPER`, `run` and `draw`.

    **Arguments:**

    - `name`: what it is called on the command line.
    - `module`: under `spotlessnet.experiments`; imported when needed.
    - `about`: one sentence.
    - `part`: handed to `Settings.toy`, `full` and `tiny` where one file makes several tables.
    """

    name: str
    module: str
    about: str
    part: str = ""

    def __post_init__(self) -> None:
        # Listings show the first line of whatever they list.
        object.__setattr__(self, "__doc__", self.about)

    def toy(self) -> Any:
        """Settings that a laptop runs in seconds, from data that ships with scikit-learn."""
        return self._settings("toy")

    def full(self) -> Any:
        """Settings of the paper's own size."""
        return self._settings("full")

    def tiny(self) -> Any:
        """The full path on a few rows: a rehearsal."""
        return self._settings("tiny")

    @property
    def paper(self) -> tuple[Published, ...]:
        """What the paper printed."""
        return tuple(self.code.PAPER)

    @property
    def code(self) -> ModuleType:
        """The module behind it."""
        return importlib.import_module(f"spotlessnet.experiments.{self.module}")

    def run(self, settings: Any, out: Path, data: Path | None = None) -> list[Row]:
        """Measure what is not yet in `out/rows.jsonl`, and add to `out/runs.jsonl` how it was done.

        Several processes may share a folder if each has seeds of its own: both files only ever grow at their ends.

        **Arguments:**

        - `settings`: from `toy`, `full` or `tiny`.
        - `data`: the folder with the data sets and pre-trained weights; `SPOTLESS_DATA` or `data` unless given.
        """
        out = Path(out)
        began = time.perf_counter()
        started = datetime.now(UTC)
        # Several times faster on a GPU, and less exact: so the record says which it was.
        exactness = "tf32" if settings.place.type == "cuda" else "float32"
        with matmul(exactness):
            rows: list[Row] = self.code.run(settings, data, out)
        record = {
            "experiment": self.name,
            "command": command(self.name, settings),
            "settings": asdict(settings),
            "seeds": list(settings.seeds),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": device_name(settings.place),
            "float32 products": exactness,
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - began, 3),
            "rows": len(rows),
        }
        append_lines(out / RUNS, [json.dumps(record, default=str)])
        return rows

    def draw(self, out: Path) -> list[Path]:
        """Figures from the rows in a folder, beside them; nothing is measured."""
        rows = read_rows(out / ROWS)
        if not rows:
            raise DataError(f"There are no rows in {out / ROWS} to draw. Run the experiment first.")
        drawn: list[Path] = self.code.draw(rows, out)
        return drawn

    def _settings(self, size: str) -> Any:
        make = getattr(self.code.Settings, size)
        return replace(make(self.part) if self.part else make(), size=size)


def command(name: str, settings: Any) -> str:
    """The command line that repeats a run."""
    size = {"toy": "", "full": " --full", "tiny": " --tiny"}[settings.size]
    seeds = list(settings.seeds)
    which = f"--seeds {len(seeds)}" if seeds == [*range(len(seeds))] else " ".join(f"--seed {seed}" for seed in seeds)
    return f"python -m spotlessnet.experiments {name}{size} --data DATA --out OUT {which}"


def device_name(device: torch.device) -> str:
    """What the machine calls its accelerator, or the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


def read_runs(out: Path) -> list[dict[str, Any]]:
    """The records of earlier runs into the same folder."""
    path = out / RUNS
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
