"""The first picture: for every readout a way from the original over the unlearned to the retrained networks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.summary import ORIGINAL, RETRAINED, Line
from spotlessnet.auditing.verdict import Checks
from spotlessnet.report.chips import Chip, mark
from spotlessnet.report.number import number

LEFT, RIGHT = 4.0, 96.0
"""Percent of the width between which marks are drawn."""

Band = tuple[float, float]


@dataclass(frozen=True)
class Channel:
    """One readout of three groups of networks, placed on one line; places are percent of the width.

    **Arguments:**

    - `original`, `unlearned`, `retrained`: places of the means.
    - `band`, `range`: from lowest to highest retrained network, and unlearned network.
    - `values`: the three means, as text; `spread` the band.
    """

    name: str
    unit: str
    original: float
    unlearned: float
    retrained: float
    band: Band
    range: Band
    values: tuple[str, str, str]
    spread: str
    chip: Chip | None

    @property
    def alt(self) -> str:
        """For those who cannot see it."""
        original, unlearned, retrained = self.values
        return f"{self.name}: original {original}, unlearned {unlearned}, retrained {retrained} ({self.spread})"


def bands(rows: Sequence[Row]) -> dict[tuple[str, str], Band]:
    """Lowest and highest network, by method and readout."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if math.isfinite(row.value):
            groups.setdefault((row.method, row.readout), []).append(row.value)
    return {key: (min(values), max(values)) for key, values in groups.items()}


def channels(rows: Sequence[Row], lines: Sequence[Line], method: str, checks: Checks) -> list[Channel]:
    """A channel for every readout that all three groups have, checks of the verdict first.

    Every channel has its own scale: the retrained mean is at one place in all of them, the original to its left, what
    goes beyond retraining to its right.
    """
    cells = {(line.method, line.readout): line for line in lines}
    spans = bands(rows)
    found = []
    for readout in dict.fromkeys(line.readout for line in lines):
        keys = [(which, readout) for which in (ORIGINAL, method, RETRAINED)]
        if all(key in spans and math.isfinite(cells[key].mean.value) for key in keys):
            found.append([cells[key] for key in keys])
    scaled = [_scaled(group, spans) for group in found]
    # The retrained mean is at zero; a quarter of room beside it at least, so that pictures of two reports look alike.
    least = min([-0.25, *(value for one in scaled for value in one.values())])
    made = [_channel(group, _placed(one, least), spans, checks) for group, one in zip(found, scaled, strict=True)]
    return sorted(made, key=lambda channel: channel.chip is None or not channel.chip.tip.startswith("check"))


def _scaled(group: Sequence[Line], spans: Mapping[tuple[str, str], Band]) -> dict[str, float]:
    """Means and bands in units of the channel: 0 as retrained, 1 the furthest mean, on the side of the original."""
    original, unlearned, retrained = (line.mean.value for line in group)
    low, high = spans[RETRAINED, group[0].readout]
    ours = spans[group[1].method, group[0].readout]
    # Where the original lies among retrained networks, their spread is the unit, or chance would fill the picture.
    unit = max(abs(v - retrained) for v in (original, *ours, 2 * low - retrained, 2 * high - retrained)) or 1.0
    side = 1.0 if original >= retrained else -1.0
    values = {"original": original, "unlearned": unlearned, "retrained": retrained}
    values |= {"low": low, "high": high, "least": ours[0], "most": ours[1]}
    return {name: side * (value - retrained) / unit for name, value in values.items()}


def _placed(scaled: Mapping[str, float], least: float) -> dict[str, float]:
    """Percent of the width; the original's side is left."""
    return {name: RIGHT - (RIGHT - LEFT) * (value - least) / (1 - least) for name, value in scaled.items()}


def _channel(
    group: Sequence[Line], places: Mapping[str, float], spans: Mapping[tuple[str, str], Band], checks: Checks
) -> Channel:
    original, unlearned, retrained = group
    band = spans[RETRAINED, original.readout]
    ends = sorted((places["low"], places["high"]))
    reach = sorted((places["least"], places["most"]))
    return Channel(
        original.readout,
        original.unit,
        places["original"],
        places["unlearned"],
        places["retrained"],
        (ends[0], ends[1]),
        (reach[0], reach[1]),
        (_value(original), _value(unlearned), _value(retrained)),
        f"{number(band[0])} to {number(band[1])}",
        mark(unlearned, checks, band),
    )


def _value(line: Line) -> str:
    return ("> " if line.censored else "") + number(line.mean.value)
