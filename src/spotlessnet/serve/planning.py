"""Which requests are served together: one job for a model at a time, started by deadline or after some waiting."""

import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from spotlessnet.serve.access import policy_of
from spotlessnet.serve.database import (
    JOBS,
    MODEL_IDS,
    MODELS,
    REQUEST_IDS,
    REQUESTS,
    TARGETS,
    in_parts,
    row_of,
    rows_of,
)
from spotlessnet.serve.policy import Policy
from spotlessnet.serve.row_digests import OF_JOB, digest_of
from spotlessnet.serve.trail import advance, note, note_all, now

WAITS_AGAIN = "waits again"
"""The event of a request whose job ended without a result."""

MOST = 1000
"""Requests in one job at most."""


def start_job(connection: sa.Connection, name: str) -> str | None:
    """Make a job of all requests that wait for a model, if it is free and one of them is ready; gives the job.

    **Arguments:**

    - `name`: the model's id. Its row is read here and locked: the version that counts is the one at this moment.
    """
    model = row_of(connection, sa.select(MODELS).where(MODELS.c.id == name).with_for_update())
    if model is None or model["job"] is not None:
        return None  # another worker was first
    waiting = _waiting(connection, model["id"])
    if not waiting or not is_ready(waiting, policy_of(connection, model["tenant"])):
        return None
    asked = [row["id"] for row in waiting]
    left = sorted(_holding(connection, model["id"], asked))
    served_before(connection, model, sorted(set(asked) - set(left)))
    if not left:
        return None
    job = str(uuid.uuid4())
    values = {"id": job, "tenant": model["tenant"], "model": model["id"], "state": "planned", "attempt": 1}
    settings = dict(model["settings"])
    once = settings.pop("next_method", None)  # where a person sent a result back and named another method
    connection.execute(MODELS.update().where(MODELS.c.id == model["id"]).values(settings=settings, job=job))
    values |= {"base": model["version"], "method": once or settings.get("method"), "created": now()}
    connection.execute(JOBS.insert().values(**values))
    for some in in_parts(left):
        chosen = sa.and_(TARGETS.c.model == model["id"], TARGETS.c.request.in_(some))
        connection.execute(TARGETS.update().where(chosen).values(job=job, state="planned"))
    advance(connection, left)
    told = {"model": model["name"], "together": len(left), "row": digest_of(values, OF_JOB)}
    note(connection, model["tenant"], "planned", job=job, **told, method=values["method"])
    return job


def _waiting(connection: sa.Connection, model: str) -> list[dict[str, Any]]:
    query = (
        sa.select(REQUESTS.c.id, REQUESTS.c.due, REQUESTS.c.received)
        .join(TARGETS, TARGETS.c.request == REQUESTS.c.id)
        .where(TARGETS.c.model == model, TARGETS.c.state == "matched", REQUESTS.c.held.is_(False))
        .order_by(REQUESTS.c.due, REQUESTS.c.id)
        .limit(MOST)
        # Whoever is being cancelled or put on hold at this moment is not taken along.
        .with_for_update(of=REQUESTS, skip_locked=True)
    )
    return rows_of(connection, query)


def is_ready(waiting: Sequence[Mapping[str, Any]], policy: Policy) -> bool:
    """Whether to begin: the first to come has waited for others long enough, or the first one due is urgent."""
    at = now()
    first = min(row["received"] for row in waiting)
    # Added to today, which both can bear: taken from a date in the year 1 it would end every round of the desk.
    is_urgent = at + policy.warning >= min(row["due"] for row in waiting)
    return len(waiting) >= MOST or at >= first + timedelta(minutes=policy.batch_minutes) or is_urgent


def _holding(connection: sa.Connection, model: str, requests: Sequence[str]) -> set[str]:
    """Those of these requests that ask for somebody whom a model holds."""
    held = sa.select(MODEL_IDS.c.id).where(MODEL_IDS.c.model == model)
    found: set[str] = set()
    for some in in_parts(requests):
        query = sa.select(REQUEST_IDS.c.request).where(REQUEST_IDS.c.request.in_(some), REQUEST_IDS.c.id.in_(held))
        found.update(connection.execute(query).scalars())
    return found


def served_before(connection: sa.Connection, model: Mapping[str, Any], requests: Sequence[str]) -> None:
    """Another request that was published meanwhile has removed all that these ask for."""
    told = {"model": model["name"], "version": model["version"]}
    for some in in_parts(requests):
        chosen = sa.and_(TARGETS.c.model == model["id"], TARGETS.c.request.in_(some))
        connection.execute(TARGETS.update().where(chosen).values(state="destroyed"))
        note_all(connection, model["tenant"], "served before", dict.fromkeys(some, told))
    advance(connection, requests)


def requests_of(connection: sa.Connection, job: str) -> list[str]:
    """The requests that a job serves."""
    return list(connection.execute(sa.select(TARGETS.c.request).where(TARGETS.c.job == job)).scalars())


def reach(connection: sa.Connection, job: str, state: str) -> None:
    """Set a job and the requests in it to a state."""
    connection.execute(JOBS.update().where(JOBS.c.id == job).values(state=state, message=None))
    connection.execute(TARGETS.update().where(TARGETS.c.job == job).values(state=state))
    advance(connection, requests_of(connection, job))


def hand_back(connection: sa.Connection, job: Mapping[str, Any], state: str) -> None:
    """End a job without a result: its requests wait for the next one, and the model is free."""
    requests = requests_of(connection, job["id"])
    connection.execute(JOBS.update().where(JOBS.c.id == job["id"]).values(state=state))
    connection.execute(TARGETS.update().where(TARGETS.c.job == job["id"]).values(state="matched", job=None))
    connection.execute(MODELS.update().where(MODELS.c.job == job["id"]).values(job=None))
    advance(connection, requests)
    note(connection, job["tenant"], state, job=job["id"], row=ended_row(connection, job["id"]))
    # Of request and job: they part here, and the timeline and the receipt must still tell of the job.
    note_all(connection, job["tenant"], WAITS_AGAIN, {one: {} for one in requests}, job=job["id"])


def ended_row(connection: sa.Connection, job: str) -> str:
    """The digest of a job at its end."""
    found = row_of(connection, sa.select(JOBS).where(JOBS.c.id == job))
    assert found is not None
    return digest_of(found)
