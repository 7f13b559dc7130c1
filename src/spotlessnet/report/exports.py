"""The same report for other readers: a spreadsheet, a program, a model card."""

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from importlib.resources import files
from math import isnan
from typing import Any

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.summary import summarise
from spotlessnet.auditing.verdict import Check
from spotlessnet.report.number import number
from spotlessnet.report.page import in_plain_words
from spotlessnet.store.receipts import plain
from spotlessnet.store.schema import VERDICT_SCHEMA

SHOWN_ON_CARD = (" on retain", " on test")
"""Readouts of rows that stay, and of rows that nobody trained on."""


def as_csv(rows: Iterable[Row]) -> str:
    """Rows for a spreadsheet, one measurement a line."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [f.name for f in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return stream.getvalue()


def as_json_lines(rows: Iterable[Row]) -> str:
    """Rows for a program, one JSON object a line."""
    return "".join(row.to_json() + "\n" for row in rows)


def as_verdict(report: AuditReport) -> str:
    """The verdict for a program: what the receipt says of the audit, how finely it looked, and checks by name.

    `verdict.schema.json` beside this file says what it holds, in JSON Schema; `verdict_schema()` gives its text.
    """
    head, *checks = report.figures()
    told: dict[str, Any] = {"schema": VERDICT_SCHEMA, **head, "checks": {check["name"]: check for check in checks}}
    told |= {"method": report.method, "header": {name: str(value) for name, value in report.header.items()}}
    if report.verdict is not None:
        told |= {key: getattr(report.verdict, key) for key in ("oracle", "power")}
        told["resolution"] = float(f"{report.verdict.resolution:.2g}")
    return json.dumps(plain(told), indent=2, sort_keys=True, allow_nan=False) + "\n"


def verdict_schema() -> str:
    """JSON Schema of `verdict.json`, as text."""
    return files("spotlessnet.report").joinpath("verdict.schema.json").read_text(encoding="utf-8")


def as_model_card(report: AuditReport, receipt_digest: str = "") -> str:
    """A section for a model card: what was forgotten, how, and what was measured. Names no id.

    Of the forgotten rows it has the verdict's checks alone, with two digits: their losses and margins would tell which
    rows they were, and a card outlasts the purge.
    """
    lines = [line for line in summarise(report.rows) if line.readout.endswith(SHOWN_ON_CARD)]
    readouts = list(dict.fromkeys(line.readout for line in lines))
    cells = {(line.method, line.readout): line for line in lines}
    head = "| method | " + " | ".join(readouts) + " |"
    table = [head, "|---" * (len(readouts) + 1) + "|"]
    for method in dict.fromkeys(line.method for line in lines):
        found = [cells.get((method, readout)) for readout in readouts]
        texts = ["–" if line is None else _with_interval(line.mean.value, *line.limits) for line in found]
        table.append(f"| {method} | " + " | ".join(texts) + " |")
    parts = [
        "## Forgetting",
        f"**{report.outcome.capitalize()}.** {in_plain_words(report)}",
        f"Method: {report.method}. Rows forgotten: {report.request.get('rows to forget', '?')}.",
        *(["\n".join(table)] if lines else []),
        *(["Checks:\n" + "\n".join(map(_check, report.checks))] if report.checks else []),
        "Limits:\n" + "\n".join(f"- {limit}" for limit in report.limits),
    ]
    if receipt_digest:
        parts.append(f"Receipt: sha256:{receipt_digest}")
    return "\n\n".join(parts) + "\n"


def _check(check: Check) -> str:
    told = check.record()
    found = _with_interval(told["value"], told["low"], told["high"])
    limit = "" if isnan(told["margin"]) else f", may be {number(told['margin'])}"
    return f"- {check.name}: {check.state}, {found}{limit}"


def _with_interval(value: float, low: float, high: float) -> str:
    interval = "" if number(low) in ("–", "−∞") else f" [{number(low)}, {number(high)}]"
    return number(value) + interval
