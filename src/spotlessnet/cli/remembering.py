"""`spotless remember`: keep what later requests need, so that they can do without the retained rows."""

from contextlib import nullcontext
from typing import Annotated

import typer

from spotlessnet.cli.folder import Folder
from spotlessnet.cli.forgetting import MEMORY
from spotlessnet.cli.inputs import inputs_of
from spotlessnet.cli.opening import open_case
from spotlessnet.cli.options import AsJson, Debug, Quiet, Wish, takes_case
from spotlessnet.cli.talk import Talk
from spotlessnet.core.errors import NeedError, check_choice
from spotlessnet.core.progress import quiet as no_bars
from spotlessnet.core.row_keys import SALT

TUTORS = "tutors.safetensors"

Rank = Annotated[int, typer.Option("--rank", help="Directions of curvature to keep; 0 keeps none.", min=0)]
Parts = Annotated[
    int, typer.Option("--parts", help="Train this many tutors too, each without one part of the rows.", min=0)
]
Divisions = Annotated[
    int, typer.Option("--divisions", help="Divide the rows into parts so many times anew: more tutors, surer.", min=1)
]
Diagonal = Annotated[str, typer.Option("--diagonal", help="exact, monte carlo, empirical or none.")]


@takes_case
def remember(
    wish: Wish,
    rank: Rank = 200,
    diagonal: Diagonal = "monte carlo",
    parts: Parts = 0,
    divisions: Divisions = 1,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Write a memory of a trained network: sums over its data and keyed digests of its rows, no row itself.

    [bold]spotless remember --model nets.py:build --weights model.safetensors --data mydata.py:train
    --out memory/[/bold]

    Your own modules are imported, so their code runs.
    """
    from spotlessnet.operators.remember import remember as write_down
    from spotlessnet.store.memories import write_memory
    from spotlessnet.store.tutors import write_tutors
    from spotlessnet.training.tutors import begin_tutors, train_tutors

    if divisions > 1 and not parts:
        raise NeedError("--divisions divides the rows among tutors, but none are trained. Give --parts 2 as well.")
    check_choice("diagonal", diagonal, ("exact", "monte carlo", "empirical", "none"))
    talk, case = Talk(json, quiet), wish.case
    with no_bars() if quiet or json else nullcontext():
        if not wish.dry_run:
            case.need("out")
        opened = open_case(case, needs_forget=False)
        data, P = opened.split.retain, opened.trained.size
        size = (min(rank, P) + 3) * P * opened.trained.weights.element_size()
        plan = f"remember {len(data)} rows of a network with {P} weights in about {size / 2**20:.3g} MiB"
        if parts:
            begin_tutors(opened.trained, data, parts)  # before the memory, which takes long
            plan += f", and train {parts * divisions} tutors: as long as {(parts - 1) * divisions} trainings"
        talk.say(plan)
        if wish.dry_run:
            talk.give({"status": "planned", "bytes": size}, [plan])
            return 0
        assert case.out is not None
        folder = Folder(case.out, wish.resume, case.private_days)
        folder.check(inputs_of(case))
        kind = None if diagonal == "none" else diagonal
        with folder.claimed():
            # Keys under a published salt can be tested by anybody, so it is one only where all else is published too.
            salt = None if case.seed is None else case.seed.to_bytes(SALT, "big", signed=True)
            memory = write_down(opened.trained, data, rank=rank, diagonal=kind, seed=case.seed or 0, salt=salt)  # type: ignore[arg-type]  # checked above
            digest = write_memory(case.out / MEMORY, memory, replace=wish.resume)
            told = {"status": "done", "memory": case.out / MEMORY, "sha256": digest}
            if parts:
                seed, held = case.seed or 0, opened.split.validation
                tutors = train_tutors(
                    opened.trained, data, parts=parts, divisions=divisions, held=held, seed=seed, salt=salt
                )
                write_tutors(case.out / TUTORS, tutors, replace=wish.resume)
                told["tutors"] = case.out / TUTORS
    talk.give(told, [str(told[name]) for name in ("memory", "tutors") if name in told])
    return 0
