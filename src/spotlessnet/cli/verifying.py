"""`spotless verify`: check everything that a receipt says against what lies beside it; or a bundle, or a ledger."""

from pathlib import Path
from typing import Annotated, Any

import typer

from spotlessnet.cli import proving
from spotlessnet.cli.common import AsJson, Console, Debug, Quiet, printable
from spotlessnet.core.errors import NeedError
from spotlessnet.requests.folder import BUNDLE

Receipt = Annotated[
    Path | None, typer.Argument(help="receipt.json, the folder that holds it, or a signed receipt.bundle.json.")
]
List = Annotated[Path | None, typer.Option("--forget", help="Also check that this list is the one it was written for.")]
Column = Annotated[str, typer.Option("--id-column", help="The list's column that holds the ids.")]
Keys = Annotated[
    list[Path] | None, typer.Option("--public-key", help="A public key that you trust (PEM); may be repeated.")
]
Ledger = Annotated[str | None, typer.Option("--ledger", help="Check a whole ledger: sqlite:///file.db, postgresql://…")]
Since = Annotated[
    Path | None, typer.Option("--since", help="A tree head or bundle from before: the ledger must begin with it.")
]
Keep = Annotated[
    Path | None, typer.Option("--keep-head", help="Write the ledger's tree head there, as a witness for --since.")
]


def verify(
    path: Receipt = None,
    forget: List = None,
    id_column: Column = "id",
    public_key: Keys = None,
    ledger: Ledger = None,
    since: Since = None,
    keep_head: Keep = None,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Check a receipt and the files beside it; ends with 7 if they do not agree, with 3 if it is no receipt.

    [bold]spotless verify run/ --forget forget.csv[/bold]

    Checked are: every part of the receipt, its own digest, every file's digest, counts, and that the report tells the
    same verdict. With the folder `private` also that the receipt is word for word the one that was written, that it
    belongs to the request kept there and, with --forget, to this list.

    A signed one: [bold]spotless verify receipt.bundle.json --public-key ledger.pub[/bold] needs these two files alone.
    A whole ledger: [bold]spotless verify --ledger sqlite:///ledger.db --public-key ledger.pub --since head.json[/bold].
    """
    console = Console(json, quiet)
    keys = public_key or []
    if ledger is not None:
        if path is not None or forget is not None:
            raise NeedError("A receipt and a whole ledger are checked one after the other: give either, not both.")
        return proving.verify_ledger(console, ledger, keys, since, keep_head)
    if path is None or since is not None or keep_head is not None:
        raise NeedError("Give a receipt, its folder or a bundle; or --ledger, which --since and --keep-head need.")
    if path.name.endswith(".bundle.json"):
        if forget is not None:
            raise NeedError("A list is checked against the folder of its request, which has the salt: give the folder.")
        return proving.verify_bundle_file(console, path, keys)
    return _verify_folder(console, path, forget, id_column, keys)


def _verify_folder(console: Console, path: Path, forget: Path | None, id_column: str, keys: list[Path]) -> int:
    # Late, so that the list of commands does not wait for it.
    from spotlessnet.requests.verifying import verify_request

    found = verify_request(path, forget, id_column)
    how = "as it was written" if found.is_sealed else "it agrees with itself"
    told = [f"verified {found.receipt.name}: complete, and {how}"]
    told += [f"verified {printable(name)}" for name in found.files]
    seal, *left = found.not_checked
    values: dict[str, Any] = {"status": "verified", "files": found.files, "sealed": found.is_sealed}
    if keys:
        more, lines = proving.told_of(proving.beside(found.receipt, keys))
        values |= more
        told += lines
        left = [proving.CLAIMED, *([] if found.is_sealed else [proving.UNLISTED]), *left]
    elif (found.receipt.parent / BUNDLE).exists():
        left = [f"who wrote the receipt: {BUNDLE} beside it is signed, which needs --public-key", *left]
    else:
        left = [seal, *left]
    told += [f"not checked: {printable(one)}" for one in left]
    console.give({**values, "not_checked": left}, told)
    return 0
