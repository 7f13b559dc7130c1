"""`spotless reproduce`: the papers' tables and figures."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from spotlessnet.cli.console import Console
from spotlessnet.cli.options import AsJson, Debug, DryRun, Quiet
from spotlessnet.core.errors import SettingError
from spotlessnet.core.progress import quiet as no_bars

Name = Annotated[str, typer.Argument(help="An experiment of `spotless list experiments`.")]
Full = Annotated[bool, typer.Option("--full", help="The paper's own size; a toy otherwise.")]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Where the data sets are (SPOTLESS_DATA).")]
Out = Annotated[Path, typer.Option("--out", "-o", help="The folder for the rows; rows that stand there are kept.")]


def reproduce(
    name: Name,
    full: Full = False,
    data: DataFolder = None,
    out: Out = Path("reproduced"),
    dry_run: DryRun = False,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Run one of the papers' experiments again, as a toy or in full.

    [bold]spotless reproduce NAME --out reproduced/[/bold]
    """
    import difflib

    from spotlessnet.cli.listing import experiments
    from spotlessnet.core.files import write_whole
    from spotlessnet.report.exports import as_csv

    console, known = Console(json, quiet), experiments()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known are {', '.join(known) or 'none yet'}."
        raise SettingError(f"There is no experiment {name[:40]!r}. {hint}")
    experiment = known[name]
    settings = experiment.full() if full else experiment.toy()
    console.say(f"{name}: {settings}")
    if dry_run:
        console.give({"status": "planned", "settings": str(settings)}, [str(settings)])
        return 0
    place = out / name
    with no_bars() if quiet or json else nullcontext():
        rows = experiment.run(settings, place, data)
        pictures = experiment.draw(place)
    write_whole(place / "rows.csv", as_csv(rows).encode(), replace=True)
    console.give(
        {"status": "done", "rows": [vars(row) for row in rows]}, [str(path) for path in (place / "rows.csv", *pictures)]
    )
    return 0
