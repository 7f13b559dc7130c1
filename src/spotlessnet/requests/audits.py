"""The audit of a request: the method as asked for, over several trainings, and the files that tell of it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.auditing.battery import left_out
from spotlessnet.core.errors import SettingError, shown
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.scores import IN_WORDS, kind_of, scores
from spotlessnet.requests.case import Case, as_flag, inputs_of
from spotlessnet.requests.folder import Folder
from spotlessnet.requests.loading import OF_ONE_REQUEST, neutral
from spotlessnet.requests.methods import for_other_networks
from spotlessnet.requests.planning import Plan, plan_of

VERDICT = "verdict.json"
REPORT = ("report.html", "rows.jsonl", "rows.csv", "model-card.md", VERDICT)
"""The files that an audit writes; a receipt with a verdict binds them all."""

LEAST = 5
"""Pairs of trainings below which the equivalence test gives no verdict."""


@dataclass(frozen=True)
class Audit:
    """How to measure what a method leaves behind.

    **Arguments:**

    - `seeds`: pairs of trainings to look at; 5 at least, for fewer give no verdict. More are surer and take longer.
    - `shadow_attack`: also attack shadow networks that were scrubbed the same way.
    """

    seeds: int = 8
    shadow_attack: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.seeds, bool) or not isinstance(self.seeds, int) or self.seeds < LEAST:
            raise SettingError(
                f"`Audit.seeds` must be a whole number of at least {LEAST}, but got {shown(self.seeds)}. Fewer "
                "pairs of trainings give no verdict."
            )


def audit_plan(plan: Plan, settings: Audit | None = None) -> list[str]:
    """What an audit of this plan will compare, by the network's loss, as lines of the plan; tried on one row.

    Whatever cannot be read from the network is so found before any work.
    """
    trained, split = plan.opened.trained, plan.opened.split
    kind = kind_of(trained, split.forget)
    scores(trained, split.forget.select([0]))
    seeds = (settings or Audit()).seeds
    lines = [f"audit   rows are compared by {IN_WORDS[kind]}"]
    if left_out(kind):
        lines.append(f"        {left_out(kind)}")
    if not trained.can_retrain:
        return [*lines, "        no verdict: it takes init and a recipe or trainer, to train networks without the rows"]
    alone = "" if trained.trainer is None and trained.recipe is not None else ", one by one"
    lines.append(f"        {3 * seeds} trainings{alone}: {seeds} with the rows, {2 * seeds} without")
    if split.test is None:
        lines.append("        no attack and no matched controls: they need test rows, which nobody trained on")
    return lines


def audited(plan: Plan, delivered: Trained | None, settings: Audit) -> AuditReport:
    """The report on a plan, over several trainings where start and recipe are known."""
    from spotlessnet.auditing.run_audit import audit as measure

    opened = plan.opened
    return measure(
        opened.trained,
        opened.split,
        for_other_networks(plan.scrub),
        name=plan.method,
        seeds=settings.seeds,
        title="A request to forget",
        rerun_command=rerun_command(opened.case),
        shadow_attack=settings.shadow_attack,
        delivered=delivered,
    )


def audit_case(
    case: Case, settings: Audit, *, resume: bool = False, say: Callable[[str], None] = lambda line: None
) -> tuple[AuditReport, list[Path]]:
    """Audit the method of a case without delivering a network, and write the report; it and its files.

    **Arguments:**

    - `say`: called with each line of the plan.
    """
    case.need("out")
    assert case.out is not None
    folder = Folder(case.out, resume, case.private_days)
    folder.check(inputs_of(case))
    plan = plan_of(case)
    for line in [*plan.lines(), *audit_plan(plan, settings)]:
        say(line)
    with folder.claimed(), plan.within_memory():
        report = audited(plan, None, settings)
        return report, [case.out / name for name in write_report(case.out, report, replace=resume)]


def rerun_command(case: Case, command: str = "audit") -> str:
    """The command that asks for the same again, fit to be shown: no folder's name, no file's that may name a person.

    >>> from pathlib import Path
    >>> rerun_command(Case(data="home/sam/mydata.py:train", forget=Path("sam@mail.org.csv")))
    'spotless audit --data data.py:train --forget FORGET'
    """
    if case.objects:
        return "sn.unlearn(model, data, forget=..., audit=True), with the same objects"
    words = []
    for name, value in case.given().items():
        if name == "settings":
            words += [f"--set {key}={one}" for key, one in value.items()]
        elif name in OF_ONE_REQUEST:
            words.append(f"{as_flag(name)} {name.upper()}")
        elif value is True:
            words.append(as_flag(name))
        elif value != usual_fields().get(name):
            words.append(f"{as_flag(name)} {_without_names(name, value)}")
    return f"spotless {command} {' '.join(words)}"


def _without_names(name: str, value: Any) -> Any:
    """A value fit to be shown: files by what they are for, modules and data sets by their own names."""
    if name in ("weights", "init"):
        return neutral(name, Path(value))
    place, colon, inside = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if colon and place.endswith(".py"):
        return f"{neutral(name, Path(place))}:{inside}"
    if isinstance(value, str) and (value.endswith(".npz") or re.search(r"[/\\]", value)):
        return neutral(name, Path(value))
    return value


@cache
def usual_fields() -> dict[str, object]:
    """What each field of a case is when nobody says anything."""
    return {f.name: f.default for f in fields(Case)}


def write_report(folder: Path, report: AuditReport, *, replace: bool) -> dict[str, str]:
    """The report for people, the rows and the verdict for programs, the section for a model card; their SHA-256."""
    from spotlessnet.core.files import write_whole
    from spotlessnet.report.exports import as_csv, as_json_lines, as_model_card, as_verdict
    from spotlessnet.report.page import page

    texts = (page(report), as_json_lines(report.rows), as_csv(report.rows), as_model_card(report), as_verdict(report))
    return {
        name: write_whole(folder / name, text.encode(), replace=replace)
        for name, text in zip(REPORT, texts, strict=True)
    }
