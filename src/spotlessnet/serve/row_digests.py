"""Digests of rows, which events carry: with the trail in the ledger, every row that such an event tells of is too."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from spotlessnet.serve.database import MODEL_IDS, TARGETS

OF_REQUEST = ("id", "tenant", "key", "content", "submitter", "count", "received", "due")
OF_JOB = ("id", "tenant", "model", "base", "created")
OF_MODEL = ("id", "tenant", "name", "kind", "created")
OF_VERSION = ("model", "number", "folder", "network", "job", "verdict", "published")
OF_TOKEN = ("id", "tenant", "name", "digest", "scopes", "created", "expires")
OF_TENANT = ("id", "name", "created")
OF_WEBHOOK = ("id", "tenant", "url", "secret", "created")
"""Columns that stay as they were made; the others are told by later events, or by the digest of the row at its end."""

NEXT_METHOD = "next_method"
"""The one setting of a model that changes: named by a person who sent a result back, gone with the next job."""


def spelled(value: Any) -> Any:
    """A value as JSON has it, in one spelling on every database."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    return value


def digest_of(row: Mapping[str, Any], columns: Iterable[str] | None = None, **more: Any) -> str:
    """SHA-256 of some columns of a row, of all unless said, and of what belongs to it."""
    names = row.keys() if columns is None else columns
    told = {name: spelled(row.get(name)) for name in names} | more
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of_model(row: Mapping[str, Any]) -> str:
    """Of a model as it was registered."""
    return digest_of(row, OF_MODEL, settings={k: v for k, v in row["settings"].items() if k != NEXT_METHOD})


def digest_of_ended(connection: sa.Connection, request: Mapping[str, Any]) -> str:
    """Of a request at its end, with the jobs that served it."""
    query = sa.select(TARGETS.c.model, TARGETS.c.job, TARGETS.c.state).where(TARGETS.c.request == request["id"])
    served = sorted(list(one) for one in connection.execute(query))
    return digest_of(request, served=served)


def digest_of_people(connection: sa.Connection, model: str) -> str:
    """Of whom a model holds, by their keyed digests."""
    query = sa.select(MODEL_IDS.c.id, MODEL_IDS.c.examples).where(MODEL_IDS.c.model == model).order_by(MODEL_IDS.c.id)
    found = hashlib.sha256()
    for one, examples in connection.execute(query):
        found.update(bytes(one) + int(examples).to_bytes(8, "big"))
    return found.hexdigest()
