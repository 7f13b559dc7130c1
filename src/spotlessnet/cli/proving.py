"""What commands say of signed receipts and ledgers; all work is in `proof`, which needs the extra `serve`."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotlessnet.cli.common import Console
from spotlessnet.core.errors import DataError, IntegrityError, NeedError
from spotlessnet.core.files import read_whole, write_whole
from spotlessnet.requests.folder import BUNDLE

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from spotlessnet.proof.bundle import Proven
    from spotlessnet.proof.checking import Checked

UNWITNESSED = "that nothing is missing at the end: that needs --since, a tree head kept from before"
CLAIMED = "that whoever signed it told the truth"
UNLISTED = "the list: that needs the folder `private`"


def check_installed() -> None:
    """Raise unless the extra `serve` is there."""
    if find_spec("cryptography") is None or find_spec("sqlalchemy") is None:
        raise NeedError("Signed receipts and ledgers need two packages more: pip install 'spotlessnet[serve]'.")


def prove(path: Path, keys: Sequence[Path]) -> "Proven":
    """What a bundle proves to whoever trusts these keys."""
    check_installed()
    if not keys:
        raise NeedError(f"{path.name} is signed: give --public-key, the file with the public key that you trust.")
    from spotlessnet.proof.bundle import read_bundle, verify_bundle
    from spotlessnet.proof.keys import PublicKeys

    return verify_bundle(read_bundle(path), PublicKeys.read(*keys))


def told_of(proven: "Proven") -> tuple[dict[str, Any], list[str]]:
    """A proven receipt as values and as lines."""
    head = proven.head
    signed = [key[:16] for key in proven.signers]
    values = {"signers": proven.signers, "index": proven.index, "log": head.log, "size": head.size}
    place = f"entry {proven.index} of {head.size} of log {head.log[:16]}"
    return {**values, "root": head.root.hex(), "head_time": head.time.isoformat()}, [
        f"verified signature: by key {', '.join(signed)}",
        f"verified ledger: {place}, as of {head.time:%Y-%m-%d %H:%M} UTC",
    ]


def verify_bundle_file(console: Console, path: Path, keys: Sequence[Path]) -> int:
    """Check one bundle, and the files that its receipt speaks of where they lie beside it."""
    proven = prove(path, keys)
    from spotlessnet.proof.bundle import files_beside

    files, absent = files_beside(proven.receipt, path.parent)
    values, lines = told_of(proven)
    left = [CLAIMED] + [f"{name}: it does not lie beside the bundle" for name in absent]
    body = proven.receipt["predicate"]
    kind = f"of {body['method']!r}" if "method" in body else "of a whole request"
    told = [f"verified {path.name}: a receipt {kind}, complete, and as it was signed", *lines]
    told += [f"verified {name}" for name in files] + [f"not checked: {one}" for one in left]
    console.give({"status": "verified", "files": files, **values, "not_checked": left}, told)
    return 0


def beside(receipt: Path, keys: Sequence[Path]) -> "Proven":
    """What the bundle beside a receipt proves; it must be of this very file."""
    proven = prove(receipt.parent / BUNDLE, keys)
    from spotlessnet.proof.bundle import read_bundle
    from spotlessnet.proof.dsse import taken_apart

    signed = taken_apart(read_bundle(receipt.parent / BUNDLE)["receipt"]).payload
    if signed != bytes(read_whole(receipt, "receipt")):
        raise IntegrityError(f"{receipt.name} is not the receipt that was signed: {BUNDLE} beside it holds another.")
    return proven


def verify_ledger(console: Console, address: str, keys: Sequence[Path], since: Path | None, keep: Path | None) -> int:
    """Walk through a ledger, and keep its tree head where that is asked for."""
    check_installed()
    if not keys:
        raise NeedError("Checking a ledger needs --public-key, the file with the public key that you trust.")
    from spotlessnet.proof import checking, connecting, ledger
    from spotlessnet.proof.keys import PublicKeys
    from spotlessnet.proof.spelling import as_bytes

    trusted = PublicKeys.read(*keys)
    witness = None if since is None else _head_in(since)
    with connecting.reading(address) as connection:
        found = checking.check(connection, trusted, witness)
        newest = ledger.tree_head(connection) if found.is_whole and found.size else None
        found, tables = _with_tables(connection, found)
    if not found.is_whole:
        told = [f"changed: {one}" for one in found.mistakes]
        console.give({"status": "changed", "log": found.log, "mistakes": found.mistakes}, told)
        found.must_hold()
    if keep is not None:
        if newest is None:
            raise DataError("An empty ledger has no tree head to keep. Append a receipt first.")
        write_whole(keep, as_bytes(newest), replace=True, shared=True)
    told = [f"verified ledger: {found.size} entries of log {found.log[:16]}, every hash, signature and tree head"]
    left = [CLAIMED]
    if since is None:
        left.append(UNWITNESSED)
    else:
        told.append(f"verified {since.name}: the ledger begins with the log that it is of")
    told += tables
    values = {"status": "verified", "log": found.log, "size": found.size, "not_checked": left}
    root = None if found.head is None else found.head.root.hex()
    console.give({**values, "root": root}, told + [f"not checked: {one}" for one in left])
    return 0


def _with_tables(connection: "Connection", found: "Checked") -> tuple["Checked", list[str]]:
    """Where the ledger is that of a desk, its other tables must agree with it: the finding, and what was verified."""
    from spotlessnet.serve.agreeing import agreement, has_tables

    if not found.is_whole or not has_tables(connection):
        return found, []
    agreed = agreement(connection)
    told = f"verified desk: {agreed.events} events of its trail, and requests, jobs, models and tokens as they tell"
    newest = [f"not yet in the ledger: the last {agreed.newest} events"] if agreed.newest else []
    return replace(found, mistakes=agreed.mistakes), [told, *newest]


def _head_in(path: Path) -> dict[str, Any]:
    """A signed tree head: one that was kept, or that of a bundle."""
    from spotlessnet.proof.bundle import read_bundle

    held = read_bundle(path)
    head = held.get("head", held)
    if not isinstance(head, dict):
        raise DataError(f"{path} must be a tree head or a bundle, but is neither.")
    return head
