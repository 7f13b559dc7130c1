"""`spotless compare`: several methods on one request, beside the original and the retrained network."""

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated

import typer

from spotlessnet.cli.common import AsJson, Asked, Console, Debug, Quiet, takes_case
from spotlessnet.core.deprecated import methods_now
from spotlessnet.core.errors import NeedError
from spotlessnet.core.progress import quiet as no_bars
from spotlessnet.core.scrub import METHODS
from spotlessnet.requests.case import inputs_of
from spotlessnet.requests.folder import Folder
from spotlessnet.requests.loading import open_case
from spotlessnet.requests.methods import named

METHOD_LIST = "ntk,newton,fisher,finetune,gradient-ascent,random-labels"

Methods = Annotated[str, typer.Option("--methods", help="Names with commas between; a + joins several into one.")]
Seeds = Annotated[int, typer.Option("--seeds", help="Trainings to look at.", min=1, max=1000)]
Workers = Annotated[int, typer.Option("--workers", help="Processes.", min=1, max=256)]


@takes_case
def compare(
    asked: Asked,
    methods: Methods = METHOD_LIST,
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
    from spotlessnet.auditing.comparison import compare as line_up
    from spotlessnet.auditing.summary import summarise
    from spotlessnet.readouts import ActivationDistance, Error, MeanLoss
    from spotlessnet.report.page import number

    console = Console(json, quiet)
    case = replace(asked.case, method=None)
    scrubs = {name.strip(): named(name, _own(case.settings or {}, name)) for name in methods_now(methods).split(",")}
    if not case.knows_history:
        raise NeedError("Comparing needs --init, --epochs and --lr, so that networks can be trained again.")
    with no_bars() if quiet or json else nullcontext():
        opened = open_case(case)
        plan = f"compare {', '.join(scrubs)} over {seeds} trainings; {opened.split.request}"
        console.say(plan)
        if asked.dry_run:
            console.give({"status": "planned", "methods": list(scrubs), "seeds": seeds}, [plan])
            return 0
        case.need("out")
        assert case.out is not None
        folder = Folder(case.out, asked.resume, case.private_days)
        folder.check(inputs_of(case))
        looks = [Error("retain"), Error("forget"), MeanLoss("forget")]
        readouts = {look.name: look for look in looks + ([Error("test")] if opened.split.test is not None else [])}
        distance = {"activation distance": lambda context: ActivationDistance(context.retrained)}
        with folder.claimed():
            rows = line_up(
                opened.trained,
                opened.split,
                scrubs=scrubs,
                readouts={**readouts, **(distance if workers == 1 else {})},
                seeds=range(seeds),
                out=case.out / "rows.jsonl",
                workers=workers,
            )
    lines = summarise(rows)
    columns = list(dict.fromkeys(line.readout for line in lines))
    cells = {(line.method, line.readout): number(line.mean.value) for line in lines}
    table = [[m, *(cells.get((m, c), "") for c in columns)] for m in dict.fromkeys(line.method for line in lines)]
    console.table(["method", *columns], table)
    # A method that broke down shows as a dash, or only as fewer seeds: both must be said.
    for method, why in dict.fromkeys((row.method, row.note) for row in rows if math.isnan(row.value)):
        broken = {row.seed for row in rows if (row.method, row.note) == (method, why) and math.isnan(row.value)}
        console.say(f"{method}: {len(broken)} of {seeds} trainings gave {why}")
    console.give({"status": "done", "rows": [vars(row) for row in rows]}, [str(case.out / "rows.jsonl")])
    return 0


def _own(settings: object, name: str) -> dict[str, object]:
    """The settings that are for one of the methods; they must say which: `ntk.damping=0.1`."""
    assert isinstance(settings, dict)
    strange = [key for key in settings if key.rpartition(".")[0] not in METHODS]
    if strange:
        raise NeedError(f"Comparing needs settings that say for which method, such as ntk.{strange[0]}=...")
    parts = [part.strip() for part in name.split("+")]
    return {key: value for key, value in settings.items() if key.rpartition(".")[0] in parts}
