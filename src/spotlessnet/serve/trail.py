"""The trail of every action: who did what to which request, and when; no id of a person is ever in it."""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from spotlessnet.core.errors import DataError, SettingError
from spotlessnet.serve.database import EVENTS, REQUESTS, TARGETS, in_parts, rows_of
from spotlessnet.serve.outbox import put_out, webhooks_of
from spotlessnet.serve.row_digests import spelled

STEPS = ("received", "matched", "planned", "scrubbed", "audited", "approved", "published", "destroyed", "closed")
"""The way of a request, in order."""

OPEN = STEPS[:-1]
ENDED = ("closed", "cancelled")

TOLD = (*STEPS, "cancelled", "held", "resumed", "failed", "sent back", "tried again", "due soon", "late")
"""Events that webhooks hear of; all others stay at the desk."""

REPLAYED = ("replayed: the same", "replayed: another", "replayed: cannot be told")
"""How a job came out that was done a second time."""

DESK = "desk"
"""Who acts where no person did."""


CODED = ("tenant", "request", "job", "at", "actor", "what", "detail")
TRAIL_KEY = "trail_key"
"""The option of a desk's database under which every transaction finds the key for events."""

_ADD = EVENTS.insert()


class StateError(DataError):
    """What was asked for does not fit the state that a request or a job is in."""


def now() -> datetime:
    """The time, in UTC."""
    return datetime.now(UTC)


YEARS = range(1970, 9999)
"""Of times that somebody sends: every zone that a database may show them in has these."""


def in_utc(at: datetime, name: str) -> datetime:
    """A time that somebody sent; refused where it has no zone, or is none that anybody can mean."""
    if at.tzinfo is None:
        raise SettingError(f"`{name}` must be a time with its zone, such as 2026-12-31T12:00Z.")
    if at.year not in YEARS:
        raise SettingError(f"`{name}` must be a time in the years {YEARS[0]} to {YEARS[-1]}.")
    return at.astimezone(UTC)


def coded(connection: sa.Connection, event: dict[str, Any]) -> dict[str, Any]:
    """An event with its code, which only a desk with its key can make."""
    key = connection.get_execution_options().get(TRAIL_KEY)
    return {**event, "code": None if key is None else code_of(key, event)}


def code_of(key: bytes, event: Mapping[str, Any]) -> bytes:
    """The code of an event under the desk's key."""
    line = json.dumps([spelled(event[name]) for name in CODED], sort_keys=True, separators=(",", ":"))
    return hmac.digest(key, line.encode(), hashlib.sha256)


def note(
    connection: sa.Connection,
    tenant: str,
    what: str,
    *,
    request: str | None = None,
    job: str | None = None,
    actor: str = DESK,
    **detail: Any,
) -> None:
    """Write one event, in the transaction of what it tells of: both happen or neither."""
    at = now()
    values = {"tenant": tenant, "request": request, "job": job, "at": at, "actor": actor, "what": what}
    made = connection.execute(_ADD, coded(connection, {**values, "detail": detail}))
    if what in TOLD and (request or job):
        [event] = made.inserted_primary_key or (0,)
        put_out(connection, tenant, what, event=int(event), at=at, request=request, job=job)


def note_all(
    connection: sa.Connection,
    tenant: str,
    what: str,
    details: Mapping[str, Mapping[str, Any]],
    actor: str = DESK,
    *,
    job: str | None = None,
) -> None:
    """Write one event for each of many requests, in one statement where no webhook asks for its number."""
    if what in TOLD and webhooks_of(connection, tenant):
        for request, detail in details.items():
            note(connection, tenant, what, request=request, job=job, actor=actor, **detail)
        return
    same = {"tenant": tenant, "job": job, "at": now(), "actor": actor, "what": what}
    rows = [
        coded(connection, {**same, "request": request, "detail": dict(detail)}) for request, detail in details.items()
    ]
    if rows:
        connection.execute(_ADD, rows)


def events_of(connection: sa.Connection, tenant: str, request: str, after: int = 0) -> list[dict[str, Any]]:
    """The timeline of a request: its own events, and those of its jobs; those `after` a number alone."""
    now_in = sa.select(TARGETS.c.job).where(TARGETS.c.request == request, TARGETS.c.job.is_not(None))
    # Jobs that were sent back: an event with both tells that the request was in it.
    was_in = sa.select(EVENTS.c.job).where(EVENTS.c.request == request, EVENTS.c.job.is_not(None))
    jobs = now_in.union(was_in)
    about = sa.or_(EVENTS.c.request == request, sa.and_(EVENTS.c.request.is_(None), EVENTS.c.job.in_(jobs)))
    chosen = sa.and_(EVENTS.c.tenant == tenant, EVENTS.c.number > after, about)
    return rows_of(connection, sa.select(EVENTS).where(chosen).order_by(EVENTS.c.number))


def advance(connection: sa.Connection, requests: Sequence[str]) -> None:
    """Set each of these requests to the least advanced state of its models."""
    for some in in_parts(sorted(requests)):
        chosen = REQUESTS.c.id.in_(some)
        # Locked first, in one order for all: of two jobs that advance a request, the second sees what the first did.
        connection.execute(sa.select(REQUESTS.c.id).where(chosen).order_by(REQUESTS.c.id).with_for_update())
        states: dict[str, list[str]] = {one: [] for one in some}
        for request, state in connection.execute(
            sa.select(TARGETS.c.request, TARGETS.c.state).where(TARGETS.c.request.in_(some))
        ):
            states[request].append(state)
        least = {request: min(found, key=STEPS.index, default="matched") for request, found in states.items()}
        for state in sorted(set(least.values())):
            there = [request for request in some if least[request] == state]
            connection.execute(REQUESTS.update().where(REQUESTS.c.id.in_(there)).values(state=state))
