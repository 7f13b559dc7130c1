"""The same report for other readers: a spreadsheet, a program, a model card."""

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.summary import summarise
from spotlessnet.report.page import in_plain_words, number
from spotlessnet.store.receipts import plain
from spotlessnet.store.schema import VERDICT_SCHEMA


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
    """The verdict for a program: what the receipt says of the audit, how finely it looked, and checks by name."""
    head, *checks = report.figures()
    told: dict[str, Any] = {"schema": VERDICT_SCHEMA, **head, "checks": {check["name"]: check for check in checks}}
    if report.verdict is not None:
        told |= {key: getattr(report.verdict, key) for key in ("resolution", "oracle", "power")}
    return json.dumps(plain(told), indent=2, sort_keys=True, allow_nan=False) + "\n"


def as_model_card(report: AuditReport, receipt_digest: str = "") -> str:
    """A section for a model card: what was forgotten, how, and what was measured. Names no id."""
    lines = summarise(report.rows)
    readouts = list(dict.fromkeys(line.readout for line in lines))
    cells = {(line.method, line.readout): line for line in lines}
    head = "| method | " + " | ".join(readouts) + " |"
    table = [head, "|---" * (len(readouts) + 1) + "|"]
    for method in dict.fromkeys(line.method for line in lines):
        found = [cells.get((method, readout)) for readout in readouts]
        texts = [
            "–" if line is None else _with_interval(line.mean.value, line.mean.low, line.mean.high) for line in found
        ]
        table.append(f"| {method} | " + " | ".join(texts) + " |")
    parts = [
        "## Forgetting",
        f"**{report.outcome.capitalize()}.** {in_plain_words(report)}",
        f"Method: {report.method}. Rows forgotten: {report.request.get('rows to forget', '?')}.",
        "\n".join(table),
        "Limits:\n" + "\n".join(f"- {limit}" for limit in report.limits),
    ]
    if receipt_digest:
        parts.append(f"Receipt: sha256:{receipt_digest}")
    return "\n\n".join(parts) + "\n"


def _with_interval(value: float, low: float, high: float) -> str:
    interval = "" if number(low) in ("–", "−∞") else f" [{number(low)}, {number(high)}]"
    return number(value) + interval
