"""`spotless sign`: sign a receipt and append it to a ledger; `spotless keys`: the keys for that."""

from pathlib import Path
from typing import Annotated

import typer

from spotlessnet.cli.common import AsJson, Console, Debug, Quiet
from spotlessnet.cli.proving import check_installed
from spotlessnet.core.errors import NeedError, check_choice
from spotlessnet.requests.folder import BUNDLE

Run = Annotated[Path, typer.Argument(help="receipt.json, or the folder that holds it.")]
Ledger = Annotated[
    str, typer.Option("--ledger", help="sqlite:///ledger.db or postgresql://…; made where there is none.")
]
Key = Annotated[Path, typer.Option("--key", help="The private key; made where there is none, for its owner alone.")]
Action = Annotated[str, typer.Argument(help="new, public or rotate.")]
OwnKey = Annotated[Path, typer.Option("--key", help="The private key.")]
NewKey = Annotated[
    Path | None, typer.Option("--new", help="rotate: the key that takes over; made where there is none.")
]
Turned = Annotated[str | None, typer.Option("--ledger", help="rotate: the ledger in which it takes over.")]


def sign(path: Run, ledger: Ledger, key: Key, json: AsJson = False, quiet: Quiet = False, debug: Debug = False) -> int:
    """Sign a receipt, append it to a ledger and write receipt.bundle.json beside it.

    [bold]spotless sign run/ --ledger sqlite:///ledger.db --key ledger.key[/bold]

    The receipt is verified first. Signing it again changes nothing in the ledger and brings the bundle up to date. Give
    the bundle and the public key (`spotless keys public`) to whoever is to check it.
    """
    check_installed()
    # Late, so that the list of commands does not wait for it.
    from spotlessnet.core.files import read_whole
    from spotlessnet.proof import bundle, connecting, dsse
    from spotlessnet.proof.keys import SigningKey
    from spotlessnet.proof.ledger import append
    from spotlessnet.requests.verifying import verify_request

    receipt = verify_request(path).receipt
    signing = SigningKey.at(key)
    envelope = dsse.sign(bytes(read_whole(receipt, "receipt")), [signing])
    with connecting.writing(ledger) as connection:
        index = append(connection, envelope, signing)
        made = bundle.bundle(connection, index)
    bundle.write_bundle(receipt.parent / BUNDLE, made, replace=True)
    told = {"status": "done", "index": index, "key": signing.id, "bundle": BUNDLE}
    Console(json, quiet).give(told, [f"signed {receipt.name} by key {signing.id[:16]}: entry {index}, see {BUNDLE}"])
    return 0


def keys(
    action: Action,
    key: OwnKey,
    new: NewKey = None,
    ledger: Turned = None,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Make a key, show its public key, or hand over to the next one.

    [bold]spotless keys public --key ledger.key > ledger.pub[/bold]

    `new` writes a new private key and never overwrites one; `rotate` appends an entry, signed by both keys, after which
    the new one signs: `spotless keys rotate --key ledger.key --new next.key --ledger sqlite:///ledger.db`.
    """
    check_choice("action", action, ("new", "public", "rotate"))
    check_installed()
    # Late, so that the list of commands does not wait for it.
    from spotlessnet.proof import connecting
    from spotlessnet.proof.keys import SigningKey
    from spotlessnet.proof.ledger import rotate

    console = Console(json, quiet)
    if action == "new":
        SigningKey.new().write(key)
    own = SigningKey.read(key)
    if action == "rotate":
        if new is None or ledger is None:
            raise NeedError("rotate needs --new, the key that takes over, and --ledger, where it does.")
        following = SigningKey.at(new)
        with connecting.writing(ledger) as connection:
            index = rotate(connection, own, following)
        told = {"status": "done", "old": own.id, "new": following.id, "index": index}
        console.give(told, [f"key {own.id[:16]} handed over to {following.id[:16]} at entry {index}"])
        return 0
    console.give({"status": "done", "key": own.id, "public_key": own.public.pem}, [own.public.pem.rstrip()])
    return 0
