"""`spotless verify`: check everything that a receipt says against what lies beside it."""

from pathlib import Path
from typing import Annotated

import typer

from spotlessnet.cli.common import AsJson, Console, Debug, Quiet

Receipt = Annotated[Path, typer.Argument(help="receipt.json, or the folder that holds it.")]
List = Annotated[Path | None, typer.Option("--forget", help="Also check that this list is the one it was written for.")]
Column = Annotated[str, typer.Option("--id-column", help="The list's column that holds the ids.")]


def verify(
    path: Receipt,
    forget: List = None,
    id_column: Column = "id",
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Check a receipt and the files beside it; ends with 7 if they do not agree, with 3 if it is no receipt.

    [bold]spotless verify run/ --forget forget.csv[/bold]

    Checked are: every part of the receipt, its own digest, every file's digest, counts, and that the report tells the
    same verdict. With the folder `private` also that the receipt is word for word the one that was written, that it
    belongs to the request kept there and, with --forget, to this list.
    """
    # Late, so that the list of commands does not wait for it.
    from spotlessnet.requests.verifying import verify_request

    console = Console(json, quiet)
    found = verify_request(path, forget, id_column)
    how = "as it was written" if found.is_sealed else "it agrees with itself"
    told = [f"verified {found.receipt.name}: complete, and {how}"]
    told += [f"verified {name}" for name in found.files]
    told += [f"not checked: {one}" for one in found.not_checked]
    status = {"status": "verified", "files": found.files, "sealed": found.is_sealed}
    console.give({**status, "not_checked": found.not_checked}, told)
    return 0
