"""What a person takes home: the signed receipt and its proof of being in the ledger, in one file; and who signed it."""

from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from spotlessnet.core.errors import SpotlessError
from spotlessnet.proof import bundle as bundles
from spotlessnet.proof import ledger
from spotlessnet.proof.checking import Checked, check
from spotlessnet.proof.keys import PublicKeys, SigningKey
from spotlessnet.serve.agreeing import agreement


def bundle_of(connection: sa.Connection, entry: int) -> dict[str, Any]:
    """The bundle of a receipt, which `spotless verify` checks with the public key alone."""
    return bundles.bundle(connection, entry)


def seal_of(connection: sa.Connection, signer: SigningKey) -> Checked:
    """Whether the whole ledger agrees with itself and with the desk's key, and the desk's tables with it."""
    found = check(connection, PublicKeys([signer.public]))
    return replace(found, mistakes=found.mistakes or agreement(connection).mistakes)


def is_proven(connection: sa.Connection, entry: int, signer: SigningKey) -> bool:
    """Whether one receipt is in the ledger, signed; for the page of a request."""
    try:
        bundles.verify_bundle(bundle_of(connection, entry), PublicKeys([signer.public]))
    except SpotlessError:
        return False
    return True


def head_of(connection: sa.Connection, signer: SigningKey) -> dict[str, Any]:
    """The signed tree head, and the key to check it with."""
    size = ledger.size_of(connection)
    head = ledger.tree_head(connection) if size else None
    return {"size": size, "head": head, "public_key": signer.public.pem}
