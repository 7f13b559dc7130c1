"""What webhooks must be told, written in the transaction of what happened: a kill loses none of it."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from spotlessnet.serve.database import DELIVERIES, REQUESTS, TARGETS, WEBHOOKS


def webhooks_of(connection: sa.Connection, tenant: str) -> list[str]:
    """The webhooks of a tenant, by id."""
    return list(connection.execute(sa.select(WEBHOOKS.c.id).where(WEBHOOKS.c.tenant == tenant)).scalars())


def put_out(
    connection: sa.Connection,
    tenant: str,
    what: str,
    *,
    event: int,
    at: datetime,
    request: str | None,
    job: str | None,
) -> None:
    """Let every webhook of the tenant be told of an event, once for each request that it concerns."""
    # Held until the end, so that none is removed before the messages to it are there: they would lead nowhere.
    query = sa.select(WEBHOOKS.c.id).where(WEBHOOKS.c.tenant == tenant).order_by(WEBHOOKS.c.id)
    hooks = list(connection.execute(query.with_for_update(read=True, key_share=True)).scalars())
    if not hooks:
        return
    about = REQUESTS.c.id == request
    if request is None:
        about = REQUESTS.c.id.in_(sa.select(TARGETS.c.request).where(TARGETS.c.job == job))
    concerned = sa.select(REQUESTS.c.id, REQUESTS.c.state).where(REQUESTS.c.tenant == tenant, about)
    told: dict[str, Any] = {"event": event, "what": what, "at": at, "attempts": 0}
    rows = [
        {"webhook": hook, "request": one, "state": state, **told}
        for one, state in connection.execute(concerned).all()
        for hook in hooks
    ]
    if rows:
        connection.execute(DELIVERIES.insert(), rows)
