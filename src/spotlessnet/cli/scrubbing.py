"""`spotless scrub`: forget rows, and write the network with its receipt."""

from contextlib import nullcontext
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from spotlessnet.auditing.verdict import NEVER_SAW
from spotlessnet.auditing.wording import next_step
from spotlessnet.cli.common import AsJson, Asked, Console, Debug, Quiet, takes_case
from spotlessnet.core.errors import SettingError
from spotlessnet.core.progress import quiet as no_bars
from spotlessnet.requests.audits import LEAST, REPORT, Audit, audit_plan, audit_seconds
from spotlessnet.requests.folder import PRETRAINED, SCRUBBED
from spotlessnet.requests.planning import Plan, plan_of
from spotlessnet.requests.recorded import lineages_of
from spotlessnet.requests.serving import Unlearned, serve
from spotlessnet.store.receipts import LIMITS

EXIT_CODES = {"forgotten": 0, "not forgotten": 1, "inconclusive": 6, NEVER_SAW: 0}
"""What the audit's word means to a script; no word at all is inconclusive too."""

MOST = 1000
"""Pairs of trainings of an audit: whoever types more has made a mistake."""

Audited = Annotated[bool, typer.Option("--audit", help="Measure what is left, and put it in the receipt and a report.")]


def enough(seeds: int) -> int:
    """As many pairs of trainings as give a verdict, or the reason why not."""
    if not LEAST <= seeds <= MOST:
        raise SettingError(
            f"--seeds must be from {LEAST} to {MOST}, but got {seeds}: fewer than {LEAST} pairs of trainings give no "
            f"verdict. Give --seeds {LEAST} for the quickest audit; 8 are usual."
        )
    return seeds


Seeds = Annotated[int, typer.Option("--seeds", help="Pairs of trainings that an audit looks at.", callback=enough)]
Strong = Annotated[bool, typer.Option("--shadow-attack", help="Also attack shadow networks scrubbed the same way.")]

Keep = Annotated[
    Path | None,
    typer.Option(
        "--keep-trainings",
        help="Keep each finished training in this folder, so that an interrupted run goes on. They know the rows: "
        "`spotless purge` destroys them.",
        metavar="FOLDER",
    ),
]
Workers = Annotated[str, typer.Option("--workers", help="Train networks in turn, or over a cluster: ray.")]

BankFolder = Annotated[
    Path | None,
    typer.Option(
        "--bank",
        help="Originals for the audits of many requests: --seeds are trained into this folder once, then each request "
        "trains --references networks. `spotless purge` destroys it.",
        metavar="FOLDER",
    ),
]
References = Annotated[
    int, typer.Option("--references", help="With --bank: networks that each request trains without its rows.", min=2)
]

Sequential = Annotated[
    bool,
    typer.Option(
        "--sequential",
        help="Where it is not clear yet, train as many pairs again, then twice as many; with --bank more references, "
        "up to 16.",
    ),
]


