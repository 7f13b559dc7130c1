"""`spotless audit`: measure what a method leaves behind, beside retraining, and say so in one word."""

from contextlib import nullcontext

from spotlessnet.cli.common import AsJson, Asked, Console, Debug, Quiet, takes_case
from spotlessnet.cli.scrubbing import EXIT_CODES, Seeds, Strong, planned
from spotlessnet.core.progress import quiet as no_bars
from spotlessnet.requests.audits import Audit, audit_case
from spotlessnet.requests.planning import plan_of


@takes_case
def audit(
    asked: Asked,
    seeds: Seeds = 8,
    shadow_attack: Strong = False,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Measure what a method leaves behind, against networks that never saw the rows.

    [bold]spotless audit --model nets.py:build --weights model.safetensors --init start.safetensors
    --data mydata.py:train --test mydata.py:test --forget forget.csv --epochs 30 --lr 0.05 --method ntk
    --out audit/[/bold]

    Ends with 0 if forgotten, 1 if not, 6 if that cannot be told. Without --init, --epochs and --lr no network can be
    retrained, and the word is always the last. Your own modules are imported, so their code runs.
    """
    console = Console(json, quiet)
    case = asked.case
    with no_bars() if quiet or json else nullcontext():
        if asked.dry_run:
            return planned(plan_of(case), console, audit=Audit(seeds, shadow_attack))
        report, files = audit_case(case, Audit(seeds, shadow_attack), resume=asked.resume, say=console.say)
    figures = {"verdict": report.outcome, "reason": report.reason}
    told = {"status": "done", **figures, "files": files, "rows": [vars(r) for r in report.rows]}
    console.give(told, [f"{report.outcome}: {report.reason}", *map(str, files)])
    return EXIT_CODES.get(report.outcome, 6)
