"""The audit of a request: the method as asked for, over several trainings, and the files that tell of it."""

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any

from spotlessnet.auditing.asking import EPOCHS, RETAINED
from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.auditing.bank import Bank
from spotlessnet.auditing.bank_test import NEEDS_CONTROLS
from spotlessnet.auditing.battery import EXPERIMENT, RELEARN_CAP, left_out
from spotlessnet.auditing.looks import LOOKS
from spotlessnet.auditing.wording import PASSED
from spotlessnet.core.errors import NeedError, SettingError, seconds_in_words, shown
from spotlessnet.core.progress import working
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.scores import IN_WORDS, kind_of, scores
from spotlessnet.requests.case import Case, as_flag, inputs_of
from spotlessnet.requests.folder import PRETRAINED, SCRUBBED, TELLING, Folder
from spotlessnet.requests.loading import need_inputs
from spotlessnet.requests.methods import for_other_networks
from spotlessnet.requests.planning import Plan, check_words, plan_of
from spotlessnet.requests.recorded import fields_of
from spotlessnet.store.receipts import OF_ONE_REQUEST, neutral
from spotlessnet.training.many import Executor

VERDICT = "verdict.json"
REPORT = ("report.html", "rows.jsonl", "rows.csv", "model-card.md", VERDICT)
"""The files that an audit writes; a receipt with a verdict binds them all."""

SHADOWS = 64
"""Networks that the shadow attack trains and scrubs (`u_lira`)."""

WATCHED, FIGURES, RELEARN_USUAL = 2, 4, 5
"""Trainings whose way is watched; scrubs for the figures; epochs in which a network usually relearns."""

LEAST, USUAL = 5, 8
"""Pairs of trainings below which the equivalence test gives no verdict, and how many there are unless said."""

FEW_TESTS = 49
"""Test rows of which a single forgotten one can stand out at all: as one of fifty, at a level of 2 %."""


@dataclass(frozen=True)
class Audit:
    """How to measure what a method leaves behind.

    **Arguments:**

    - `seeds`: pairs of trainings to look at; 5 at least, for fewer give no verdict. More are surer and take longer.
    - `shadow_attack`: also attack shadow networks that were scrubbed the same way.
    - `keep_trainings`: a folder for each finished training, so that an interrupted audit goes on with the rest. They
      know the forgotten rows: `spotless purge` destroys them.
    - `workers`: `"ray"` trains over a Ray cluster; in turn unless said.
    - `bank`: a folder of originals that audits of one model share (`sn.Bank`); `seeds` of them are trained at the first
      request, and each request then trains `references` networks, without its rows.
    - `sequential`: where there is no verdict yet, train as many pairs again, then twice as many; with a bank more
      references, up to 16.
    """

    seeds: int = USUAL
    shadow_attack: bool = False
    keep_trainings: str | PathLike[str] | None = None
    workers: str = "in turn"
    bank: str | PathLike[str] | None = None
    references: int = 3
    sequential: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.seeds, bool) or not isinstance(self.seeds, int) or self.seeds < LEAST:
            raise SettingError(
                f"`Audit.seeds` must be a whole number of at least {LEAST}, but got {shown(self.seeds)}. Fewer "
                "pairs of trainings give no verdict."
            )
        self.executor()  # refuses what it does not know
        self.banked(follows=False)
        if self.bank is not None and self.shadow_attack:
            raise SettingError("An audit from a bank has no shadow attack. Leave out the bank or the attack.")

    def banked(self, *, follows: bool) -> Bank | None:
        """The bank, where one is given; `follows` where a network is handed out, which the next request begins at."""
        return None if self.bank is None else Bank(self.bank, self.seeds, self.references, follows, self.sequential)

    def executor(self, say: Callable[[str], None] = lambda line: None) -> Executor:
        """How the networks are trained."""
        return Executor(self.keep_trainings, self.workers, say)


def audit_plan(plan: Plan, settings: Audit | None = None) -> list[str]:
    """What an audit of this plan will compare, by the network's loss, as lines of the plan; tried on one row.

    Whatever cannot be read from the network is so found before any work.
    """
    trained, split = plan.opened.trained, plan.opened.split
    kind = kind_of(trained, split.forget)
    scores(trained, split.forget.select([0]))
    lines = [f"audit   rows are compared by {IN_WORDS[kind]}"]
    if left_out(kind):
        lines.append(f"        {left_out(kind)}")
    if not trained.can_retrain:
        return [*lines, "        no verdict: it takes init and a recipe or trainer, to train networks without the rows"]
    executor = (settings or Audit()).executor()
    executor.check(trained)
    alone = "" if trained.trainer is None and trained.recipe is not None else ", one by one"
    over = " over Ray" if executor.workers == "ray" else ""
    if settings is not None and settings.bank is not None and split.test is None:
        raise NeedError(NEEDS_CONTROLS)
    with_rows, without = _trainings(plan, settings or Audit())
    each, further = _further(settings or Audit())
    count = with_rows + without + further
    lines.append(f"        {count} trainings{alone}{over}: {with_rows} with the rows, {without} without{each}")
    if settings is not None and settings.bank is not None:
        lines.append(_of_bank(settings, with_rows))
    elif kind == "classes" and split.kept is not None and split.test is not None:
        few = min(RETAINED, len(split.kept))
        asked = 4 * (settings or Audit()).seeds
        lines.append(f"        {asked} networks are asked again after {EPOCHS} epochs on {few} retained rows")
    if executor.folder is not None:
        lines.append(f"        each finished one is kept in {executor.folder} until `spotless purge` destroys it")
    lines += _time_of_audit(plan, settings or Audit())
    return [*lines, *_hardly_told(settings or Audit(), None if split.test is None else len(split.test))]


