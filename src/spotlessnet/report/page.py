"""The page: a report as one HTML file that needs nothing from outside."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from spotlessnet.auditing.audit_report import AuditReport, Cost
from spotlessnet.auditing.equivalence import SHARE
from spotlessnet.auditing.summary import RETRAINED, Line, summarise
from spotlessnet.auditing.verdict import Check
from spotlessnet.report.figures import pictures

TONES = {"forgotten": "good", "not forgotten": "bad"}
MARKS = {"above": ("▲", "above"), "below": ("▼", "below"), "as retrained": ("●", "same"), "": ("", "")}
SIGNS = {"forgotten": "✓", "not forgotten": "✗", "inconclusive": "?"}


def page(report: AuditReport) -> str:
    """The whole report as text; every word from outside is escaped."""
    lines = summarise(report.rows)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    environment.filters["number"] = number
    template = environment.from_string(files("spotlessnet.report").joinpath("page.html").read_text(encoding="utf-8"))
    outcome = report.outcome
    return template.render(
        report=report,
        tone=TONES.get(outcome, "open"),
        word=f"{SIGNS.get(outcome, '·')} {outcome.capitalize()}",
        summary=in_plain_words(report),
        request_line=_request_line(report),
        seeds=max((line.seeds for line in lines), default=0),
        readouts=_readouts(lines),
        table=_table(lines),
        pictures=pictures(report.curves, lines, report.costs),
        costs=_costs(report.costs),
        cost_line=cost_in_words(report),
        assumptions=list(zip(report.assumed, report.lost, strict=True)),
    )


def in_plain_words(report: AuditReport) -> str:
    """The verdict for a reader who knows no statistics."""
    rows = report.request.get("rows to forget", "the")
    if report.verdict is None:
        return (
            "No verdict was asked for. A verdict compares the scrubbed network with several networks that were trained "
            "without the rows; run the audit to get one."
        )
    beginnings = {
        "forgotten": (
            f"After scrubbing, the network answers about {rows} forgotten rows like networks that never saw them, as "
            "closely as this audit can see."
        ),
        "not forgotten": (
            "The network still differs from networks that never saw the rows, by more than chance and more than is "
            "allowed. It should not be released as if it had forgotten."
        ),
        "inconclusive": "This audit can say neither that the rows are forgotten nor that they are remembered.",
    }
    return " ".join([beginnings[report.verdict.outcome], *_still_there(report.verdict.checks.get(SHARE))])


def _still_there(share: Check | None) -> list[str]:
    """The remembered share in words, where it is what went wrong."""
    if share is None or share.state == "same" or not math.isfinite(share.value):
        return []
    if share.value < 0:
        return ["It is further from the rows than networks that never saw them, which gives them away as well."]
    return [
        f"About {share.value:.0%} of what set the original apart is still there; at most {share.margin:.0%} may be."
    ]


def cost_in_words(report: AuditReport) -> str:
    """Whether the method was worth it, said plainly."""
    seconds = {c.what: c.seconds for c in report.costs}
    mine, retrain = seconds.get(report.method), seconds.get(RETRAINED)
    if not mine or not retrain or not (math.isfinite(mine) and math.isfinite(retrain)):
        return "Seconds of wall time, measured in one run on one machine."
    if mine > retrain:
        return (
            f"At this size retraining is cheaper: it took {number(retrain)} s, {report.method} {number(mine)} s. "
            "Retrain, unless the retained data is no longer at hand."
        )
    return f"{report.method} took {number(mine)} s, {mine / retrain:.0%} of one retraining ({number(retrain)} s)."


def number(value: Any) -> str:
    """A number for reading: three figures, no noise.

    >>> number(0.12345), number(float("inf")), number(1234567.0), number(float("nan"))
    ('0.123', '∞', '1.23e+06', '–')
    """
    if not isinstance(value, (int, float)):
        return str(value)
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.3g}"


@dataclass(frozen=True)
class _Cell:
    value: str
    interval: str
    mark: str
    tone: str


@dataclass(frozen=True)
class _TableRow:
    method: str
    seconds: str
    cells: list[_Cell | None] = field(default_factory=list)


def _readouts(lines: Sequence[Line]) -> list[dict[str, str]]:
    found = {line.readout: line for line in lines}
    return [{"name": name, "unit": line.unit, "ideal": line.ideal} for name, line in found.items()]


def _table(lines: Sequence[Line]) -> list[_TableRow]:
    cells = {(line.method, line.readout): line for line in lines}
    readouts = list(dict.fromkeys(line.readout for line in lines))
    rows = []
    for method in dict.fromkeys(line.method for line in lines):
        own = [line for line in lines if line.method == method]
        row = [_cell(cells.get((method, readout))) for readout in readouts]
        rows.append(_TableRow(method, number(own[0].seconds), row))
    return rows


def _cell(line: Line | None) -> _Cell | None:
    if line is None or math.isnan(line.mean.value):
        return None
    # The reference has no side to miss to, and one seed has no interval to miss by.
    known = line.method != RETRAINED and math.isfinite(line.difference.low)
    mark, tone = MARKS[line.miss if known else ""]
    low, high = line.mean.low, line.mean.high
    interval = f"{number(low)} to {number(high)}" if math.isfinite(low) else ""
    return _Cell(("> " if line.censored else "") + number(line.mean.value), interval, mark, tone)


def _costs(costs: Sequence[Cost]) -> list[dict[str, str]]:
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


def _request_line(report: AuditReport) -> str:
    asked = report.request.get("asked for", "a request to forget")
    count = report.request.get("rows to forget")
    return f"{asked}" if count is None else f"{asked} — {count} rows to forget with {report.method}"
