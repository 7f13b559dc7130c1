"""`spotless compare`: several methods on one request, beside the original and the retrained network."""

from contextlib import nullcontext
from typing import Annotated

import typer

from spotlessnet.cli.common import AsJson, Asked, Console, Debug, Quiet, takes_case
from spotlessnet.core.errors import SettingError
from spotlessnet.core.progress import quiet as no_bars
from spotlessnet.requests.case import as_flag
from spotlessnet.requests.comparing import ROWS, USUAL, broken_down, comparison_of

Methods = Annotated[str, typer.Option("--methods", help="Names with commas between; a + joins several into one.")]
Seeds = Annotated[int, typer.Option("--seeds", help="Trainings to look at.", min=1, max=1000)]
Workers = Annotated[int, typer.Option("--workers", help="Processes.", min=1, max=256)]


@takes_case
def compare(
    asked: Asked,
    methods: Methods = USUAL,
    seeds: Seeds = 3,
    workers: Workers = 1,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Line up several methods on one request, each beside the original and the retrained network.

    [bold]spotless compare --model nets.py:build --weights model.safetensors --init start.safetensors
    --data mydata.py:train --test mydata.py:test --forget forget.csv --epochs 30 --lr 0.05 --methods ntk,finetune
    --out compared/[/bold]

    Your own modules are imported, so their code runs.
    """
    from spotlessnet.auditing.summary import summarise
    from spotlessnet.report.number import number

    console = Console(json, quiet)
    # A case file may be one for `scrub` too; a flag was meant for this command.
    unheard = [name for name in ("method", "max_nats", "max_error_increase") if name in asked.flags]
    if unheard:
        raise SettingError(
            f"A comparison takes no {as_flag(unheard[0])}. Name what to compare by --methods, such as "
            "--methods ntk+finetune,retrain."
        )
    with no_bars() if quiet else nullcontext():
        comparison = comparison_of(asked.case, methods, seeds=seeds)
        lines = comparison.lines()
        if asked.dry_run:
            told = {"status": "planned", "plan": lines, "methods": list(comparison.scrubs), "seeds": seeds}
            console.give(told, lines)
            return 0
        for line in lines:
            console.say(line)
        rows = comparison.run(workers=workers, resume=asked.resume)
    found = summarise(rows)
    columns = list(dict.fromkeys(line.readout for line in found))
    cells = {(line.method, line.readout): number(line.mean.value) for line in found}
    table = [[m, *(cells.get((m, c), "") for c in columns)] for m in dict.fromkeys(line.method for line in found)]
    console.table(["method", *columns], table)
    # A method that broke down shows as a dash, or only as fewer seeds: both must be said.
    for (method, why), count in broken_down(rows).items():
        console.say(f"{method}: {count} of {seeds} trainings gave {why}")
    assert asked.case.out is not None  # the rows are there
    console.give({"status": "done", "rows": [vars(row) for row in rows]}, [str(asked.case.out / ROWS)])
    return 0
