"""The same report for other readers: a spreadsheet, a program, a model card."""

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from importlib.resources import files
from typing import Any

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.auditing.rows import Row
from spotlessnet.report.page import as_sentence, in_plain_words
from spotlessnet.store.receipts import plain, without_figures
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
    """The verdict for a program: what the receipt says of the audit, and checks by name; no figure, for it stays.

    `verdict.schema.json` beside this file says what it holds, in JSON Schema; `verdict_schema()` gives its text.
    """
    head, *checks = report.record()
    told: dict[str, Any] = {"schema": VERDICT_SCHEMA, **head, "checks": {check["name"]: check for check in checks}}
    told |= {"method": report.method, "header": {name: str(value) for name, value in report.header.items()}}
    if report.verdict is not None:
        told |= {key: getattr(report.verdict, key) for key in ("oracle", "power")}
    return json.dumps(plain(told), indent=2, sort_keys=True, allow_nan=False) + "\n"


def verdict_schema() -> str:
    """JSON Schema of `verdict.json`, as text."""
    return files("spotlessnet.report").joinpath("verdict.schema.json").read_text(encoding="utf-8")


def as_model_card(report: AuditReport, receipt_digest: str = "") -> str:
    """A section for a model card: what was forgotten, how, and which checks passed. Names no id and has no figure.

    A card outlasts the purge, and figures of networks that knew the rows tell of them; the report has all of them.
    """
    parts = [
        "## Forgetting",
        f"**{report.outcome.capitalize()}.** {in_plain_words(report)}",
        *([f"Why: {as_sentence(without_figures(report.reason))}"] if report.reason else []),
        f"Method: {report.method}. Rows forgotten: {report.request.get('rows to forget', '?')}.",
        *(
            ["Checks:\n" + "\n".join(f"- {check.name}: {check.state}" for check in report.checks)]
            if report.checks
            else []
        ),
        "Limits:\n" + "\n".join(f"- {limit}" for limit in report.limits),
    ]
    if receipt_digest:
        parts.append(f"Receipt: sha256:{receipt_digest}")
    return "\n\n".join(parts) + "\n"
