"""Draws the flowcharts of the pages as SVG while the site is built: no script from elsewhere, no browser.

Code hosts draw ```` ```mermaid ```` blocks by themselves. The site must work offline, so this draws the part of the
language that the pages use: `flowchart TD`, nodes `a["first line<br/>second line"]`, arrows `a --> b` with or without a
label, `a -->|label| b`. Anything else is an error of the build, not a wrong picture.
"""

import re
from dataclasses import dataclass, field
from html import escape, unescape
from typing import Any

NODE = r'(\w+)(?:\["([^"]*)"\])?'
ARROW = re.compile(rf"^{NODE}\s*-->(?:\|([^|]*)\|)?\s*{NODE}$")
ALONE = re.compile(rf"^{NODE}$")
LETTER, LINE, PAD, GAP_X, GAP_Y = 7.4, 18, 12, 28, 44
"""Widths and heights in pixels; a letter of a monospaced font of 12 pixels, with room to spare."""


@dataclass
class Chart:
    """What a block says: labels by node, in order of appearance, and arrows."""

    labels: dict[str, list[str]] = field(default_factory=dict)
    arrows: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, name: str, label: str | None) -> None:
        """A node; the first label counts, and a node without one is called by its name."""
        if label is not None or name not in self.labels:
            self.labels[name] = [unescape(part) for part in re.split(r"<br\s*/?>", label or name)]

    def ranks(self) -> dict[str, int]:
        """The longest way from the top to each node."""
        rank = dict.fromkeys(self.labels, 0)
        for _ in self.labels:
            for source, _, target in self.arrows:
                rank[target] = max(rank[target], rank[source] + 1)
        if max(rank.values(), default=0) >= len(self.labels):
            raise ValueError("A flowchart of these pages must not lead back to where it was, but one does.")
        return rank


def read(text: str) -> Chart:
    """A chart from its block."""
    lines = [line.strip().rstrip(";") for line in text.strip().splitlines() if line.strip()]
    if not lines or lines[0] != "flowchart TD":
        raise ValueError(f"Pages draw `flowchart TD` only, but a block begins with {lines[:1]}.")
    chart = Chart()
    for line in lines[1:]:
        if found := ARROW.match(line):
            source, first, label, target, second = found.groups()
            chart.add(source, first)
            chart.add(target, second)
            chart.arrows.append((source, label or "", target))
        elif found := ALONE.match(line):
            chart.add(*found.groups())
        else:
            raise ValueError(f"Nothing is known about this line of a flowchart: {line!r}. See docs/mermaid_fence.py.")
    return chart


def draw(chart: Chart) -> str:
    """The chart as SVG, one row of boxes a rank, in the colours of the page."""
    rank = chart.ranks()
    size = {n: (LETTER * max(map(len, ls)) + 2 * PAD, LINE * len(ls) + PAD) for n, ls in chart.labels.items()}
    rows = [[n for n in chart.labels if rank[n] == r] for r in range(max(rank.values()) + 1)]
    widths = [sum(size[n][0] for n in row) + GAP_X * (len(row) - 1) for row in rows]
    whole, place, y = max(widths), dict[str, tuple[float, float]](), 2.0
    for row, width in zip(rows, widths, strict=True):
        x = (whole - width) / 2 + 2
        for name in row:
            place[name] = (x, y)
            x += size[name][0] + GAP_X
        y += max(size[n][1] for n in row) + GAP_Y
    parts = [_arrow(chart.arrows[i], place, size) for i in range(len(chart.arrows))]
    parts += [_box(chart.labels[name], *place[name], *size[name]) for name in chart.labels]
    return (
        f'<svg class="flowchart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole + 4:.0f} {y - GAP_Y + 4:.0f}" '
        f'style="max-width:{whole + 4:.0f}px;width:100%" role="img">{"".join(parts)}</svg>'
    )


def _box(lines: list[str], x: float, y: float, width: float, height: float) -> str:
    text = "".join(
        f'<text x="{x + PAD:.0f}" y="{y + PAD / 2 + LINE * (i + 0.75):.0f}" font-size="12" fill="currentColor" '
        f'font-family="monospace" font-weight="{700 if i == 0 else 400}">{escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="4" fill="none" '
        f'stroke="currentColor"/>{text}'
    )


def _arrow(
    arrow: tuple[str, str, str], place: dict[str, tuple[float, float]], size: dict[str, tuple[float, float]]
) -> str:
    source, label, target = arrow
    x1, y1 = place[source][0] + size[source][0] / 2, place[source][1] + size[source][1]
    x2, y2 = place[target][0] + size[target][0] / 2, place[target][1]
    head = f"M{x2 - 4:.0f},{y2 - 7:.0f} L{x2:.0f},{y2:.0f} L{x2 + 4:.0f},{y2 - 7:.0f}"
    said = ""
    if label:
        said = (
            f'<text x="{(x1 + x2) / 2 + 8:.0f}" y="{(y1 + y2) / 2 + 4:.0f}" font-size="11" fill="currentColor" '
            f'font-family="sans-serif" opacity="0.8">{escape(label)}</text>'
        )
    path = f'<path d="M{x1:.0f},{y1:.0f} L{x2:.0f},{y2:.0f} {head}" fill="none" stroke="currentColor"/>'
    return path + said


def fence(source: str, language: str, css_class: str, options: dict[str, Any], md: Any, **kwargs: Any) -> str:
    """What pymdownx.superfences calls for a block."""
    return f"<p>{draw(read(source))}</p>"
