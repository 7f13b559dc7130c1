"""`spotless purge`: destroy what could still open a receipt's commitments, once it is due."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlessnet.cli.common import AsJson, Console, Debug, Quiet
from spotlessnet.core.errors import DataError

if TYPE_CHECKING:
    from spotlessnet.requests.folder import Private

Folders = Annotated[list[Path], typer.Argument(help="Folders that requests wrote.")]
Now = Annotated[bool, typer.Option("--now", help="Destroy it today, whenever it is due.")]


def purge(folders: Folders, now: Now = False, json: AsJson = False, quiet: Quiet = False, debug: Debug = False) -> int:
    """Destroy the folder `private` of requests once its date has come.

    [bold]spotless purge run/[/bold]

    It holds the salt that opens a receipt's commitments: afterwards nobody can check the receipt against a list, nor
    check its seal. Files are overwritten once and unlinked; copies elsewhere are not reached.
    """
    # Late, so that the list of commands does not wait for it.
    from spotlessnet.requests.folder import Private, locked

    console = Console(json, quiet)
    today = datetime.now(UTC)
    told, lines = [], []
    for folder in folders:
        private = Private(folder)
        if private.is_purged:
            told.append({"folder": folder, "status": "purged before"})
            lines.append(f"purged before {folder}")
            continue
        if not private.path.is_dir() or private.path.is_symlink():
            raise DataError(f"{folder} holds no folder `private`, so no request wrote it. Give the --out of a request.")
        due = None if now else _due(private)
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


def _due(private: "Private") -> datetime:
    """The date of the receipt, or of the refusal; where neither was written, that of the folder itself."""
    from spotlessnet.requests.folder import RECEIPT
    from spotlessnet.requests.serving import REFUSAL
    from spotlessnet.store.receipts import read_receipt, verify

    file = next((private.out / name for name in (RECEIPT, REFUSAL) if (private.out / name).is_file()), None)
    if file is None:
        return private.destroy_after
    verify(file, private.salt)
    return private.due(read_receipt(file))