@takes_case
def scrub(
    asked: Asked,
    audit: Audited = False,
    seeds: Seeds = 8,
    shadow_attack: Strong = False,
    keep_trainings: Keep = None,
    workers: Workers = "in turn",
    bank: BankFolder = None,
    references: References = 3,
    sequential: Sequential = False,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Forget some rows of a trained network, and write the new weights with a receipt.

    [bold]spotless scrub --model mypackage.nets:build --weights model.safetensors --data mydata.py:train
    --forget forget.csv --init start.safetensors --epochs 30 --lr 0.01 --out run/[/bold]

    [bold]spotless scrub --case case.toml --dry-run[/bold]

    --model, --data and --loss may name modules of your own: they are imported, so their code runs, also when a case
    file names them. Nothing in a checkpoint, a list or an archive is ever run. Inputs are never overwritten.
    A network that answers rows which stay more than five points worse is not written: see --max-damage.
    The folder `private` in --out is for you alone: with it the receipt can be checked against your list.
    """
    console = Console(json, quiet)
    how = Audit(seeds, shadow_attack, keep_trainings, workers, bank, references, sequential) if audit else None
    if how is None and (keep_trainings is not None or bank is not None or sequential or workers != "in turn"):
        raise SettingError(
            "--keep-trainings, --bank, --sequential and --workers are for the networks of an audit. Give --audit "
            "as well."
        )
    with no_bars() if quiet else nullcontext():
        if asked.dry_run:
            lineages_of(asked.case)  # a record that served a request is refused here too
            return planned(plan_of(asked.case), console, audit=how)
        asked.case.need("out", "model", "weights", "data", "forget")
        served = serve(asked.case, resume=asked.resume, audit=how, say=console.say)
    return _told(served, console, audited=audit)


def planned(plan: Plan, console: Console, *, audit: Audit | None = None) -> int:
    """Print a plan, and what an audit would compare where one is asked for; nothing was written."""
    times = {"seconds": plan.cost.seconds, "at_most": plan.cost.at_most, "retraining": plan.cost.retraining}
    bytes_ = {"memory": plan.cost.memory, "available": plan.cost.available}
    lines = [*plan.lines(), *([] if audit is None else audit_plan(plan, audit))]
    if audit is not None:
        usual, most = audit_seconds(plan, audit)
        times |= {"audit_seconds": usual, "audit_at_most": most}
    cost = {name: value if isfinite(value) else None for name, value in times.items()}
    console.give({"status": "planned", "plan": lines, **cost, **bytes_}, lines)
    return 0


def verdict_lines(word: str, reason: str, step: str) -> list[str]:
    """The verdict, why, and what to do now."""
    return [f"{word}: {reason}", f"next: {step}"]


def _told(served: Unlearned, console: Console, *, audited: bool) -> int:
    assert served.folder is not None  # --out was needed
    receipt = served.receipt["predicate"]
    about = served.diagnostics
    # With figures while `private` has them; the receipt says it in words.
    audit = about.get("audit", receipt["audit"])
    verdict = next((figure for figure in audit if "verdict" in figure), None)
    if served.again:
        console.say("This request was served before; nothing was changed.")
    if "nats" in about and served.exact is not None:
        # The price of the budget must not hide in the receipt, nor that it was only estimated.
        low, high = about.get("nats_range", [about["nats"]] * 2)
        guess = "" if low == high else f" (by an estimate: in trials it was up to {high:.2g})"
        level = f", {about['level_nats']:.2g} of them told by the level of noise" if "level_nats" in about else ""
        left = about.get("nats_counted", about["nats"])
        console.say(f"result  {left:.3g} nats are left{level}{guess}; the error rises by {about['error_increase']:.1%}")
    if not about.get("utility", {}).get("measured", [None]):
        console.say("utility was not measured: there is no row that stays to look at")
    for one in about.get("utility", {}).get("measured", []) if served.exact is not None else []:
        console.say(
            f"utility {one['kind']} on {one['rows']} {one['on']} {one['before']:.3g} before, {one['after']:.3g} now"
        )
    for limit in [*about["limits"], *LIMITS] if "limits" in about else receipt["limits"]:
        console.say(f"limit   {limit}")
    told = {
        "status": "already done" if served.again else "done",
        "out": served.folder,
        "network": served.folder / SCRUBBED,
        "receipt": served.receipt,
    }
    lines = [str(served.folder / SCRUBBED), str(served.folder / "receipt.json")]
    if (served.folder / PRETRAINED).is_dir():
        told["pretrained"] = served.folder / PRETRAINED
        lines.insert(1, str(served.folder / PRETRAINED))
    if verdict is None:
        console.give(told, lines)
        return 6 if audited else 0
    word = verdict["verdict"]
    reason = verdict.get("reason", "")
    page = served.folder / REPORT[0]
    step = next_step(word, {check["name"]: check["state"] for check in audit if "name" in check})
    told |= {"verdict": word, "reason": reason, "next": step, "report": page}
    console.give(told, [*verdict_lines(word, reason, step), *lines, str(page)])
    return EXIT_CODES.get(word, 6)
