"""The page: a report as one HTML file that needs nothing from outside."""

import math
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.auditing.summary import RETRAINED, summarise
from spotlessnet.auditing.verdict import NEVER_SAW
from spotlessnet.core.errors import count_of
from spotlessnet.report.channels import bands, channels
from spotlessnet.report.chips import self_tests, told
from spotlessnet.report.figures import pictures
from spotlessnet.report.number import number, with_code
from spotlessnet.report.tables import columns, cost_rows, readout_rows, seconds_of

TONES = {"forgotten": "good", "not forgotten": "bad", NEVER_SAW: "good"}
SIGNS = {"forgotten": "✓", "not forgotten": "✗", "inconclusive": "?", NEVER_SAW: "✓"}


def page(report: AuditReport) -> str:
    """The whole report as text; every word from outside is escaped."""
    lines = summarise(report.rows)
    spans = bands(report.rows)
    methods = columns(lines, report.method)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    environment.filters["code"] = with_code
    template = environment.from_string(files("spotlessnet.report").joinpath("page.html").read_text(encoding="utf-8"))
    outcome = report.outcome
    return template.render(
        report=report,
        tone=TONES.get(outcome, "open"),
        word=f"{SIGNS.get(outcome, '·')} {outcome.capitalize()}",
        summary=in_plain_words(report),
        next_step=as_sentence(report.next_step),
        why=as_sentence(report.reason),
        resolution=_resolution(report),
        request_line=_request_line(report),
        header=header_of(report),
        checks=[told(check) for check in report.checks],
        self_tests=[] if report.verdict is None else self_tests(report.verdict),
        channels=channels(report.rows, lines, report.method, report.checks),
        seeds=max((line.seeds for line in lines), default=0),
        methods=methods,
        readouts=readout_rows(lines, methods, report.method, report.checks, spans),
        seconds=seconds_of(lines, methods),
        pictures=pictures(report.curves, lines, report.costs),
        costs=cost_rows(report.costs),
        cost_line=cost_in_words(report),
        assumptions=list(zip(report.assumed, report.lost, strict=True)),
    )


def header_of(report: AuditReport) -> dict[str, str]:
    """What the top of the page says the report is about: request, date, network, method, digests."""
    date = report.made.get("date")
    dated = {} if date is None else {"date": str(date)}
    return {**{name: str(value) for name, value in report.header.items()}, **dated, "method": report.method}


def in_plain_words(report: AuditReport) -> str:
    """The verdict for a reader who knows no statistics."""
    count = report.request.get("rows to forget")
    rows = "the forgotten rows" if count is None else f"the {count_of(count, 'forgotten row')}"
    if report.verdict is None:
        return (
            "There is no verdict. A verdict compares the scrubbed network with several networks that were trained "
            "without the rows, and there were none to compare with."
        )
    beginnings = {
        "forgotten": (
            f"After scrubbing, the network knows no more of {rows} than networks that never saw them, as closely as "
            "this audit can see."
        ),
        "not forgotten": (
            "The network still differs from networks that never saw the rows, by more than chance and more than is "
            "allowed. It should not be released as if it had forgotten."
        ),
        "inconclusive": "This audit can say neither that the rows are forgotten nor that they are remembered.",
        NEVER_SAW: (
            f"The new network was trained without {rows}, so it cannot remember them. The audit found no trace of "
            "them, and none could be expected."
        ),
    }
    return beginnings[report.verdict.outcome]


def _resolution(report: AuditReport) -> str:
    """How small a remainder could have been seen; of a damaged network, that it cannot be said."""
    if report.is_damaged:
        return "The checks that pass say nothing about forgetting here, for the network is damaged."
    share = math.nan if report.verdict is None else report.verdict.resolution
    if not share < 1:  # NaN too
        return "With so many, not even the whole of the original's memory of the rows would be seen."
    # Upward: "less than 3 %" is not true of 3.4 %, and nothing is less than 0 %.
    return f"With so many, at most {max(1, math.ceil(100 * share))} % of the original's memory could be left unseen."


def as_sentence(text: str) -> str:
    """Half a sentence as a whole one.

    >>> as_sentence("keep the receipt")
    'Keep the receipt.'
    """
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


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


def _request_line(report: AuditReport) -> str:
    asked = report.request.get("asked for", "a request to forget")
    count = report.request.get("rows to forget")
    return f"{asked}" if count is None else f"{asked} — {count_of(count, 'row')} to forget with {report.method}"
