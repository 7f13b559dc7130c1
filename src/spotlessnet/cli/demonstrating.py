"""`spotless demo`: everything once, on a small data set that comes with the installation."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from spotlessnet.cli.common import AsJson, Console, Debug, DryRun, Quiet
from spotlessnet.core.progress import quiet as no_bars

Out = Annotated[Path, typer.Option("--out", "-o", help="The folder for the report.")]
Seeds = Annotated[int, typer.Option("--seeds", help="Pairs of trainings; fewer are quicker and say less.", min=1)]


def demo(
    out: Out = Path("spotless-demo"),
    seeds: Seeds = 8,
    dry_run: DryRun = False,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Forget mislabelled digits with nine methods, audit it, and write a report: about a minute.

    [bold]spotless demo[/bold]
    """
    console = Console(json, quiet)
    page = (out / "report.html").resolve()
    console.say(f"The report will be {page}")
    if dry_run:
        console.give({"status": "planned", "report": page}, [str(page)])
        return 0
    from spotlessnet.auditing.summary import as_text, summarise
    from spotlessnet.demo import demo as run

    with no_bars() if quiet else nullcontext():
        report, path = run(out, seeds=seeds)
    word = "not judged" if report.verdict is None else f"{report.outcome}: {report.reason}"
    for line in as_text([one for one in summarise(report.rows) if one.readout.startswith("error on")]).splitlines():
        console.say(line)
    console.say(f"{report.method}: {word}")
    console.give({"status": "done", "report": path.resolve(), "verdict": word}, [str(path)])
    return 0
