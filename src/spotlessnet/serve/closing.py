"""The end of a request: its copy of ids is destroyed, its receipt signed and appended to the ledger, all at once."""

import json
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from spotlessnet import __version__
from spotlessnet.proof import ledger
from spotlessnet.proof.deletions import DELETION
from spotlessnet.proof.dsse import sign
from spotlessnet.proof.keys import SigningKey
from spotlessnet.serve.database import ID_COPIES, JOBS, MODELS, REQUESTS, TARGETS, VERSIONS, in_state, rows_of
from spotlessnet.serve.row_digests import digest_of_ended
from spotlessnet.serve.trail import REPLAYED, STEPS, events_of, note, now

AT_ONCE = 10
"""Requests that one transaction closes: each is signed and proven, which takes milliseconds."""

NOWHERE, DONE = "in no registered model", "published without these ids"

TOLD = (*STEPS, "served before", "sent back", "tried again", *REPLAYED)
"""The events that a receipt tells."""

LIMITS = (
    "Only trainings in this desk's registry were looked at: other copies of the data and of the networks, backups "
    "among them, are not covered.",
    "A receipt says what was run, signed by whoever ran it; it does not prove that nothing else was kept.",
)


def _full_hour(at: datetime) -> datetime:
    # As finely as `store.receipts` tells it, which imports torch: the desk does without.
    return at.replace(minute=0, second=0, microsecond=0)


def is_ready_to_close() -> sa.ColumnElement[bool]:
    """Whether a request waits for nothing more."""
    open_target = sa.exists().where(TARGETS.c.request == REQUESTS.c.id, TARGETS.c.state != "destroyed")
    return sa.and_(in_state("destroyed"), ~open_target, REQUESTS.c.held.is_(False))


def close_ready(connection: sa.Connection, signer: SigningKey) -> list[str]:
    """Close requests that wait for nothing more, some at a time; gives them."""
    query = sa.select(REQUESTS).where(is_ready_to_close()).order_by(REQUESTS.c.due).limit(AT_ONCE)
    closed = []
    for request in rows_of(connection, query.with_for_update(skip_locked=True)):
        close(connection, signer, request)
        closed.append(request["id"])
    return closed


def close(connection: sa.Connection, signer: SigningKey, request: dict[str, Any]) -> int:
    """Close one request, and give the place of its receipt in the ledger."""
    served = _served(connection, request["id"])
    outcome = DONE if served else NOWHERE
    at = now()
    told = statement(connection, request, served, outcome, at.isoformat(timespec="seconds"))
    payload = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    entry = ledger.append(connection, sign(payload, [signer]), signer)
    connection.execute(ID_COPIES.delete().where(ID_COPIES.c.request == request["id"]))
    values = {"state": "closed", "closed": at, "entry": entry, "outcome": outcome}
    connection.execute(REQUESTS.update().where(REQUESTS.c.id == request["id"]).values(**values))
    connection.execute(TARGETS.update().where(TARGETS.c.request == request["id"]).values(state="closed"))
    row = digest_of_ended(connection, request | values)
    note(connection, request["tenant"], "closed", request=request["id"], outcome=outcome, entry=entry, row=row)
    return entry


def _served(connection: sa.Connection, request: str) -> list[dict[str, Any]]:
    """Each model that a request concerned, in the version now published, with the job that served it."""
    query = (
        sa.select(
            MODELS.c.name,
            VERSIONS.c.number,
            VERSIONS.c.network,
            JOBS.c.method,
            JOBS.c.verdict,
            JOBS.c.receipt,
        )
        .join(TARGETS, TARGETS.c.model == MODELS.c.id)
        .outerjoin(JOBS, JOBS.c.id == TARGETS.c.job)
        .join(VERSIONS, sa.and_(VERSIONS.c.model == MODELS.c.id, VERSIONS.c.number == _number()))
        .where(TARGETS.c.request == request)
        .order_by(MODELS.c.name)
    )
    return rows_of(connection, query)


def _number() -> sa.ColumnElement[int]:
    """The version that the job made; where another request had served it, the current one."""
    return sa.func.coalesce(JOBS.c.base + 1, MODELS.c.version)


def statement(
    connection: sa.Connection, request: dict[str, Any], served: list[dict[str, Any]], outcome: str, at: str
) -> dict[str, Any]:
    """The in-toto statement of a request: what was done and when; counts and digests, no id."""
    networks = [{"name": f"{one['name']}/{one['number']}", "digest": {"sha256": one["network"]}} for one in served]
    events = events_of(connection, request["tenant"], request["id"])
    return {
        "_type": "https://in-toto.io/Statement/v1",
        # A digest of keyed digests: whoever lacks the desk's key can test no guess with it.
        "subject": [{"name": f"request/{request['id']}", "digest": {"sha256": request["content"].hex()}}, *networks],
        "predicateType": DELETION,
        "predicate": {
            "request": request["id"],
            "ids": request["count"],
            "received": request["received"].isoformat(timespec="seconds"),
            "due": request["due"].isoformat(timespec="seconds"),
            "closed": at,
            "outcome": outcome,
            "models": [
                {
                    "name": one["name"],
                    "version": one["number"],
                    "method": one["method"],
                    "verdict": one["verdict"],
                    "receipt": one["receipt"],
                }
                for one in served
            ],
            "steps": [
                # To the hour: how long the work took can tell of the rows.
                {"what": one["what"], "at": _full_hour(one["at"]).isoformat(timespec="seconds")}
                for one in events
                if one["what"] in TOLD
            ],
            "limits": list(LIMITS),
            "by": f"spotlessnet {__version__}",
        },
    }
