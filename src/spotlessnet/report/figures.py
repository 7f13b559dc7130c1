"""Figures: curves become SVG that reads on light and dark pages, each with a sentence for those who cannot see it."""

import hashlib
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spotlessnet.auditing.audit_report import Cost, Curves
from spotlessnet.auditing.summary import ORIGINAL, RETRAINED, Line

INK = "#010203"
"""A colour no data has: it becomes the page's own text colour."""

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
"""Okabe and Ito's colours, which everyone can tell apart."""

MARKS = ("o", "s", "^", "D", "v", "P", "X")

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "savefig.transparent": True,
    "svg.hashsalt": "spotlessnet",
}


@dataclass(frozen=True)
class Picture:
    """A figure as it stands on the page."""

    title: str
    svg: str
    alt: str
    caption: str


def pictures(curves: Curves, lines: Sequence[Line], costs: Sequence[Cost]) -> list[Picture]:
    """Every figure that there is something to show for, in the order of the page."""
    made = [
        readouts_beside_retraining(lines),
        confidence(curves.confidence),
        trade_off(curves.trade_off),
        attack(curves.roc),
        leak(curves.leak),
        paths(curves.paths),
        cost(costs),
    ]
    return [picture for picture in made if picture is not None]


def readouts_beside_retraining(lines: Sequence[Line]) -> Picture | None:
    """One small panel per readout: every method with its interval, on the band of the retrained networks."""
    by_readout: dict[str, list[Line]] = {}
    for line in lines:
        if math.isfinite(line.mean.value):
            by_readout.setdefault(line.readout, []).append(line)
    by_readout = {name: group for name, group in by_readout.items() if any(x.method == RETRAINED for x in group)}
    if not by_readout:
        return None
    across = 3
    down = -(-len(by_readout) // across)
    methods = list(dict.fromkeys(line.method for line in lines))

    def draw(figure: Figure) -> None:
        for i, (name, group) in enumerate(by_readout.items()):
            axes = figure.add_subplot(down, across, i + 1)
            _panel(axes, name, group, methods, labelled=i % across == 0)

    height = down * (0.55 + 0.26 * len(methods)) + 0.3
    alt = (
        f"{len(by_readout)} panels, one per readout. Each shows the mean of every method with its 95 percent interval, "
        "and a band for the retrained networks. The numbers stand in the table above."
    )
    caption = (
        "Green band: the networks that never saw the rows. A method has forgotten where its interval meets the band."
    )
    return Picture("Every readout beside retraining", _svg(draw, (10, height)), alt, caption)


def _panel(axes: Axes, name: str, group: Sequence[Line], methods: Sequence[str], *, labelled: bool) -> None:
    target = next(line.target for line in group)
    low, high = (target.low, target.high) if math.isfinite(target.low) else (target.value, target.value)
    axes.axvspan(low, high, color=PALETTE[2], alpha=0.25, lw=0)
    axes.axvline(target.value, color=PALETTE[2], lw=1)
    for line in group:
        place = len(methods) - 1 - methods.index(line.method)
        colour = {ORIGINAL: PALETTE[1], RETRAINED: PALETTE[2]}.get(line.method, PALETTE[0])
        if math.isfinite(line.mean.low):
            axes.plot([line.mean.low, line.mean.high], [place, place], color=colour, lw=2, solid_capstyle="butt")
        axes.plot(line.mean.value, place, "o", color=colour, ms=5)
    axes.set_yticks(range(len(methods)), [*reversed(methods)] if labelled else [""] * len(methods))
    axes.set_ylim(-0.6, len(methods) - 0.4)
    axes.set_title(name, fontsize=10)
    axes.set_xlabel(group[0].unit, fontsize=8)
    axes.locator_params(axis="x", nbins=4)


def confidence(values: Mapping[str, Sequence[float]]) -> Picture | None:
    """How sure each network is of the labels that the forgotten rows had."""
    if not values:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        edges = [i / 20 for i in range(21)]
        for i, (name, probabilities) in enumerate(values.items()):
            axes.hist(probabilities, bins=edges, histtype="step", lw=2, color=PALETTE[i], label=name)
        axes.set_xlabel("probability given to the label that the row had")
        axes.set_ylabel("forgotten rows")
        axes.legend()

    means = ", ".join(f"{name} {sum(p) / len(p):.2f}" for name, p in values.items() if len(p))
    caption = "A network that has forgotten is as unsure as one that never saw the rows: the curves lie on each other."
    return Picture("Confidence on the forgotten rows", _svg(draw), f"Histogram; mean confidence: {means}.", caption)


def trade_off(values: Mapping[str, Sequence[tuple[float, float, float]]]) -> Picture | None:
    """Error against nats as the noise grows."""
    if not values:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for i, (name, points) in enumerate(values.items()):
            ordered = sorted(p for p in points if p[0] > 0 and math.isfinite(p[0]))
            nats, error, spread = ([p[j] for p in ordered] for j in range(3))
            axes.plot(nats, error, marker=MARKS[i % len(MARKS)], ms=4, color=PALETTE[i % len(PALETTE)], label=name)
            low = [e - s for e, s in zip(error, spread, strict=True)]
            high = [e + s for e, s in zip(error, spread, strict=True)]
            axes.fill_between(nats, low, high, color=PALETTE[i % len(PALETTE)], alpha=0.2, lw=0)
        axes.set_xscale("log")
        axes.invert_xaxis()
        axes.set_xlabel("information left, nats (less to the right)")
        axes.set_ylabel("error (mean loss without classes)")
        axes.legend()

    alt = "Curves of error against the nats that may leak: more noise leaves less information and makes more errors."
    caption = "Noise drowns what the shift missed, and costs accuracy. A better shift moves the whole curve down."
    return Picture("What forgetting costs in accuracy", _svg(draw), alt, caption)


def attack(values: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Picture | None:
    """The membership attack's true against its false positives, on logarithmic axes."""
    if not values:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        least = 1.0
        for i, (name, (fpr, tpr)) in enumerate(values.items()):
            seen = [(f, t) for f, t in zip(fpr, tpr, strict=True) if f > 0 and t > 0]
            if seen:
                least = min(least, seen[0][0])
                axes.plot(*zip(*seen, strict=True), color=PALETTE[i % len(PALETTE)], lw=2, label=name)
        axes.plot([least, 1], [least, 1], color=INK, lw=1, ls=":", label="guessing")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("false positive rate")
        axes.set_ylabel("true positive rate")
        axes.legend(loc="lower right")

    networks = ", ".join(values)
    alt = f"Receiver operating curves of a per-example membership attack on {networks}; the dotted line is guessing."
    caption = (
        "Above the dotted line the attacker knows more than chance. Only rates that the sample can resolve are drawn."
    )
    return Picture("What an attacker can tell", _svg(draw), alt, caption)


def leak(values: Mapping[str, Sequence[float]]) -> Picture | None:
    """Nats of single queries, by where the query came from."""
    values = {name: [v for v in nats if math.isfinite(v) and v > 0] for name, nats in values.items()}
    values = {name: nats for name, nats in values.items() if nats}
    if not values:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for i, (name, nats) in enumerate(values.items()):
            share = [(j + 1) / len(nats) for j in range(len(nats))]
            axes.step(sorted(nats), share, where="post", color=PALETTE[i % len(PALETTE)], lw=2, label=name)
        axes.set_xscale("log")
        axes.set_xlabel("nats that one answer can tell")
        axes.set_ylabel("share of rows at or below")
        axes.legend(loc="lower right")

    medians = ", ".join(f"{name} {sorted(n)[len(n) // 2]:.2g}" for name, n in values.items())
    caption = "Each row asked as a single query. Rows far to the right are the ones an attacker would ask about."
    return Picture("Leak per sample", _svg(draw), f"Cumulative curves; median nats: {medians}.", caption)


def paths(values: Mapping[str, Sequence[tuple[float, float]]]) -> Picture | None:
    """Ways of the weights in the plane of their two main directions."""
    if not values:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for i, (name, points) in enumerate(values.items()):
            colour = PALETTE[i % len(PALETTE)]
            axes.plot(*zip(*points, strict=True), color=colour, lw=1.5, marker=".", ms=3, label=name)
            axes.plot(*points[-1], marker=MARKS[i % len(MARKS)], ms=9, color=colour)
        axes.set_xlabel("first main direction of the weights")
        axes.set_ylabel("second")
        axes.legend()

    alt = f"Paths of weights in a plane for {', '.join(values)}; large marks are where each ends."
    caption = (
        "Training and scrubbing as ways through weight space, seen in the plane that holds most of their movement."
    )
    return Picture("Where the weights went", _svg(draw), alt, caption)


def cost(values: Sequence[Cost]) -> Picture | None:
    """Seconds of each step, beside retraining."""
    known = [c for c in values if math.isfinite(c.seconds) and c.seconds > 0]
    if len(known) < 2:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        names = [c.what for c in known]
        colours = [PALETTE[2] if c.what == RETRAINED else PALETTE[0] for c in known]
        axes.barh(range(len(known)), [c.seconds for c in known], color=colours)
        axes.set_yticks(range(len(known)), names)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlabel("seconds, same run and machine")

    alt = "Bars: " + ", ".join(f"{c.what} {c.seconds:.2g} seconds" for c in known) + "."
    caption = "Green is one retraining. A method that takes longer than that is not worth its name at this size."
    return Picture("What it took", _svg(draw, (7, 0.8 + 0.3 * len(known))), alt, caption)


def _svg(draw: Callable[[Figure], None], size: tuple[float, float] = (7, 3.6)) -> str:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(stream.getvalue())


def _inline(svg: str) -> str:
    """An SVG for inside a page: no prolog, no fixed size, ids of its own, the page's ink and letters."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    # Two figures of one page must not share ids, or one would borrow the other's clips.
    mark = f"f{hashlib.sha256(svg.encode()).hexdigest()[:8]}"
    svg = re.sub(r'\bid="', f'id="{mark}-', svg)
    svg = svg.replace('href="#', f'href="#{mark}-').replace("url(#", f"url(#{mark}-")
    return svg.replace(INK, "currentColor")
