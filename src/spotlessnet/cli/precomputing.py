"""`spotless precompute`: keep what later requests need, so that they can do without the retained rows."""

from contextlib import nullcontext
from typing import Annotated

import typer

from spotlessnet.cli.common import AsJson, Asked, Console, Debug, Quiet, takes_case
from spotlessnet.cli.scrubbing import Keep, Workers
from spotlessnet.core.progress import quiet as no_bars
from spotlessnet.requests.precomputing import precomputation_of
from spotlessnet.training.many import Executor

Rank = Annotated[int, typer.Option("--rank", help="Directions of curvature to keep; 0 keeps none.", min=0)]
Parts = Annotated[
    int, typer.Option("--folds", help="Train this many fold models too, each without one part of the rows.", min=0)
]
Divisions = Annotated[
    int,
    typer.Option("--repeats", help="Divide the rows into parts so many times anew: more fold models, surer.", min=1),
]
Groups = Annotated[
    str | None,
    typer.Option(
        "--groups",
        help="The column that says which rows lie in one fold; --id-column where the data have it, unless said. none: "
        "every row by itself.",
    ),
]
After = Annotated[
    bool,
    typer.Option(
        "--after-requests",
        help="The network has served requests, which later ones must not take back. Seen by itself where the receipt "
        "of a request lies beside the weights.",
    ),
]
Diagonal = Annotated[str, typer.Option("--diagonal", help="exact, monte carlo, empirical or none.")]


@takes_case
def precompute(
    asked: Asked,
    rank: Rank = 200,
    diagonal: Diagonal = "monte carlo",
    folds: Parts = 0,
    repeats: Divisions = 1,
    groups: Groups = None,
    after_requests: After = False,
    keep_trainings: Keep = None,
    workers: Workers = "in turn",
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Precompute statistics of a trained network: sums over its data and keyed digests of its rows, no row itself.

    [bold]spotless precompute --model nets.py:build --weights model.safetensors --data mydata.py:train
    --out kept/[/bold]

    Your own modules are imported, so their code runs.
    """
    console = Console(json, quiet)
    executor = Executor(keep_trainings, workers, console.say)
    with no_bars() if quiet else nullcontext():
        if not asked.dry_run:
            asked.case.need("out")
        found = precomputation_of(
            asked.case,
            rank=rank,
            diagonal=diagonal,
            folds=folds,
            repeats=repeats,
            groups=groups,
            after_requests=after_requests,
            executor=executor,
        )
        if asked.dry_run:
            console.give({"status": "planned", "bytes": found.size}, [str(found)])
            return 0
        console.say(str(found))
        made = found.run(resume=asked.resume)
    told = {"status": "done", "statistics": made.statistics, "sha256": made.sha256}
    if made.fold_models is not None:
        told["fold_models"] = made.fold_models
    console.give(told, [str(path) for path in made.files])
    return 0