def _hardly_told(settings: Audit, tests: int | None) -> list[str]:
    """What makes it likely that the audit will be inconclusive, said before anything is trained."""
    lines = []
    if settings.bank is None and settings.seeds < USUAL:
        lines.append(
            f"        {settings.seeds} pairs of trainings are inconclusive more often than {USUAL}, the default"
        )
    if tests is None:
        lines.append("        no attack and no matched controls: they need test rows, which nobody trained on")
    elif tests < FEW_TESTS:
        few = f"{tests} test row{'s are' if tests > 1 else ' is'} too few to tell of a single forgotten one"
        lines.append(f"        {few}: likely inconclusive; give at least {FEW_TESTS}, better 200")
    return lines


def _trainings(plan: Plan, settings: Audit) -> tuple[int, int]:
    """Networks that an audit trains with the rows and without."""
    bank = settings.banked(follows=False)
    if bank is None:
        return settings.seeds, 2 * settings.seeds
    is_there = bank.holds(plan.opened.trained, plan.opened.split)
    return 0 if is_there else settings.seeds, settings.references


def _further(settings: Audit) -> tuple[str, int]:
    """Trainings beyond those that are compared, in words and as a number."""
    if settings.bank is not None:
        return "", 0
    shadows = f", {SHADOWS} shadows" if settings.shadow_attack else ""
    again = f"; up to {3 * _more_pairs(settings)} more where it is not clear" if settings.sequential else ""
    return f", {WATCHED} watched{shadows}{again}", WATCHED + (SHADOWS if settings.shadow_attack else 0)


def _more_pairs(settings: Audit) -> int:
    """Pairs that a sequential audit may train beyond its first ones, twice as many of all for each look."""
    return settings.seeds * (2 ** (LOOKS - 1) - 1)


def _of_bank(settings: Audit, trained: int) -> str:
    where = f"the bank in {settings.bank}"
    more = "; up to 16 without them where it is not clear" if settings.sequential else ""
    if trained:
        none = "has no networks of these rows, recipe and code"
        return f"        {where} {none}: {trained} are trained, and serve later requests{more}"
    return f"        {where} has the networks with the rows{more}"


def audit_seconds(plan: Plan, settings: Audit) -> tuple[float, float]:
    """Seconds that the audit of a plan takes as a rule and at most; NaN where nobody knows what a training takes.

    Each pair is trained and scrubbed, and its networks relearn; one pair is trained once more to be watched, and the
    method is tried a few times for the figures.
    """
    cost, seeds = plan.cost, settings.seeds
    shadows = SHADOWS if settings.shadow_attack else 0
    with_bank = settings.bank is not None
    watched, figures, relearners = (0, 0, 0) if with_bank else (WATCHED, FIGURES, 3 * seeds)
    trainings = (sum(_trainings(plan, settings)) + watched + shadows) * cost.retraining
    scrubs, relearnt = seeds + figures + shadows, relearners * cost.epoch
    again = 0.0 if with_bank else _asked_again(plan, seeds)
    usual = trainings + again + scrubs * cost.seconds + RELEARN_USUAL * relearnt
    most = trainings + again + scrubs * cost.at_most + RELEARN_CAP * relearnt
    if settings.sequential and not with_bank:
        more = _more_pairs(settings)
        pairs = 3 * more * (cost.retraining + RELEARN_CAP * cost.epoch)
        # Every look looks at all networks that there are by then.
        most += pairs + more * cost.at_most + (2**LOOKS - 2) * again
    return usual, most


def _asked_again(plan: Plan, seeds: int) -> float:
    """Seconds: originals, scrubbed ones and both groups of retrained ones are trained a little further."""
    kept = plan.opened.split.kept
    if kept is None:
        return 0.0
    return 4 * seeds * EPOCHS * plan.cost.epoch * min(1.0, RETAINED / max(1, len(kept)))


def _time_of_audit(plan: Plan, settings: Audit) -> list[str]:
    usual, most = audit_seconds(plan, settings)
    if not isfinite(usual):
        return ["        time not known: nobody has counted what one training or the method takes"]
    both = seconds_in_words(usual + plan.cost.seconds), seconds_in_words(most + plan.cost.at_most)
    beside = "beside looking at the networks, the figures and the report"
    # A trainer of somebody else sets up, logs and evaluates: on small data that takes longer than its steps.
    own = f"; in plain steps, and {plan.cost.by} may do far more" if plan.cost.by else ""
    return [
        f"        about {seconds_in_words(usual)}, at most {seconds_in_words(most)}, {beside}{own}",
        f"total   about {both[0]}, at most {both[1]}, beside reading and writing and what is named above{own}",
    ]


