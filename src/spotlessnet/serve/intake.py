"""Receiving requests: idempotent by their keys, and never an id in plain text."""

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from spotlessnet.core.errors import DataError, MismatchError, SettingError
from spotlessnet.serve.database import ID_COPIES, REQUEST_IDS, REQUESTS, TARGETS, in_parts, rows_of
from spotlessnet.serve.matching import release
from spotlessnet.serve.policy import Policy
from spotlessnet.serve.row_digests import OF_REQUEST, digest_of, digest_of_ended
from spotlessnet.serve.sealing import Keys
from spotlessnet.serve.trail import ENDED, STEPS, StateError, in_utc, note, note_all, now

LONGEST_KEY, LONGEST_ID, MOST_IDS = 200, 500, 100_000

CANCELLABLE = STEPS[: STEPS.index("scrubbed")]
"""Once a network was scrubbed for a request, its examples are gone from it: that is not taken back."""


# Statements of every request, put together once: that takes longer than the database takes to answer them.
_TAKE = {
    kind.name: insert(REQUESTS).on_conflict_do_nothing(index_elements=["tenant", "key"])
    for kind, insert in ((postgresql.dialect, postgresql.insert), (sqlite.dialect, sqlite.insert))
}
_TAKE_IDS = REQUEST_IDS.insert()
_TAKE_COPIES = ID_COPIES.insert()
_SHOWN = [REQUESTS.c[name] for name in ("id", "key", "content", "state", "received", "due")]
_TAKEN = sa.select(*_SHOWN).where(
    REQUESTS.c.tenant == sa.bindparam("of"), REQUESTS.c.key.in_(sa.bindparam("keys", expanding=True))
)


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


@dataclass(frozen=True)
class Asking:
    """A request that was read and found well formed, before the database has seen it; no id stands in it."""

    tenant: str
    key: bytes
    content: bytes
    digests: tuple[bytes, ...] = field(repr=False)
    sealed: bytes = field(repr=False)
    submitter: str
    due: datetime | None


def asking(
    keys: Keys, tenant: str, *, key: str, ids: Sequence[str], submitter: str, due: datetime | None = None
) -> Asking:
    """Read a request, and refuse it where it is not well formed."""
    if not isinstance(key, str) or not 1 <= len(key) <= LONGEST_KEY or not key.isprintable():
        raise SettingError(f"`key` must be 1 to {LONGEST_KEY} printable characters. Give each request one of its own.")
    due = None if due is None else in_utc(due, "due")
    listed = checked_ids(ids)
    digests = tuple(sorted(keys.id_digest(tenant, one) for one in listed))
    content = hashlib.sha256(b"".join(digests)).digest()
    sealed = keys.seal_ids(tenant, listed)
    return Asking(tenant, keys.key_digest(tenant, key), content, digests, sealed, submitter, due)


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
    asked = asking(keys, tenant, key=key, ids=ids, submitter=submitter, due=due)
    [found] = take_in(connection, [asked], {tenant: policy})
    if isinstance(found, MismatchError):
        raise found
    return found


def take_in(
    connection: sa.Connection, asked: Sequence[Asking], policies: Mapping[str, Policy]
) -> list[Submitted | MismatchError]:
    """Receive several requests in few statements; gives what became of each."""
    at = now()
    rows = {str(uuid.uuid4()): one for one in asked}
    # In one order, so that two workers who are sent the same keys wait for each other, and not crosswise.
    ordered = sorted(rows.items(), key=lambda pair: (pair[1].tenant, pair[1].key))
    new = {name: _row(name, one, at, policies[one.tenant]) for name, one in ordered}
    connection.execute(_TAKE[connection.dialect.name], list(new.values()))
    held = _by_key(connection, asked)
    mine = {name: one for name, one in rows.items() if held[one.tenant, one.key]["id"] == name}
    if mine:
        digests = [{"request": name, "id": digest} for name, one in mine.items() for digest in one.digests]
        connection.execute(_TAKE_IDS, digests)
        copies = [{"request": name, "sealed": one.sealed} for name, one in mine.items()]
        connection.execute(_TAKE_COPIES, copies)
    for tenant, actor in sorted({(one.tenant, one.submitter) for one in mine.values()}):
        own = {name: one for name, one in mine.items() if (one.tenant, one.submitter) == (tenant, actor)}
        details = {
            name: {
                "count": len(one.digests),
                "row": digest_of(new[name], OF_REQUEST),
                "copy": hashlib.sha256(one.sealed).hexdigest(),
            }
            for name, one in own.items()
        }
        note_all(connection, tenant, "received", details, actor)
    return [_became(name, one, held[one.tenant, one.key]) for name, one in rows.items()]


def _row(name: str, one: Asking, at: datetime, policy: Policy) -> dict[str, Any]:
    latest = at + policy.time
    row: dict[str, Any] = {"id": name, "tenant": one.tenant, "key": one.key, "content": one.content}
    row |= {"state": "received", "held": False, "submitter": one.submitter, "count": len(one.digests), "received": at}
    return {**row, "due": latest if one.due is None else min(one.due, latest)}


def _by_key(connection: sa.Connection, asked: Sequence[Asking]) -> dict[tuple[str, bytes], Mapping[str, Any]]:
    """The rows of these requests, whoever received them."""
    found: dict[tuple[str, bytes], Mapping[str, Any]] = {}
    for tenant in sorted({one.tenant for one in asked}):
        for keys in in_parts(sorted({one.key for one in asked if one.tenant == tenant})):
            rows = connection.execute(_TAKEN, {"of": tenant, "keys": keys}).mappings()
            found |= {(tenant, bytes(row["key"])): dict(row) for row in rows}
    return found


def _became(name: str, one: Asking, row: Mapping[str, Any]) -> Submitted | MismatchError:
    if row["content"] != one.content:
        return MismatchError(
            "This key was used before for a request with other ids. Give a new request a key of its own; to ask again "
            "for the same, send the same ids."
        )
    return Submitted(row["id"], row["state"], row["received"], row["due"], again=row["id"] != name)


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
    jobs = connection.execute(sa.select(TARGETS.c.job).where(TARGETS.c.request == request)).scalars().all()
    if row["state"] == "cancelled":
        return
    # One that no model concerns has nothing that could have begun.
    early = row["state"] in CANCELLABLE or (row["state"] != "closed" and not jobs)
    if not early or any(job is not None for job in jobs):
        raise StateError(
            f"A request can be cancelled until work on it begins, but this one is {row['state']} and in a job. Send "
            "the job's result back instead, or let it be closed."
        )
    ended = {"state": "cancelled", "closed": now()}
    connection.execute(REQUESTS.update().where(REQUESTS.c.id == request).values(**ended))
    connection.execute(TARGETS.delete().where(TARGETS.c.request == request))
    connection.execute(ID_COPIES.delete().where(ID_COPIES.c.request == request))
    release(connection, tenant, request)
    note(connection, tenant, "cancelled", request=request, actor=actor, row=digest_of_ended(connection, row | ended))


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
