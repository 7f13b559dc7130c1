"""`reproduce`: run an experiment. The command and `python -m spotlessnet.experiments` both call it.

An experiment is anything with `toy`, `tiny`, `full`, `run` and `draw`, as `Experiment` has them.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from spotlessnet.auditing.rows import Row
from spotlessnet.core.errors import SettingError, check_choice
from spotlessnet.core.files import write_whole
from spotlessnet.report.exports import as_csv

SIZES = ("toy", "tiny", "full")
OUT = Path("reproduced")
"""Where rows go unless said."""

Found = TypeVar("Found")


@dataclass(frozen=True)
class Reproduced:
    """What a run left.

    **Arguments:**

    - `rows`: what was measured; none if figures alone were asked for.
    - `files`: written beside the rows, for people: a table and figures.
    """

    rows: list[Row]
    files: list[Path]


def find(name: str, known: Mapping[str, Found]) -> Found:
    """The experiment of that name, or an error that names the nearest one."""
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known are {', '.join(known) or 'none yet'}."
        raise SettingError(f"There is no experiment {name[:40]!r}. {hint}")
    return known[name]


def size_of(full: bool, tiny: bool) -> str:
    """The size that two flags name."""
    if full and tiny:
        raise SettingError("--full and --tiny are two sizes. Give one of them, or neither for a toy.")
    if full:
        return "full"
    return "tiny" if tiny else "toy"


def seeds_of(count: int | None, listed: Sequence[int] | None) -> tuple[int, ...] | None:
    """The seeds that `--seeds COUNT` or `--seed S` name; `None` for the experiment's own."""
    if count is not None and listed:
        raise SettingError("--seeds says how many, --seed says which. Give one of them.")
    if listed:
        return tuple(listed)
    if count is None:
        return None
    if count < 1:
        raise SettingError(f"--seeds must be at least 1, but got {count}.")
    return tuple(range(count))


def settings_for(
    experiment: Any, *, size: str = "toy", seeds: Sequence[int] | None = None, device: str | None = None
) -> Any:
    """The experiment's settings at a size, with other seeds or another device where given."""
    check_choice("size", size, SIZES)
    settings = getattr(experiment, size)()
    changes: dict[str, Any] = {}
    if seeds is not None:
        changes["seeds"] = tuple(seeds)
    if device is not None:
        changes["device"] = device
    return replace(settings, **changes) if changes else settings


def reproduce(experiment: Any, settings: Any, place: Path, data: Path | None = None) -> Reproduced:
    """Measure what is not in the folder yet, then write the table and draw."""
    rows = experiment.run(settings, place, data)
    # Rows are safe on disk by now, so that a figure that fails costs no measurement.
    write_whole(place / "rows.csv", as_csv(rows).encode(), replace=True, shared=True)
    return Reproduced(rows, [place / "rows.csv", *experiment.draw(place)])


def draw(experiment: Any, place: Path) -> Reproduced:
    """The figures of rows that are there; nothing is measured."""
    return Reproduced([], experiment.draw(place))
