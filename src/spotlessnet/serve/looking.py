"""What pages and callers see: requests by date, one request with all that belongs to it, models with their lineage."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from spotlessnet.serve.database import JOBS, MODEL_IDS, MODELS, REQUESTS, TARGETS, row_of, rows_of
from spotlessnet.serve.matching import kept_by, lineage_of
from spotlessnet.serve.trail import ENDED, OPEN, events_of, now

PAGE = 50
KINDS = ("open", "late", "closed", "all")


def plain(value: Any) -> Any:
    """A row as JSON has it: times as text, digests in hexadecimal."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    return value.hex() if isinstance(value, bytes) else value


SHOWN = [REQUESTS.c[name] for name in
         ("id", "state", "held", "count", "received", "due", "closed", "outcome", "entry")]  # fmt: skip


def _chosen(tenant: str, kind: str) -> sa.ColumnElement[bool]:
    own = REQUESTS.c.tenant == tenant
    if kind == "open":
        return sa.and_(own, REQUESTS.c.state.in_(OPEN))
    if kind == "late":
        return sa.and_(own, REQUESTS.c.state.in_(OPEN), REQUESTS.c.due < now())
    return sa.and_(own, REQUESTS.c.state.in_(ENDED)) if kind == "closed" else own


def requests_in(
    connection: sa.Connection, tenant: str, kind: str = "open", after: str | None = None, limit: int = PAGE
) -> list[dict[str, Any]]:
    """Requests of a kind by their date, from the one after `after` on: a page takes as long however many there are."""
    query = sa.select(*SHOWN).where(_chosen(tenant, kind))
    if after is not None:
        own = sa.and_(REQUESTS.c.tenant == tenant, REQUESTS.c.id == after)
        last = row_of(connection, sa.select(REQUESTS.c.due, REQUESTS.c.id).where(own))
        if last is not None:
            later = sa.and_(REQUESTS.c.due == last["due"], REQUESTS.c.id > after)
            query = query.where(sa.or_(REQUESTS.c.due > last["due"], later))
    return rows_of(connection, query.order_by(REQUESTS.c.due, REQUESTS.c.id).limit(limit))


def counts_of(connection: sa.Connection, tenant: str) -> dict[str, int]:
    """How many requests there are in each state, and how many of the open ones are late."""
    query = sa.select(REQUESTS.c.state, sa.func.count()).where(REQUESTS.c.tenant == tenant).group_by(REQUESTS.c.state)
    found = {state: int(count) for state, count in connection.execute(query).all()}
    late = sa.select(sa.func.count()).select_from(REQUESTS).where(_chosen(tenant, "late"))
    return {**found, "late": int(connection.execute(late).scalar_one())}


def soon_due(connection: sa.Connection, tenant: str, until: datetime) -> int:
    """How many open requests are due before a time, and not late yet."""
    near = sa.and_(REQUESTS.c.tenant == tenant, REQUESTS.c.state.in_(OPEN), REQUESTS.c.due.between(now(), until))
    return int(connection.execute(sa.select(sa.func.count()).select_from(REQUESTS).where(near)).scalar_one())


def failed_among(connection: sa.Connection, requests: list[str]) -> set[str]:
    """Those of these requests whose job failed, so that somebody must look."""
    query = sa.select(TARGETS.c.request).join(JOBS, JOBS.c.id == TARGETS.c.job)
    chosen = query.where(TARGETS.c.request.in_(requests), JOBS.c.state == "failed")
    return set(connection.execute(chosen).scalars())


def failed_jobs(connection: sa.Connection, tenant: str) -> int:
    """How many jobs wait for a person since they failed."""
    query = sa.select(sa.func.count()).select_from(JOBS).where(JOBS.c.tenant == tenant, JOBS.c.state == "failed")
    return int(connection.execute(query).scalar_one())


def request_of(connection: sa.Connection, tenant: str, request: str) -> dict[str, Any]:
    """One request with its models, jobs and timeline; `LookupError` where the tenant has none such."""
    found = row_of(connection, sa.select(*SHOWN).where(REQUESTS.c.tenant == tenant, REQUESTS.c.id == request))
    if found is None:
        raise LookupError(request)
    query = (
        sa.select(MODELS.c.name.label("model"), TARGETS.c.state, TARGETS.c.job)
        .join(MODELS, MODELS.c.id == TARGETS.c.model)
        .where(TARGETS.c.request == request)
        .order_by(MODELS.c.name)
    )
    targets = rows_of(connection, query)
    jobs = [job_of(connection, tenant, one["job"]) for one in targets if one["job"] is not None]
    events = [
        {name: one[name] for name in ("number", "at", "actor", "what", "job", "detail")}
        for one in events_of(connection, tenant, request)
    ]
    return {**found, "models": targets, "jobs": jobs, "events": events}


def news_of(connection: sa.Connection, tenant: str, request: str, after: int) -> tuple[str, list[dict[str, Any]]]:
    """The state of a request, and its events after a number; `LookupError` where the tenant has none such."""
    state = connection.execute(
        sa.select(REQUESTS.c.state).where(REQUESTS.c.tenant == tenant, REQUESTS.c.id == request)
    ).scalar()
    if state is None:
        raise LookupError(request)
    return str(state), events_of(connection, tenant, request, after)


def job_of(connection: sa.Connection, tenant: str, job: str) -> dict[str, Any]:
    """One job; `LookupError` where the tenant has none such."""
    query = sa.select(JOBS, MODELS.c.name.label("name")).join(MODELS, MODELS.c.id == JOBS.c.model)
    found = row_of(connection, query.where(JOBS.c.tenant == tenant, JOBS.c.id == job))
    if found is None:
        raise LookupError(job)
    found.pop("tenant")
    return found


def models_of(connection: sa.Connection, tenant: str) -> list[dict[str, Any]]:
    """The models of a tenant, with how many people each holds and its lineage."""
    query = (
        sa.select(MODELS, sa.func.count(MODEL_IDS.c.id).label("people"))
        .outerjoin(MODEL_IDS, MODEL_IDS.c.model == MODELS.c.id)
        .where(MODELS.c.tenant == tenant)
        .group_by(MODELS.c.id)
        .order_by(MODELS.c.name)
    )
    found = rows_of(connection, query)
    kept = kept_by(connection, tenant)
    for one in found:
        one.pop("tenant")
        one["asked_before"] = kept.get(one["id"], 0)
        one["versions"] = [
            {name: v[name] for name in ("number", "network", "verdict", "published", "destroyed", "job")}
            for v in lineage_of(connection, one["id"])
        ]
    return found
