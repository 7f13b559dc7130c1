"""Figures of experiments: files drawn from rows, in colours that everyone can tell apart."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.summary import ORIGINAL, RETRAINED, Line, summarise
from spotlessnet.core.intervals import Interval

# matplotlib is imported where something is drawn: measuring must not need it.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def save(
    out: Path, name: str, draw: Callable[["Figure"], None], size: tuple[float, float] = (7, 3.6), caption: str = ""
) -> list[Path]:
    """Draw into a figure and write it as SVG and PNG.

    **Arguments:**

    - `name`: of the files, without an ending.
    - `draw`: fills the figure.
    - `size`: inches.
    - `caption`: one sentence under the figure, for what must be said beside it.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from spotlessnet.report.figures import STYLE

    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}.svg", out / f"{name}.png"]
    # Files stand on white paper; text as outlines looks the same everywhere.
    with mpl.rc_context({**STYLE, "savefig.transparent": False, "svg.fonttype": "path"}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        if caption:
            figure.supxlabel(caption, fontsize=8)
        figure.savefig(paths[0], metadata={"Date": None, "Creator": None})
        figure.savefig(paths[1], dpi=150, metadata={"Software": None})
    return paths


def colour(place: int) -> str:
    """The colour of the n-th curve."""
    from spotlessnet.report.figures import PALETTE

    return PALETTE[place % len(PALETTE)]


def mark(place: int) -> str:
    """The marker of the n-th curve, so that colour is never the only difference."""
    from spotlessnet.report.figures import MARKS

    return MARKS[place % len(MARKS)]


def colour_of(method: str) -> str:
    """Original orange, retrained green, anything else blue: the same in every figure."""
    return {ORIGINAL: colour(1), RETRAINED: colour(2)}.get(method, colour(0))


def panels(rows: Iterable[Row], readouts: Sequence[str], across: int = 3) -> Callable[["Figure"], None]:
    """One panel per readout: the mean of each method with its 95 % interval, on the band of the retrained networks."""
    lines = summarise(rows)
    methods = list(dict.fromkeys(line.method for line in lines))

    def draw(figure: "Figure") -> None:
        down = -(-len(readouts) // across)
        for i, readout in enumerate(readouts):
            axes = figure.add_subplot(down, across, i + 1)
            panel(axes, [line for line in lines if line.readout == readout], methods, labelled=i % across == 0)
            axes.set_title(readout, fontsize=10)

    return draw


def panel(axes: "Axes", lines: Sequence[Line], methods: Sequence[str], *, labelled: bool) -> None:
    """The methods of one readout, one below the other."""
    unit = lines[0].unit if lines else ""
    # An interval of few seeds may reach where the number itself cannot.
    top = 1.0 if unit.startswith("share") else math.inf
    target = next((line.target for line in lines if math.isfinite(line.target.value)), None)
    if target is not None:
        low, high = _limits(target, top)
        axes.axvspan(low, high, color=colour(2), alpha=0.25, lw=0)
        axes.axvline(target.value, color=colour(2), lw=1)
    for line in lines:
        place = len(methods) - 1 - methods.index(line.method)
        if not math.isfinite(line.mean.value):
            continue
        axes.plot(_limits(line.mean, top), [place, place], color=colour_of(line.method), lw=2)
        axes.plot(line.mean.value, place, ">" if line.censored else "o", color=colour_of(line.method), ms=5)
    wide = unit == "nats" and any(line.mean.value > 1 for line in lines)
    if wide:
        axes.set_xscale("symlog", linthresh=1.0)
    axes.set_yticks(range(len(methods)), [*reversed(methods)] if labelled else [""] * len(methods))
    axes.set_ylim(-0.6, len(methods) - 0.4)
    axes.set_xlabel(unit, fontsize=8)
    if wide:
        axes.set_xlim(left=0)
        axes.tick_params(axis="x", labelsize=7)
    else:
        axes.locator_params(axis="x", nbins=4)


def _limits(interval: Interval, top: float) -> tuple[float, float]:
    """The limits to draw, none of them impossible."""
    if not math.isfinite(interval.low):
        return interval.value, interval.value
    # Every number that is shown in panels counts or measures something, so it is never negative.
    return min(max(interval.low, 0.0), interval.value), min(interval.high, max(top, interval.value))
