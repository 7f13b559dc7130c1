"""Webhooks: programs that a tenant wants told, each with a secret of its own; signed as Standard Webhooks has it."""

import base64
import hashlib
import hmac
import json
import secrets
import uuid
from typing import Any

import sqlalchemy as sa

from spotlessnet.core.errors import SettingError
from spotlessnet.proof import ledger
from spotlessnet.proof.dsse import taken_apart
from spotlessnet.serve.addresses import Allowed, place_of
from spotlessnet.serve.database import DELIVERIES, REQUESTS, WEBHOOKS, row_of, rows_of
from spotlessnet.serve.row_digests import OF_WEBHOOK, digest_of
from spotlessnet.serve.sealing import Keys
from spotlessnet.serve.trail import note, now

PREFIX = "whsec_"
MOST = 20
"""Webhooks of one tenant at most."""


def add_webhook(
    connection: sa.Connection, keys: Keys, tenant: str, url: str, actor: str, allowed: Allowed
) -> tuple[str, str]:
    """A new webhook and its secret, which is told this once."""
    place_of(url, allowed)
    count = sa.select(sa.func.count()).select_from(WEBHOOKS).where(WEBHOOKS.c.tenant == tenant)
    if connection.execute(count).scalar_one() >= MOST:
        raise SettingError(f"A tenant may have {MOST} webhooks at most. Remove one first.")
    secret = secrets.token_bytes(32)
    hook = str(uuid.uuid4())
    values = {"id": hook, "tenant": tenant, "url": url, "secret": keys.seal(tenant, secret), "created": now()}
    connection.execute(WEBHOOKS.insert().values(**values, last=0, failures=0))
    note(connection, tenant, "webhook added", actor=actor, webhook=hook, row=digest_of(values, OF_WEBHOOK))
    return hook, PREFIX + base64.b64encode(secret).decode()


def remove_webhook(connection: sa.Connection, tenant: str, hook: str, actor: str) -> None:
    """Tell it nothing more; what it was still to be told goes too."""
    # Locked first: whoever is about to put a message out for it waits, and then finds it gone.
    query = sa.select(WEBHOOKS.c.id).where(WEBHOOKS.c.tenant == tenant, WEBHOOKS.c.id == hook).with_for_update()
    if row_of(connection, query) is None:
        raise LookupError(hook)
    connection.execute(DELIVERIES.delete().where(DELIVERIES.c.webhook == hook))
    connection.execute(WEBHOOKS.delete().where(WEBHOOKS.c.id == hook))
    note(connection, tenant, "webhook removed", actor=actor, webhook=hook)


def webhooks_of(connection: sa.Connection, tenant: str) -> list[dict[str, Any]]:
    """The webhooks of a tenant, never their secrets; with how much waits for each and how much was given up."""
    waits = sa.func.count(DELIVERIES.c.number).filter(DELIVERIES.c.given_up.is_(None))
    lost = sa.func.count(DELIVERIES.c.given_up)
    shown = [WEBHOOKS.c[name] for name in ("id", "url", "created", "last", "failures", "next", "answer")]
    query = (
        sa.select(*shown, waits.label("waiting"), lost.label("given_up"))
        .outerjoin(DELIVERIES, DELIVERIES.c.webhook == WEBHOOKS.c.id)
        .where(WEBHOOKS.c.tenant == tenant)
        .group_by(*shown)
        .order_by(WEBHOOKS.c.created, WEBHOOKS.c.id)
    )
    return rows_of(connection, query)


def message_of(connection: sa.Connection, delivery: dict[str, Any]) -> tuple[str, bytes]:
    """The id and the body of what a webhook is told: states, times and a digest; never an id of a person."""
    shown = [REQUESTS.c[name] for name in ("id", "received", "due", "closed", "outcome", "entry")]
    request = row_of(connection, sa.select(*shown).where(REQUESTS.c.id == delivery["request"]))
    assert request is not None
    data: dict[str, Any] = {"request": request["id"], "state": delivery["state"]}
    data |= {name: request[name].isoformat(timespec="seconds") for name in ("received", "due")}
    if delivery["state"] in ("closed", "cancelled") and request["closed"] is not None:
        data["closed"] = request["closed"].isoformat(timespec="seconds")
    if delivery["state"] == "closed" and request["entry"] is not None:
        signed = taken_apart(ledger.entry(connection, request["entry"])).payload
        data |= {"outcome": request["outcome"], "entry": request["entry"]}
        data["receipt_sha256"] = hashlib.sha256(signed).hexdigest()
    told = {"type": f"request.{delivery['what'].replace(' ', '_')}", "timestamp": delivery["at"].isoformat()}
    return f"evt_{delivery['event']}_{request['id']}", json.dumps({**told, "data": data}).encode()


def signed_headers(secret: bytes, name: str, body: bytes, at: int) -> dict[str, str]:
    """The headers of a delivery: the signature covers the event's id, the time and the body."""
    code = hmac.digest(secret, f"{name}.{at}.".encode() + body, hashlib.sha256)
    return {
        "Content-Type": "application/json",
        "User-Agent": "spotlessnet-desk",
        "webhook-id": name,
        "webhook-timestamp": str(at),
        "webhook-signature": "v1," + base64.b64encode(code).decode(),
    }
