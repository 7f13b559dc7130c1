"""`spotless purge`: destroy what could still open a receipt's commitments, once it is due."""

from pathlib import Path
from typing import Annotated

import typer

from spotlessnet.cli.common import AsJson, Console, Debug, Quiet

Folders = Annotated[list[Path], typer.Argument(help="Folders that requests wrote, or of --keep-trainings.")]
Now = Annotated[bool, typer.Option("--now", help="Destroy it today, whenever it is due.")]


def purge(folders: Folders, now: Now = False, json: AsJson = False, quiet: Quiet = False, debug: Debug = False) -> int:
    """Destroy the folder `private` of requests once its date has come, and an audit's report and rows beside it.

    [bold]spotless purge run/[/bold]

    It holds the salt that opens a receipt's commitments: afterwards nobody can check the receipt against a list, nor
    check its seal. Receipt, verdict, model card and network stay. Files are overwritten once and unlinked; copies
    elsewhere are not reached.
    A folder of --keep-trainings is destroyed at once; where a request's audit kept networks, that is said.
    A recorded training (`sn.record`) is destroyed once it has served a request, which wrote the next one; one that a
    request wrote goes with its `private`, network included. So do statistics and fold models in a folder of
    `spotless precompute`, or of a request, once another was served from them.
    """
    # Late, so that the list of commands does not wait for it.
    from spotlessnet.requests.purging import purge_request

    found = [purge_request(folder, at_once=now) for folder in folders]
    told = {"status": "done", "folders": [one.record() for one in found]}
    Console(json, quiet).give(told, [str(one) for one in found])
    return 0
