"""From ids to models: which registered trainings saw whom, told by keyed digests; and who must not be trained on."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from spotlessnet.core.errors import SettingError
from spotlessnet.serve.database import (
    MODEL_IDS,
    MODELS,
    REQUEST_IDS,
    REQUESTS,
    SUPPRESSIONS,
    TARGETS,
    VERSIONS,
    in_parts,
    row_of,
    rows_of,
)
from spotlessnet.serve.row_digests import OF_VERSION, digest_of, digest_of_model, digest_of_people
from spotlessnet.serve.sealing import Keys
from spotlessnet.serve.trail import StateError, note, note_all, now

KINDS = ("recorded", "forgettable")
LONGEST_METHOD = 80
"""Characters of a method's name."""


def register(
    connection: sa.Connection,
    keys: Keys,
    tenant: str,
    name: str,
    kind: str,
    settings: Mapping[str, Any],
    found: Mapping[str, Any],
    actor: str,
) -> str:
    """Write a training into the registry, with the keyed digest of every id that it saw.

    **Arguments:**

    - `found`: what the engine read from it: `ids` with how many examples each has, `network` (SHA-256), `folder`.
    """
    if kind not in KINDS:
        raise SettingError(f"A model's kind must be {' or '.join(KINDS)}, but got {kind[:40]!r}.")
    check_name(name)
    check_method(settings.get("method"))
    if model_named(connection, tenant, name) is not None:
        raise StateError(f"There is a model {name!r} already. Choose another name.")
    model = str(uuid.uuid4())
    at = now()
    values = {"id": model, "tenant": tenant, "name": name, "kind": kind, "settings": dict(settings), "version": 0}
    values["created"] = at
    connection.execute(MODELS.insert().values(**values))
    version = {"model": model, "number": 0, "folder": found["folder"], "network": found["network"]}
    version["published"] = at
    connection.execute(VERSIONS.insert().values(**version))
    listed = [{"model": model, "id": keys.id_digest(tenant, one), "examples": n} for one, n in found["ids"]]
    connection.execute(MODEL_IDS.insert(), listed)
    told = {"id": model, "model": name, "people": len(listed), "network": found["network"]}
    told |= {"row": digest_of_model(values), "version_row": digest_of(version, OF_VERSION)}
    note(connection, tenant, "model registered", actor=actor, **told, held=digest_of_people(connection, model))
    return model


def check_name(name: str) -> None:
    """Raise unless a name can be that of a model: it becomes the name of a folder."""
    if not 1 <= len(name) <= 80 or not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
        raise SettingError("A model's name must be 1 to 80 letters, digits, - and _, but is not. Choose another.")


def check_method(name: Any) -> None:
    """Raise unless this can be the name of a method: a job that cannot be written would keep its model waiting."""
    if name is not None and not (isinstance(name, str) and 1 <= len(name) <= LONGEST_METHOD and name.isprintable()):
        raise SettingError(f"A method's name must have 1 to {LONGEST_METHOD} printable characters.")


def model_named(connection: sa.Connection, tenant: str, name: str) -> dict[str, Any] | None:
    """A model by its name."""
    return row_of(connection, sa.select(MODELS).where(MODELS.c.tenant == tenant, MODELS.c.name == name))


def lineage_of(connection: sa.Connection, model: str) -> list[dict[str, Any]]:
    """All versions of a model, the first one first."""
    return rows_of(connection, sa.select(VERSIONS).where(VERSIONS.c.model == model).order_by(VERSIONS.c.number))


def match(connection: sa.Connection, requests: Sequence[Mapping[str, Any]]) -> None:
    """Find the models that saw the ids of received requests. From now on nobody trains on them.

    **Arguments:**

    - `requests`: some hundred rows at most, locked where the database can.
    """
    names = [one["id"] for one in requests]
    suppress(connection, names)
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    targets = []
    for (request, model), (name, people, examples) in sorted(_seen(connection, requests).items()):
        told[request].append({"model": name, "people": people, "examples": examples})
        targets.append({"request": request, "model": model, "state": "matched"})
    if targets:
        connection.execute(TARGETS.insert(), targets)
    # Where no model saw anybody, there is nothing left to destroy: such a request is closed next.
    states = {
        "matched": [name for name in names if told[name]],
        "destroyed": [name for name in names if not told[name]],
    }
    for state, some in states.items():
        connection.execute(REQUESTS.update().where(REQUESTS.c.id.in_(some)).values(state=state))
    for tenant in sorted({one["tenant"] for one in requests}):
        own = [one for one in requests if one["tenant"] == tenant]
        details = {one["id"]: {"models": told[one["id"]], "asked": one["count"]} for one in own}
        note_all(connection, tenant, "matched", details)


