"""`spotless precompute`: keep what later requests need, so that they can do without the retained rows."""

from contextlib import nullcontext
from typing import Annotated

import typer

from spotlessnet.cli.common import AsJson, Asked, Console, Debug, Quiet, takes_case
from spotlessnet.core.errors import NeedError, check_choice
from spotlessnet.core.progress import quiet as no_bars
from spotlessnet.core.row_keys import SALT
from spotlessnet.requests.case import inputs_of
from spotlessnet.requests.folder import Folder
from spotlessnet.requests.loading import open_case
from spotlessnet.requests.serving import STATISTICS

FOLD_MODELS = "fold-models.safetensors"

Rank = Annotated[int, typer.Option("--rank", help="Directions of curvature to keep; 0 keeps none.", min=0)]
Parts = Annotated[
    int, typer.Option("--folds", help="Train this many fold models too, each without one part of the rows.", min=0)
]
Divisions = Annotated[
    int,
    typer.Option("--repeats", help="Divide the rows into parts so many times anew: more fold models, surer.", min=1),
]
Diagonal = Annotated[str, typer.Option("--diagonal", help="exact, monte carlo, empirical or none.")]


@takes_case
def precompute(
    asked: Asked,
    rank: Rank = 200,
    diagonal: Diagonal = "monte carlo",
    folds: Parts = 0,
    repeats: Divisions = 1,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Precompute statistics of a trained network: sums over its data and keyed digests of its rows, no row itself.

    [bold]spotless precompute --model nets.py:build --weights model.safetensors --data mydata.py:train
    --out kept/[/bold]

    Your own modules are imported, so their code runs.
    """
    from spotlessnet.precomputed.fold_model_files import write_fold_models
    from spotlessnet.precomputed.fold_models import begin_fold_models, train_fold_models
    from spotlessnet.precomputed.precompute import precompute as write_down
    from spotlessnet.precomputed.statistics_files import write_statistics

    if repeats > 1 and not folds:
        raise NeedError("--repeats divides the rows among fold models, but none are trained. Give --folds 2 as well.")
    check_choice("diagonal", diagonal, ("exact", "monte carlo", "empirical", "none"))
    console = Console(json, quiet)
    case = asked.case
    with no_bars() if quiet or json else nullcontext():
        if not asked.dry_run:
            case.need("out")
        opened = open_case(case, needs_forget=False)
        data, P = opened.split.retain, opened.trained.size
        size = (min(rank, P) + 3) * P * opened.trained.weights.element_size()
        plan = (
            f"precompute statistics of {len(data)} rows of a network with {P} weights in about {size / 2**20:.3g} MiB"
        )
        if folds:
            begin_fold_models(opened.trained, data, folds)  # before the statistics, which take long
            plan += f", and train {folds * repeats} fold models: as long as {(folds - 1) * repeats} trainings"
        console.say(plan)
        if asked.dry_run:
            console.give({"status": "planned", "bytes": size}, [plan])
            return 0
        assert case.out is not None
        folder = Folder(case.out, asked.resume, case.private_days)
        folder.check(inputs_of(case))
        kind = None if diagonal == "none" else diagonal
        with folder.claimed():
            # Keys under a published salt can be tested by anybody, so it is one only where all else is published too.
            salt = None if case.seed is None else case.seed.to_bytes(SALT, "big", signed=True)
            statistics = write_down(opened.trained, data, rank=rank, diagonal=kind, seed=case.seed or 0, salt=salt)  # type: ignore[arg-type]  # checked above
            digest = write_statistics(case.out / STATISTICS, statistics, replace=asked.resume)
            told = {"status": "done", "statistics": case.out / STATISTICS, "sha256": digest}
            if folds:
                seed, held = case.seed or 0, opened.split.validation
                fold_models = train_fold_models(
                    opened.trained, data, folds=folds, repeats=repeats, held=held, seed=seed, salt=salt
                )
                write_fold_models(case.out / FOLD_MODELS, fold_models, replace=asked.resume)
                told["fold_models"] = case.out / FOLD_MODELS
    console.give(told, [str(told[name]) for name in ("statistics", "fold_models") if name in told])
    return 0
