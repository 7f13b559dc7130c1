"""`spotless purge`: destroy what could still open a receipt's commitments, once it is due."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from spotlessnet.cli.console import Console
from spotlessnet.cli.options import AsJson, Debug, Quiet
from spotlessnet.core.errors import DataError

Folders = Annotated[list[Path], typer.Argument(help="Folders that requests wrote.")]
Now = Annotated[bool, typer.Option("--now", help="Destroy it today, whenever it is due.")]


def purge(folders: Folders, now: Now = False, json: AsJson = False, quiet: Quiet = False, debug: Debug = False) -> int:
    """Destroy the folder `private` of requests once its date has come.

    [bold]spotless purge run/[/bold]

    It holds the salt that opens a receipt's commitments: afterwards nobody can check the receipt against a list, nor
    check its seal. Files are overwritten once and unlinked; copies elsewhere are not reached.
    """
    # Late, so that the list of commands does not wait for it.
    from spotlessnet.cli.folder import locked
    from spotlessnet.store.private import Private

    console, today = Console(json, quiet), datetime.now(UTC)
    told, lines = [], []
    for folder in folders:
        private = Private(folder)
        if private.is_purged:
            told.append({"folder": folder, "status": "purged before"})
            lines.append(f"purged before {folder}")
            continue
        if not private.path.is_dir() or private.path.is_symlink():
            raise DataError(f"{folder} holds no folder `private`, so no request wrote it. Give the --out of a request.")
        due = None if now else private.destroy_after
        if due is not None and due > today:
            told.append({"folder": folder, "status": "kept", "due": due.isoformat()})
            lines.append(f"kept {folder / 'private'}, due on {due.date()}")
            continue
        with locked(private.path, folder):
            names = private.destroy(today)
        told.append({"folder": folder, "status": "purged", "files": names})
        lines.append(f"purged {folder / 'private'}: {', '.join(names) or 'nothing left in it'}")
    console.give({"status": "done", "folders": told}, lines)
    return 0
