"""`spotless replay`: do a request again, and compare the network that comes out."""

from pathlib import Path
from typing import Annotated

import typer

from spotlessnet.cli.common import AsJson, Console, Debug, Quiet

Receipt = Annotated[Path, typer.Argument(help="receipt.json, or the folder that holds it.")]


def replay(path: Receipt, json: AsJson = False, quiet: Quiet = False, debug: Debug = False) -> int:
    """Scrub or retrain again as a receipt says, and compare digests; ends with 0 if the network is the same.

    [bold]spotless replay run/[/bold]

    It ends with 7 if another network comes out or an input is not the one that the receipt names, and with 6 where
    nobody can tell: secret noise cannot be drawn again, statistics and fold models serve one request, other versions or
    threads give other bits. Nothing is written. Code that the request names is run. The folder `private` must still be
    there, and the data with the forgotten rows.
    """
    # Late, so that the list of commands does not wait for it.
    from spotlessnet.core.errors import IntegrityError
    from spotlessnet.requests.replaying import OTHER, SAME
    from spotlessnet.requests.replaying import replay as again

    console = Console(json, quiet)
    found = again(path, console.say)
    values = {"status": found.outcome, "reason": found.reason, "receipt": found.told, "network": found.found}
    console.give(values, [f"{found.outcome}: {found.reason}"])
    if found.outcome == OTHER:
        raise IntegrityError(f"{found.reason}: the receipt says {found.told}, but {found.found} came out.")
    return 0 if found.outcome == SAME else 6
