"""Whether the keys of a desk are those of its database: with others it would answer, and answer wrongly."""

import sqlalchemy as sa

from spotlessnet.core.errors import IntegrityError, SettingError
from spotlessnet.proof import ledger
from spotlessnet.proof.dsse import taken_apart
from spotlessnet.proof.keys import SigningKey
from spotlessnet.serve.database import EVENTS, ID_COPIES, REQUESTS, rows_of
from spotlessnet.serve.sealing import Keys
from spotlessnet.serve.trail import code_of

SOME = 20
"""Events or copies that are tried: one may have been changed by another hand, which is not the key's fault."""


def check_own_ledger(connection: sa.Connection, signer: SigningKey) -> None:
    """Raise where another key signed last: no request could be closed, and that should not show up days later."""
    if not ledger.size_of(connection):
        return
    signers = [one.key_id for one in taken_apart(ledger.tree_head(connection)).signatures]
    if signer.id not in signers:
        raise SettingError(
            f"The ledger in the database was last signed with key {signers[0][:16]}, but this desk's key is "
            f"{signer.id[:16]}. Give the file of that key with --key."
        )


def check_own_database(connection: sa.Connection, keys: Keys) -> None:
    """Raise where another desk's key wrote the database.

    Under another key nobody is recognised: requests for people whom a model holds would be closed, with a receipt, as
    if it did not.
    """
    coded = sa.select(EVENTS).where(EVENTS.c.code.is_not(None)).order_by(EVENTS.c.number.desc()).limit(SOME)
    events = rows_of(connection, coded)
    fits = [code_of(keys.trail_key, event) == bytes(event["code"]) for event in events]
    if not events:
        # A database from before events had codes.
        joined = sa.select(REQUESTS.c.tenant, ID_COPIES.c.sealed).join(REQUESTS, REQUESTS.c.id == ID_COPIES.c.request)
        fits = [_opens(keys, row["tenant"], bytes(row["sealed"])) for row in rows_of(connection, joined.limit(SOME))]
    if fits and not any(fits):
        raise SettingError(
            "The database was written under another key for ids than this desk's. Bring desk.key back from its backup, "
            "or give its file with --desk-key; if it is lost, start with a new folder and database."
        )


def _opens(keys: Keys, tenant: str, sealed: bytes) -> bool:
    try:
        keys.open(tenant, sealed)
    except IntegrityError:
        return False
    return True
