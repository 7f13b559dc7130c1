"""Which requests are served together: one job for a model at a time, started by deadline or after some waiting."""

import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from spotlessnet.serve.access import policy_of
from spotlessnet.serve.database import JOBS, MODEL_IDS, MODELS, REQUEST_IDS, REQUESTS, TARGETS, rows_of
from spotlessnet.serve.policy import Policy
from spotlessnet.serve.trail import advance, note, now

MOST = 1000
"""Requests in one job at most."""


def start_job(connection: sa.Connection, model: Mapping[str, Any]) -> str | None:
    """Make a job of all requests that wait for a model, if it is free and one of them is ready; gives the job."""
    waiting = _waiting(connection, model["id"])
    if not waiting or not is_ready(waiting, policy_of(connection, model["tenant"])):
        return None
    job = str(uuid.uuid4())
    free = MODELS.update().where(MODELS.c.id == model["id"], MODELS.c.job.is_(None))
    if not connection.execute(free.values(job=job)).rowcount:
        return None  # another worker was first
    asked = [row["id"] for row in waiting]
    left = [name for name in asked if _holds(connection, model["id"], name)]
    for name in set(asked) - set(left):
        served_before(connection, model, name)
    if not left:
        connection.execute(MODELS.update().where(MODELS.c.id == model["id"]).values(job=None))
        return None
    values = {"id": job, "tenant": model["tenant"], "model": model["id"], "state": "planned", "attempt": 1}
    settings = dict(model["settings"])
    once = settings.pop("next_method", None)  # where a person sent a result back and named another method
    connection.execute(MODELS.update().where(MODELS.c.id == model["id"]).values(settings=settings))
    values |= {"base": model["version"], "method": once or settings.get("method"), "created": now()}
    connection.execute(JOBS.insert().values(**values))
    chosen = sa.and_(TARGETS.c.model == model["id"], TARGETS.c.request.in_(left))
    connection.execute(TARGETS.update().where(chosen).values(job=job, state="planned"))
    for name in left:
        advance(connection, name)
    note(connection, model["tenant"], "planned", job=job, model=model["name"], together=len(left))
    return job


def _waiting(connection: sa.Connection, model: str) -> list[dict[str, Any]]:
    query = (
        sa.select(REQUESTS.c.id, REQUESTS.c.due, REQUESTS.c.received)
        .join(TARGETS, TARGETS.c.request == REQUESTS.c.id)
        .where(TARGETS.c.model == model, TARGETS.c.state == "matched", REQUESTS.c.held.is_(False))
        .order_by(REQUESTS.c.due, REQUESTS.c.id)
        .limit(MOST)
    )
    return rows_of(connection, query)


def is_ready(waiting: Sequence[Mapping[str, Any]], policy: Policy) -> bool:
    """Whether to begin: the first to come has waited for others long enough, or the first one due is urgent."""
    at = now()
    first = min(row["received"] for row in waiting)
    urgent = min(row["due"] for row in waiting) - policy.warning
    return len(waiting) >= MOST or at >= first + timedelta(minutes=policy.batch_minutes) or at >= urgent


def _holds(connection: sa.Connection, model: str, request: str) -> bool:
    asked = sa.select(REQUEST_IDS.c.id).where(REQUEST_IDS.c.request == request)
    query = sa.select(MODEL_IDS.c.id).where(MODEL_IDS.c.model == model, MODEL_IDS.c.id.in_(asked)).limit(1)
    return connection.execute(query).first() is not None


def served_before(connection: sa.Connection, model: Mapping[str, Any], request: str) -> None:
    """Another request that was published meanwhile has removed all that this one asks for."""
    chosen = sa.and_(TARGETS.c.model == model["id"], TARGETS.c.request == request)
    connection.execute(TARGETS.update().where(chosen).values(state="destroyed"))
    advance(connection, request)
    note(connection, model["tenant"], "served before", request=request, model=model["name"], version=model["version"])


def requests_of(connection: sa.Connection, job: str) -> list[str]:
    """The requests that a job serves."""
    return list(connection.execute(sa.select(TARGETS.c.request).where(TARGETS.c.job == job)).scalars())


def reach(connection: sa.Connection, job: str, state: str) -> None:
    """Set a job and the requests in it to a state."""
    connection.execute(JOBS.update().where(JOBS.c.id == job).values(state=state, message=None))
    connection.execute(TARGETS.update().where(TARGETS.c.job == job).values(state=state))
    for request in requests_of(connection, job):
        advance(connection, request)


def hand_back(connection: sa.Connection, job: Mapping[str, Any], state: str) -> None:
    """End a job without a result: its requests wait for the next one, and the model is free."""
    requests = requests_of(connection, job["id"])
    connection.execute(JOBS.update().where(JOBS.c.id == job["id"]).values(state=state))
    connection.execute(TARGETS.update().where(TARGETS.c.job == job["id"]).values(state="matched", job=None))
    connection.execute(MODELS.update().where(MODELS.c.job == job["id"]).values(job=None))
    for request in requests:
        advance(connection, request)
