"""Summary: rows over seeds become one line per method and readout, beside the target that retraining sets."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from spotlessnet.auditing.rows import Row
from spotlessnet.core.intervals import Interval, t_interval

RETRAINED = "retrained"
ORIGINAL = "original"
SHARES = ("share of rows", "AUC")
"""Units of readouts that lie between 0 and 1."""

UNKNOWN = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Line:
    """A method under a readout, over all seeds.

    **Arguments:**

    - `mean`: over seeds, with its 95 % t-interval; limits are infinite for one seed.
    - `target`: the same for the retrained models.
    - `difference`: from the retrained model of the **same** seed, with its interval; narrower than comparing the two
      means, since the seeds are paired.
    - `seconds`, `memory`: of the method, mean and maximum over seeds.
    - `seeds`: how many gave a number; `broken` how many gave none, because a method or a readout broke down.
    - `censored`: how many seeds ran into a cap.
    """

    experiment: str
    method: str
    readout: str
    seeds: int
    mean: Interval
    target: Interval
    difference: Interval
    unit: str
    ideal: str
    seconds: float
    memory: float
    censored: int = 0
    note: str = ""
    broken: int = 0

    @property
    def limits(self) -> tuple[float, float]:
        """Limits of the mean as a reader is shown them: of a share none that it cannot have, however few the seeds."""
        low, high = self.mean.low, self.mean.high
        if self.unit not in SHARES or not (math.isfinite(low) and math.isfinite(high)):
            return low, high
        return max(0.0, low), min(1.0, high)

    @property
    def miss(self) -> str:
        """`above` or `below` the retrained models, `as retrained` where the interval of the difference holds zero."""
        if math.isnan(self.difference.value):
            return ""
        if self.difference.low > 0:
            return "above"
        return "below" if self.difference.high < 0 else "as retrained"


def summarise(rows: Iterable[Row], *, level: float = 0.95) -> list[Line]:
    """One line per experiment, method and readout, in the order in which they first appear."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.experiment, row.method, row.readout), []).append(row)
    lines = []
    for (experiment, method, readout), everything in groups.items():
        group = _with_a_number(everything) or everything
        retrained = _with_a_number(groups.get((experiment, RETRAINED, readout), []))
        partner = {row.seed: row.value for row in retrained}
        gaps = [row.value - partner[row.seed] for row in group if row.seed in partner]
        lines.append(
            Line(
                experiment,
                method,
                readout,
                len(group),
                mean=_interval([row.value for row in group], level),
                target=_interval(list(partner.values()), level),
                difference=_interval(gaps, level),
                unit=group[0].unit,
                ideal=group[0].ideal,
                seconds=_mean([row.seconds for row in group]),
                memory=max((row.memory for row in group if not math.isnan(row.memory)), default=math.nan),
                censored=sum(row.censored for row in group),
                note=group[0].note,
                broken=sum(math.isnan(row.value) for row in everything),
            )
        )
    return lines


def as_text(lines: Iterable[Line]) -> str:
    """The lines as an aligned table for a terminal."""
    head = ("method", "readout", "mean", "interval", "retrained", "miss", "seconds")
    body = [
        (
            line.method,
            line.readout,
            f"{'> ' if line.censored else ''}{line.mean.value:.4g}",
            f"[{line.mean.low:.4g}, {line.mean.high:.4g}]",
            f"{line.target.value:.4g}",
            line.miss,
            f"{line.seconds:.2g}",
        )
        for line in lines
    ]
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *body]
    )


def _with_a_number(rows: list[Row]) -> list[Row]:
    return [row for row in rows if not math.isnan(row.value)]


def _interval(values: list[float], level: float) -> Interval:
    if not values or any(math.isnan(value) for value in values):
        return UNKNOWN
    if any(math.isinf(value) for value in values):
        return Interval(sum(values) / len(values), math.nan, math.nan)
    return t_interval(values, level)


def _mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
