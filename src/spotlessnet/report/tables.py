"""Tables of the page: every readout of every method beside retraining, and what each step took."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotlessnet.auditing.audit_report import Cost
from spotlessnet.auditing.summary import RETRAINED, Line
from spotlessnet.auditing.verdict import NONE, Checks
from spotlessnet.report.channels import Band
from spotlessnet.report.chips import Chip, mark
from spotlessnet.report.number import number


@dataclass(frozen=True)
class Cell:
    """A mean, its interval and its mark."""

    value: str
    interval: str
    chip: Chip | None


@dataclass(frozen=True)
class ReadoutRow:
    """A readout of every method, in the order of the columns."""

    name: str
    unit: str
    ideal: str
    cells: list[Cell | None]


def columns(lines: Sequence[Line], method: str) -> list[str]:
    """Methods: the original, the one that is judged, retrained networks, then what is shown beside them."""
    found = dict.fromkeys(line.method for line in lines)
    first = [name for name in ("original", method, "as delivered", RETRAINED) if name in found]
    return [*first, *(name for name in found if name not in first)]


def readout_rows(
    lines: Sequence[Line], methods: Sequence[str], judged: str, checks: Checks, spans: Mapping[tuple[str, str], Band]
) -> list[ReadoutRow]:
    """One row per readout; the marks of the judged method are those of its checks."""
    cells = {(line.method, line.readout): line for line in lines}
    rows = []
    for readout, line in {line.readout: line for line in lines}.items():
        band = spans.get((RETRAINED, readout), (math.nan, math.nan))
        found = [_cell(cells.get((method, readout)), checks if method == judged else NONE, band) for method in methods]
        rows.append(ReadoutRow(readout, line.unit, line.ideal, found))
    return rows


def _cell(line: Line | None, checks: Checks, band: Band) -> Cell | None:
    if line is None or math.isnan(line.mean.value):
        return None
    low, high = line.limits
    interval = f"{number(low)} to {number(high)}" if math.isfinite(low) else ""
    return Cell(("> " if line.censored else "") + number(line.mean.value), interval, mark(line, checks, band))


def seconds_of(lines: Sequence[Line], methods: Sequence[str]) -> list[str]:
    """What each method took, in the order of the columns."""
    found = {line.method: line.seconds for line in reversed(lines)}
    return [number(found[method]) for method in methods]


def cost_rows(costs: Sequence[Cost]) -> list[dict[str, str]]:
    """What each step took, beside one retraining."""
    retrain = next((c.seconds for c in costs if c.what == RETRAINED), math.nan)
    return [
        {
            "what": c.what,
            "seconds": number(c.seconds),
            "share": f"{c.seconds / retrain:.0%}" if retrain > 0 and math.isfinite(c.seconds) else "–",
            "memory": number(c.memory),
            "note": c.note,
        }
        for c in costs
    ]
