"""The trail in the ledger: every few seconds the digest of all new events becomes an entry, signed as receipts are.

Only events with a code under the desk's key go in, so what another hand wrote into the table, or changed before its
checkpoint, stays outside and is found. An event knows the entry that holds its digest. On PostgreSQL an event may be
committed after one with a higher number: it is in the next checkpoint then.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from spotlessnet import __version__
from spotlessnet.proof import ledger
from spotlessnet.proof.dsse import sign
from spotlessnet.proof.keys import SigningKey
from spotlessnet.serve.database import EVENTS, in_parts, reading, rows_of
from spotlessnet.serve.row_digests import spelled
from spotlessnet.serve.trail import CODED, TRAIL_KEY, code_of, now

TRAIL = "urn:spotlessnet:trail:v1"
EVERY = timedelta(seconds=10)
MOST = 1000
"""Events in one checkpoint: whoever wants to write meanwhile waits for it."""

COLUMNS = ("number", *CODED, "code")
REFUSED = -1
"""Instead of an entry: no desk with the key wrote this event."""

_OPEN = EVENTS.c.checkpoint.is_(None)
_OLDEST = sa.select(EVENTS.c.at).where(_OPEN).order_by(EVENTS.c.number).limit(1)
_SOME = sa.select(EVENTS).where(_OPEN).order_by(EVENTS.c.number).limit(MOST)


def digest_of_events(events: Iterable[Mapping[str, Any]]) -> str:
    """SHA-256 of events in the order of their numbers."""
    found = hashlib.sha256()
    for event in events:
        line = json.dumps([spelled(event[name]) for name in COLUMNS], sort_keys=True, separators=(",", ":"))
        found.update(line.encode() + b"\n")
    return found.hexdigest()


def add_checkpoint(database: sa.Engine, signer: SigningKey, *, older: timedelta = EVERY) -> bool:
    """Put new events into the ledger, if the first of them is so old; whether there were any."""
    with reading(database) as connection:
        # Only a look: an empty round must not wait for those who write.
        oldest = connection.execute(_OLDEST).scalar()
    if oldest is None or oldest > now() - older:
        return False
    with database.begin() as connection:
        ledger.lock(connection)  # of several workers, each sees what the one before it put in
        key = connection.get_execution_options()[TRAIL_KEY]
        found = rows_of(connection, _SOME)
        events = [one for one in found if one["code"] == code_of(key, one)]
        if events:
            entry = ledger.append(connection, sign(_statement(events), [signer]), signer)
            _mark(connection, events, entry)
        _mark(connection, [one for one in found if one not in events], REFUSED)
    return bool(found)


def _mark(connection: sa.Connection, events: list[dict[str, Any]], entry: int) -> None:
    for some in in_parts([one["number"] for one in events]):
        connection.execute(EVENTS.update().where(EVENTS.c.number.in_(some)).values(checkpoint=entry))


def code_older(connection: sa.Connection, key: bytes) -> None:
    """Give events from before there were codes theirs; only while no checkpoint is there, and so once."""
    if connection.execute(sa.select(EVENTS.c.number).where(EVENTS.c.checkpoint.is_not(None)).limit(1)).first():
        return
    for event in rows_of(connection, sa.select(EVENTS).where(EVENTS.c.code.is_(None))):
        chosen = EVENTS.update().where(EVENTS.c.number == event["number"])
        connection.execute(chosen.values(code=code_of(key, event)))


def _statement(events: list[dict[str, Any]]) -> bytes:
    first, last = events[0]["number"], events[-1]["number"]
    told = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": f"trail/{first}-{last}", "digest": {"sha256": digest_of_events(events)}}],
        "predicateType": TRAIL,
        "predicate": {"events": len(events), "first": first, "last": last, "by": f"spotlessnet {__version__}"},
    }
    return json.dumps(told, sort_keys=True, separators=(",", ":")).encode()