def _seen(
    connection: sa.Connection, requests: Sequence[Mapping[str, Any]]
) -> dict[tuple[str, str], tuple[str, int, int]]:
    """By request and model: the model's name, and how many of the people asked for it saw, with how many examples."""
    tenants = {one["id"]: one["tenant"] for one in requests}
    asked = sa.select(REQUEST_IDS.c.id, REQUEST_IDS.c.request).where(REQUEST_IDS.c.request.in_(list(tenants)))
    askers: dict[bytes, list[str]] = {}
    for digest, request in connection.execute(asked):
        askers.setdefault(bytes(digest), []).append(request)
    models = {row["id"]: row for row in rows_of(connection, sa.select(MODELS.c.id, MODELS.c.tenant, MODELS.c.name))}
    found: dict[tuple[str, str], tuple[str, int, int]] = {}
    # By the ids that are asked for, in parts: a join would make SQLite walk through everybody whom a model holds.
    for some in in_parts(sorted(askers)):
        held = sa.select(MODEL_IDS.c.id, MODEL_IDS.c.model, MODEL_IDS.c.examples).where(MODEL_IDS.c.id.in_(some))
        for digest, model, examples in connection.execute(held):
            for request in askers[bytes(digest)]:
                if models[model]["tenant"] == tenants[request]:
                    _, people, before = found.get((request, model), ("", 0, 0))
                    found[request, model] = (models[model]["name"], people + 1, before + examples)
    return found


def suppress(connection: sa.Connection, requests: Sequence[str]) -> None:
    """Put the ids of requests on the list that the next training reads; those that are on it stay."""
    since = sa.literal(now(), SUPPRESSIONS.c.since.type)
    asked = (
        sa.select(REQUESTS.c.tenant, REQUEST_IDS.c.id, since)
        .join(REQUEST_IDS, REQUEST_IDS.c.request == REQUESTS.c.id)
        .where(REQUESTS.c.id.in_(requests))
        # In one order, so that two workers who list the same people wait for each other, and not crosswise.
        .order_by(REQUESTS.c.tenant, REQUEST_IDS.c.id)
        .distinct()
    )
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    connection.execute(insert(SUPPRESSIONS).from_select(["tenant", "id", "since"], asked).on_conflict_do_nothing())


def release(connection: sa.Connection, tenant: str, request: str) -> None:
    """Take the ids of a cancelled request off that list, unless another request names them."""
    other = (
        sa.select(REQUEST_IDS.c.id)
        .join(REQUESTS, REQUESTS.c.id == REQUEST_IDS.c.request)
        .where(REQUESTS.c.tenant == tenant, REQUESTS.c.id != request, REQUESTS.c.state != "cancelled")
    )
    own = sa.select(REQUEST_IDS.c.id).where(REQUEST_IDS.c.request == request)
    gone = SUPPRESSIONS.delete().where(SUPPRESSIONS.c.tenant == tenant, SUPPRESSIONS.c.id.in_(own))
    connection.execute(gone.where(SUPPRESSIONS.c.id.not_in(other)))


def suppressed(connection: sa.Connection, tenant: str) -> list[bytes]:
    """The keyed digests of all ids that must not be trained on."""
    query = sa.select(SUPPRESSIONS.c.id).where(SUPPRESSIONS.c.tenant == tenant).order_by(SUPPRESSIONS.c.id)
    return list(connection.execute(query).scalars())


def gone_from(connection: sa.Connection, tenant: str, model: str) -> list[bytes]:
    """Suppressed ids that a model no longer holds: the rows of its recorded training are those without them."""
    held = sa.select(MODEL_IDS.c.id).where(MODEL_IDS.c.model == model)
    query = sa.select(SUPPRESSIONS.c.id).where(SUPPRESSIONS.c.tenant == tenant, SUPPRESSIONS.c.id.not_in(held))
    return list(connection.execute(query).scalars())


def kept_by(connection: sa.Connection, tenant: str) -> dict[str, int]:
    """By model, how many people it holds who asked to be forgotten, and whom no open request would take out of it.

    So it is where a training was registered after their requests had been matched: nobody looks for them in it again.
    """
    asked = (
        sa.select(REQUEST_IDS.c.id)
        .join(TARGETS, TARGETS.c.request == REQUEST_IDS.c.request)
        .where(TARGETS.c.model == MODEL_IDS.c.model, REQUEST_IDS.c.id == MODEL_IDS.c.id, TARGETS.c.state != "closed")
    )
    query = (
        sa.select(MODEL_IDS.c.model, sa.func.count())
        .join(MODELS, MODELS.c.id == MODEL_IDS.c.model)
        .join(SUPPRESSIONS, sa.and_(SUPPRESSIONS.c.tenant == MODELS.c.tenant, SUPPRESSIONS.c.id == MODEL_IDS.c.id))
        .where(MODELS.c.tenant == tenant, ~asked.exists())
        .group_by(MODEL_IDS.c.model)
    )
    return {model: int(count) for model, count in connection.execute(query)}


def held_of(connection: sa.Connection, model: str, job: str) -> set[bytes]:
    """The ids that the requests of a job ask for and that its model holds."""
    query = (
        sa.select(MODEL_IDS.c.id)
        .join(REQUEST_IDS, REQUEST_IDS.c.id == MODEL_IDS.c.id)
        .join(TARGETS, sa.and_(TARGETS.c.request == REQUEST_IDS.c.request, TARGETS.c.model == MODEL_IDS.c.model))
        .where(MODEL_IDS.c.model == model, TARGETS.c.job == job)
    )
    return set(connection.execute(query).scalars())


def forget_ids(connection: sa.Connection, model: str, ids: set[bytes]) -> None:
    """Note that a model no longer holds these ids: its new version was made without them."""
    for some in in_parts(sorted(ids)):
        connection.execute(MODEL_IDS.delete().where(MODEL_IDS.c.model == model, MODEL_IDS.c.id.in_(some)))
