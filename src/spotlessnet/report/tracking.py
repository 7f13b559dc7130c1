"""Verdict and report in an experiment tracker: MLflow (extra `mlflow`) or Weights & Biases (extra `wandb`).

Both are given the same: the verdict and who it is about as tags, figures of the checks as metrics, and the page with
`verdict.json` as files. No id and no row goes there; nothing is sent that the report does not show.
"""

import math
import tempfile
from pathlib import Path
from typing import Any

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.core.errors import NeedError
from spotlessnet.report.exports import as_model_card, as_verdict
from spotlessnet.report.page import page

PREFIX = "unlearning"


def log_to_mlflow(report: AuditReport) -> None:
    """Log a report to the active MLflow run, or to a new one, at the tracking URI that is set."""
    mlflow = _needed("mlflow")
    for name, value in tags_of(report).items():
        mlflow.set_tag(f"{PREFIX}.{name}", value)
    mlflow.log_metrics({f"{PREFIX}/{name}": value for name, value in metrics_of(report).items()})
    for name, text in files_of(report).items():
        mlflow.log_text(text, f"{PREFIX}/{name}")


def log_to_wandb(report: AuditReport) -> None:
    """Log a report to the active run of Weights & Biases (`wandb.init(mode="offline")` serves too)."""
    wandb = _needed("wandb")
    run = wandb.run
    if run is None:
        raise NeedError("A run of Weights & Biases must be active, but none is. Call `wandb.init(...)` first.")
    for name, value in {**tags_of(report), **metrics_of(report)}.items():
        run.summary[f"{PREFIX}/{name}"] = value
    run.log({f"{PREFIX}/report": wandb.Html(page(report), inject=False)})
    artifact = wandb.Artifact(f"{PREFIX}-report", type="report")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files_of(report).items():
            path = Path(folder) / name
            path.write_text(text, encoding="utf-8")
            artifact.add_file(str(path))
        run.log_artifact(artifact)


def tags_of(report: AuditReport) -> dict[str, str]:
    """The verdict, why, by which method, and what the report is about."""
    told = {"verdict": report.outcome, "reason": report.reason, "method": report.method}
    return told | {name: str(value) for name, value in report.header.items()}


def metrics_of(report: AuditReport) -> dict[str, float]:
    """Each check's difference from retrained networks and what it may be, where they are finite."""
    found: dict[str, float] = {}
    for check in report.checks:
        name = check.name.replace(",", "")
        found |= {name: check.value, f"{name} allowed": check.margin}
    if report.verdict is not None:
        found["resolution"] = report.verdict.resolution
    return {name: value for name, value in found.items() if math.isfinite(value)}


def files_of(report: AuditReport) -> dict[str, str]:
    """The page, the verdict for programs, and the section for a model card."""
    return {"report.html": page(report), "verdict.json": as_verdict(report), "model-card.md": as_model_card(report)}


def _needed(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as e:
        raise NeedError(
            f"Logging there needs {name}, which is not installed: `pip install spotlessnet[{name}]`."
        ) from e
