"""`spotless audit`: measure what a method leaves behind, beside retraining, and say so in one word."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.auditing.other_recipe import OTHER_RECIPE
from spotlessnet.cli.common import AsJson, Asked, Console, Debug, Quiet, takes_case
from spotlessnet.cli.scrubbing import (
    EXIT_CODES,
    BankFolder,
    Keep,
    References,
    Seeds,
    Sequential,
    Strong,
    Workers,
    planned,
    verdict_lines,
)
from spotlessnet.core.errors import SettingError
from spotlessnet.core.progress import quiet as no_bars
from spotlessnet.requests.audits import Audit, audit_case, usual_fields, write_audit
from spotlessnet.requests.case import as_flag, inputs_of
from spotlessnet.requests.folder import Folder
from spotlessnet.requests.forgettable import audit_fits
from spotlessnet.requests.planning import plan_of

Forgettable = Annotated[
    bool,
    typer.Option("--forgettable", help="Audit a forgettable model; --model is its backbone."),
]
Features = Annotated[
    str | None, typer.Option("--features", help="Of a forgettable model: pooled (unless said), tangent or linearised.")
]
Ridge = Annotated[str | None, typer.Option("--ridge", help="Of a forgettable model: a share, or loo (unless said).")]

OF_FORGETTABLE = {
    "model",
    "core",
    "data",
    "test",
    "forget",
    "id_column",
    "epochs",
    "lr",
    "recipe",
    "keep_private",
    "out",
}
"""The fields of a case that say something of a forgettable model."""


@takes_case
def audit(
    asked: Asked,
    seeds: Seeds = 8,
    shadow_attack: Strong = False,
    keep_trainings: Keep = None,
    workers: Workers = "in turn",
    bank: BankFolder = None,
    references: References = 3,
    sequential: Sequential = False,
    forgettable: Forgettable = False,
    features: Features = None,
    ridge: Ridge = None,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Measure what a method leaves behind, against networks that never saw the rows.

    [bold]spotless audit --model nets.py:build --weights model.safetensors --init start.safetensors
    --data mydata.py:train --test mydata.py:test --forget forget.csv --epochs 30 --lr 0.05 --method ntk
    --out audit/[/bold]

    Ends with 0 if forgotten, or if the method never saw the rows and no trace could be expected; with 1 if not
    forgotten, 6 if that cannot be told. Without --init, --epochs and --lr no network can be retrained, and nothing is
    judged, which ends with 6 too. Your own modules are imported, so their code runs.

    [bold]spotless audit --forgettable --model nets.py:backbone --core mydata.py:core --data mydata.py:train
    --forget forget.csv --epochs 20 --lr 0.05 --out audit/[/bold]

    With --forgettable the same of what `spotless forget` does, over seeds of the training on core rows.
    """
    console = Console(json, quiet)
    case = asked.case
    if not forgettable and (features or ridge):
        raise SettingError("--features and --ridge are of a forgettable model. Give --forgettable, or leave them out.")
    with no_bars() if quiet else nullcontext():
        if forgettable:
            if shadow_attack or keep_trainings is not None or bank is not None or sequential or workers != "in turn":
                raise SettingError(
                    "--shadow-attack, --keep-trainings, --bank, --sequential and --workers are not for forgettable "
                    "models. Leave them out."
                )
            return _forgettable(asked, seeds, features or "pooled", ridge or "loo", console)
        how = Audit(seeds, shadow_attack, keep_trainings, workers, bank, references, sequential)
        if asked.dry_run:
            return planned(plan_of(case), console, audit=how)
        report, files = audit_case(case, how, resume=asked.resume, say=console.say)
    return _told(report, files, console)


def _forgettable(asked: Asked, seeds: int, features: str, ridge: str, console: Console) -> int:
    case = asked.case
    told = {name for name, value in case.given().items() if value != usual_fields().get(name)}
    strange = [as_flag(name) for name in sorted(told - OF_FORGETTABLE)]
    if strange:
        raise SettingError(f"{', '.join(strange)} says nothing of a forgettable model. Leave it out.")
    # Without training on core rows the models of all seeds are one, and chance cannot be measured.
    needed = [] if "epochs" in (case.recipe or {}) else ["epochs"]
    case.need("model", "core", "data", "forget", *needed, *([] if asked.dry_run else ["out"]))
    if asked.dry_run:
        lines: list[str] = []
        audit_fits(case, features, ridge, seeds, say=lines.append, only_plan=True)
        console.give({"status": "planned", "plan": lines}, lines)
        return 0
    assert case.out is not None
    folder = Folder(case.out, asked.resume, 90 if case.keep_private is None else case.keep_private)
    folder.check(inputs_of(case))
    report = audit_fits(case, features, ridge, seeds, say=console.say)
    assert report is not None
    with folder.claimed():
        files = write_audit(folder, report)
    return _told(report, files, console)


def _told(report: AuditReport, files: list[Path], console: Console) -> int:
    figures = {"verdict": report.outcome, "reason": report.reason, "next": report.next_step}
    for limit in report.limits:
        if limit.startswith(OTHER_RECIPE):
            console.say(f"limit   {limit}")
    told = {"status": "done", **figures, "files": files, "rows": [vars(r) for r in report.rows]}
    console.give(told, [*verdict_lines(report.outcome, report.reason, report.next_step), *map(str, files)])
    return EXIT_CODES.get(report.outcome, 6)