def audited(
    plan: Plan, delivered: Trained | None, settings: Audit, say: Callable[[str], None] = lambda line: None
) -> AuditReport:
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
        executor=settings.executor(say),
        bank=settings.banked(follows=delivered is not None),
        sequential=settings.sequential,
        traced=True,
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
    need_inputs(case, "forget")
    check_words(case)
    folder.check(inputs_of(case))
    plan = plan_of(case)
    for line in [*plan.lines(), *audit_plan(plan, settings)]:
        say(line)
    with folder.claimed(), plan.within_memory():
        if settings.keep_trainings is not None:
            folder.private.keep_trainings(Path(settings.keep_trainings))
        report = audited(plan, None, settings, say)
        note_bank(folder, settings, report, follows=False)
        return report, write_audit(folder, report)


def note_bank(folder: Folder, settings: Audit, report: AuditReport, *, follows: bool) -> None:
    """Note where a bank still knows the rows, so that whoever purges the request is told of it."""
    if settings.bank is not None and settings.keep_trainings is None and not (follows and report.outcome in PASSED):
        folder.private.keep_trainings(Path(settings.bank))


def with_header(report: AuditReport, known: Mapping[str, Any], subjects: Mapping[str, str]) -> AuditReport:
    """The report with what ties it to its request: the receipt's id of the request, and digests of both networks.

    **Arguments:**

    - `known`: what the receipt says of the request and of its inputs.
    - `subjects`: SHA-256 of what the request wrote, by name.
    """
    given = known["inputs"].get("weights", {})
    digest = given.get("digest", {}).get("sha256")
    original = f"SHA-256 {digest}" if digest else f"commitment {given.get('commitment', 'unknown')}"
    networks = {
        f"new network, {name}": f"SHA-256 {subjects[name]}" for name in (SCRUBBED, PRETRAINED) if name in subjects
    }
    header = {"request": known["identity"], **report.header, "original network": original, **networks}
    return replace(report, header=header)


def rerun_command(case: Case, command: str = "audit") -> str:
    """The command that asks for the same again, fit to be shown: no folder's name, no file's that may name a person.

    >>> from pathlib import Path
    >>> rerun_command(Case(data="home/sam/mydata.py:train", forget=Path("sam@mail.org.csv")))
    'spotless audit --data data.py:train --forget FORGET'
    """
    if case.objects:
        return "sn.unlearn(model, data, forget=..., audit=True), with the same objects"
    words = []
    said = case.given()
    if case.training is not None:
        # What the record says need not be said again.
        known = fields_of(case.training, {"accept_changes": True})
        said = {name: value for name, value in said.items() if str(value) != str(known.get(name))}
    for name, value in said.items():
        if name in ("settings", "recipe"):
            words += [f"{as_flag(name)} {key}={_without_names(key, one)}" for key, one in value.items()]
        elif name in OF_ONE_REQUEST:
            words.append(f"{as_flag(name)} {name.upper()}")
        elif value is True:
            words.append(as_flag(name))
        elif value != usual_fields().get(name):
            words.append(f"{as_flag(name)} {_without_names(name, value)}")
    return f"spotless {command} {' '.join(words)}"


def _without_names(name: str, value: Any) -> Any:
    """A value fit to be shown: files by what they are for, modules and data sets by their own names."""
    if name in ("training", "weights", "init"):
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


def write_audit(folder: Folder, report: AuditReport) -> list[Path]:
    """The files of an audit that stands alone, its checks with all digits in `private`; gives those beside it."""
    folder.private.keep_diagnostics({"audit": report.figures()}, VERDICT)
    return [folder.path / name for name in write_report(folder.path, report, replace=folder.again)]


def write_report(folder: Path, report: AuditReport, *, replace: bool) -> dict[str, str]:
    """The report for people, the rows and the verdict for programs, the section for a model card; their SHA-256."""
    from spotlessnet.core.files import write_whole

    with working("writing the report"):
        texts = _texts(report)
    return {
        name: write_whole(folder / name, text.encode(), replace=replace, shared=name not in TELLING)
        for name, text in zip(REPORT, texts, strict=True)
    }


def _texts(report: AuditReport) -> tuple[str, ...]:
    from spotlessnet.report.exports import as_csv, as_json_lines, as_model_card, as_verdict
    from spotlessnet.report.page import page

    # A name that nobody can guess: digests of these files outlast them, and would confirm a guess at their figures.
    audit = f"{EXPERIMENT} {secrets.token_hex(16)}"
    rows = [replace(row, experiment=audit) for row in report.rows]
    return page(report), as_json_lines(rows), as_csv(rows), as_model_card(report), as_verdict(report)
