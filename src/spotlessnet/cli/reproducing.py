"""`spotless reproduce`: the papers' tables and figures."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from spotlessnet.cli.common import AsJson, Console, Debug, DryRun, Quiet
from spotlessnet.core.progress import quiet as no_bars

Name = Annotated[str, typer.Argument(help="An experiment of `spotless list experiments`.")]
Full = Annotated[bool, typer.Option("--full", help="The paper's own size; a toy otherwise.")]
Tiny = Annotated[bool, typer.Option("--tiny", help="The full path on a few rows: a rehearsal.")]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Where the data sets are (SPOTLESS_DATA).")]
Out = Annotated[Path, typer.Option("--out", "-o", help="The folder for the rows; rows that stand there are kept.")]
Device = Annotated[str | None, typer.Option("--device", help="Where to work: auto, cpu or cuda.")]
Seeds = Annotated[int | None, typer.Option("--seeds", help="How many seeds; the experiment's own number unless given.")]
Seed = Annotated[list[int] | None, typer.Option("--seed", help="This seed alone; may be repeated.")]
Draw = Annotated[bool, typer.Option("--draw", help="Only draw the figures of the rows that are there.")]


def reproduce(
    name: Name,
    full: Full = False,
    tiny: Tiny = False,
    data: DataFolder = None,
    out: Out = Path("reproduced"),
    device: Device = None,
    seeds: Seeds = None,
    seed: Seed = None,
    draw: Draw = False,
    dry_run: DryRun = False,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Run one of the papers' experiments again, as a toy or in full.

    [bold]spotless reproduce NAME --out reproduced/[/bold]
    """
    from spotlessnet.cli.listing import experiments
    from spotlessnet.experiments import runner

    console = Console(json, quiet)
    experiment = runner.find(name, experiments())
    settings = runner.settings_for(
        experiment, size=runner.size_of(full, tiny), seeds=runner.seeds_of(seeds, seed), device=device
    )
    console.say(f"{name}: {settings}")
    if dry_run:
        console.give({"status": "planned", "settings": str(settings)}, [str(settings)])
        return 0
    with no_bars() if quiet else nullcontext():
        found = (
            runner.draw(experiment, out / name) if draw else runner.reproduce(experiment, settings, out / name, data)
        )
    console.give({"status": "done", "rows": [vars(row) for row in found.rows]}, [str(path) for path in found.files])
    return 0
