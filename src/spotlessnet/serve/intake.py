"""Receiving requests: one transaction each, idempotent by the request's key, and never an id in plain text."""

import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError as Twice

from spotlessnet.core.errors import DataError, MismatchError, SettingError
from spotlessnet.serve.database import ID_COPIES, REQUEST_IDS, REQUESTS, TARGETS, rows_of
from spotlessnet.serve.matching import release
from spotlessnet.serve.policy import Policy
from spotlessnet.serve.sealing import Keys
from spotlessnet.serve.trail import ENDED, STEPS, StateError, note, now

LONGEST_KEY, LONGEST_ID, MOST_IDS = 200, 500, 100_000

CANCELLABLE = STEPS[: STEPS.index("scrubbed")]
"""Once a network was scrubbed for a request, its examples are gone from it: that is not taken back."""


@dataclass(frozen=True)
class Submitted:
    """What became of a submission.

    **Arguments:**

    - `again`: the same request was received before, and this is that one.
    """

    id: str
    state: str
    received: datetime
    due: datetime
    again: bool


def checked_ids(given: Sequence[str]) -> list[str]:
    """Ids without their duplicates, in rising order; refused where one cannot be an id."""
    wrong = [one for one in given if not isinstance(one, str) or not 1 <= len(one.strip()) <= LONGEST_ID]
    if wrong or not given or len(given) > MOST_IDS:
        raise DataError(
            f"`ids` must be 1 to {MOST_IDS} texts of 1 to {LONGEST_ID} characters, but {len(given)} came, of which "
            f"{len(wrong)} are none. Split the list, or write numbers as text."
        )
    try:
        return sorted({one.strip() for one in given if one.encode()})
    except UnicodeEncodeError as e:
        raise DataError("`ids` must be text that can be written as UTF-8, but one cannot. Check its encoding.") from e


def submit(
    connection: sa.Connection,
    keys: Keys,
    tenant: str,
    policy: Policy,
    *,
    key: str,
    ids: Sequence[str],
    submitter: str,
    due: datetime | None = None,
) -> Submitted:
    """Receive a request, or recognise it: the same key with other content is refused.

    **Arguments:**

    - `key`: the asker's own name for the request, which makes it safe to send twice.
    - `due`: until when, if earlier than the policy says.
    """
    if not isinstance(key, str) or not 1 <= len(key) <= LONGEST_KEY or not key.isprintable():
        raise SettingError(f"`key` must be 1 to {LONGEST_KEY} printable characters. Give each request one of its own.")
    listed = checked_ids(ids)
    digests = sorted(keys.id_digest(tenant, one) for one in listed)
    content = hashlib.sha256(b"".join(digests)).digest()
    at = now()
    told = keys.key_digest(tenant, key)
    if (found := _received(connection, tenant, told, content)) is not None:
        return found
    latest = at + policy.time
    row: dict[str, Any] = {"id": str(uuid.uuid4()), "tenant": tenant, "key": told, "content": content}
    row |= {"state": "received", "held": False, "submitter": submitter, "count": len(listed), "received": at}
    row["due"] = latest if due is None else min(due, latest)
    try:
        with connection.begin_nested():
            connection.execute(REQUESTS.insert().values(**row))
    except Twice:  # another worker received it between the look and now
        twice = _received(connection, tenant, told, content)
        assert twice is not None
        return twice
    connection.execute(REQUEST_IDS.insert(), [{"request": row["id"], "id": one} for one in digests])
    connection.execute(ID_COPIES.insert().values(request=row["id"], sealed=keys.seal_ids(tenant, listed)))
    note(connection, tenant, "received", request=row["id"], actor=submitter, count=len(listed))
    return Submitted(row["id"], "received", at, row["due"], again=False)


def _received(connection: sa.Connection, tenant: str, key: bytes, content: bytes) -> Submitted | None:
    query = sa.select(REQUESTS).where(REQUESTS.c.tenant == tenant, REQUESTS.c.key == key)
    found = connection.execute(query).mappings().one_or_none()
    if found is None:
        return None
    if found["content"] != content:
        raise MismatchError(
            "This key was used before for a request with other ids. Give a new request a key of its own; to ask again "
            "for the same, send the same ids."
        )
    return Submitted(found["id"], found["state"], found["received"], found["due"], again=True)


def _held(connection: sa.Connection, tenant: str, request: str) -> dict[str, Any]:
    """A request's row, locked where the database can."""
    query = sa.select(REQUESTS).where(REQUESTS.c.tenant == tenant, REQUESTS.c.id == request).with_for_update()
    found = rows_of(connection, query)
    if not found:
        raise LookupError(request)
    return found[0]


def cancel(connection: sa.Connection, tenant: str, request: str, actor: str) -> None:
    """Take a request back, as long as no network was scrubbed for it; its copy of ids is destroyed."""
    row = _held(connection, tenant, request)
    at_work = connection.execute(
        sa.select(sa.func.count()).where(TARGETS.c.request == request, TARGETS.c.job.is_not(None))
    ).scalar_one()
    if row["state"] == "cancelled":
        return
    if row["state"] not in CANCELLABLE or at_work:
        raise StateError(
            f"A request can be cancelled until work on it begins, but this one is {row['state']} and in a job. Send "
            "the job's result back instead, or let it be closed."
        )
    connection.execute(REQUESTS.update().where(REQUESTS.c.id == request).values(state="cancelled", closed=now()))
    connection.execute(TARGETS.delete().where(TARGETS.c.request == request))
    connection.execute(ID_COPIES.delete().where(ID_COPIES.c.request == request))
    release(connection, tenant, request)
    note(connection, tenant, "cancelled", request=request, actor=actor)


def hold(connection: sa.Connection, tenant: str, request: str, actor: str, *, held: bool) -> None:
    """Put a request on hold, or let it go on; work that has begun is finished."""
    row = _held(connection, tenant, request)
    if row["state"] in ENDED:
        raise StateError(f"Only an open request can be held, but this one is {row['state']}.")
    if row["held"] != held:
        connection.execute(REQUESTS.update().where(REQUESTS.c.id == request).values(held=held))
        note(connection, tenant, "held" if held else "resumed", request=request, actor=actor)


def described(row: dict[str, Any]) -> dict[str, Any]:
    """What a caller may see of a request."""
    shown = {name: row[name] for name in ("id", "state", "held", "count", "outcome", "entry")}
    return json.loads(json.dumps(shown)) | {name: _iso(row[name]) for name in ("received", "due", "closed")}


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")
