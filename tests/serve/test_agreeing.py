"""Tables beside the ledger: after whatever the desk itself did they agree with it, and an edit by hand is found."""

import contextlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from spotlessnet.serve import replaying, workflow
from spotlessnet.serve.access import add_token, revoke_token, set_policy
from spotlessnet.serve.addresses import Allowed
from spotlessnet.serve.agreeing import agreement
from spotlessnet.serve.database import (
    EVENTS,
    JOBS,
    MODEL_IDS,
    MODELS,
    REQUEST_IDS,
    REQUESTS,
    SUPPRESSIONS,
    TARGETS,
    TENANTS,
    TOKENS,
    VERSIONS,
    WEBHOOKS,
    reading,
    rows_of,
)
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.intake import cancel, hold, submit
from spotlessnet.serve.trail import note
from spotlessnet.serve.webhooks import add_webhook, remove_webhook
from tests.serve.conftest import BY_PERSON, BY_RULE, model_of, new_tenant
from tests.serve.stand_in import StandIn

FACTS: dict[sa.Table, tuple[str, ...]] = {
    REQUESTS: ("key", "content", "state", "held", "submitter", "count", "received", "due", "closed", "entry",
               "outcome", "tenant"),
    JOBS: ("state", "attempt", "base", "method", "plan", "verdict", "reason", "network", "receipt", "decided_by",
           "created", "model", "tenant"),
    MODELS: ("tenant", "name", "kind", "settings", "version", "job", "created"),
    VERSIONS: ("number", "folder", "network", "job", "verdict", "published", "destroyed"),
    EVENTS: ("tenant", "request", "job", "at", "actor", "what", "detail", "code", "checkpoint"),
    TOKENS: ("name", "digest", "scopes", "created", "expires", "revoked", "tenant"),
    TENANTS: ("name", "policy", "created"),
    WEBHOOKS: ("url", "secret", "created", "tenant"),
    TARGETS: ("state", "job", "model"),
    MODEL_IDS: ("id", "examples"),
    REQUEST_IDS: ("id",),
    SUPPRESSIONS: ("id",),
}  # fmt: skip
"""Columns that say something after their moment."""


def send(desk: Desk, tenant: str, key: str, ids: list[str]) -> str:
    with desk.database.begin() as connection:
        return submit(connection, desk.keys, tenant, BY_RULE, key=key, ids=ids, submitter="test").id


def work(desk: Desk) -> None:
    """One round, and the workflows that are due, here and now."""
    for _ in range(3):
        for name, job, _ in desk.round():
            steps = {
                "make": (workflow.plan, workflow.scrub, workflow.judge),
                "finish": (workflow.put_out, workflow.clear_away, workflow.close),
                "withdraw": (workflow.take_back,),
            }
            for step in steps[name]:
                step(job)


def lived(folder: Path) -> Desk:
    """A desk on which everything was done that can be done."""
    desk = Desk.at(folder / "desk", engine=StandIn(), webhooks_to=Allowed.of(["127.0.0.0/8"]))
    workflow._AT_WORK[:] = [desk]
    one, other = new_tenant(desk, "one", BY_RULE), new_tenant(desk, "other", BY_PERSON)
    with desk.database.begin() as connection:
        add_webhook(connection, desk.keys, one.id, "http://127.0.0.1:9/", "test", desk.webhooks_to)
        gone, _ = add_webhook(connection, desk.keys, one.id, "http://127.0.0.1:9/x", "test", desk.webhooks_to)
        remove_webhook(connection, one.id, gone, "test")
        add_token(connection, one.id, "to end", ["read"])
        ended = connection.execute(sa.select(TOKENS.c.id).where(TOKENS.c.name == "to end")).scalar_one()
        revoke_token(connection, one.id, ended, "test")
    for tenant, name in ((one, "digits"), (one, "faces"), (other, "voices")):
        model_of(desk, tenant, folder / name, name=name)
    send(desk, one.id, "1", ["ann", "nobody"])
    send(desk, one.id, "2", ["nobody"])
    send(desk, other.id, "3", ["bob"])
    work(desk)
    by = {row["tenant"]: row["id"] for row in jobs(desk, "audited")}
    workflow.decide(desk, other.id, by[other.id], "somebody", approve=False, why="again", method="retrain")
    work(desk)
    send(desk, other.id, "4", ["cy"])
    taken_back, held = send(desk, one.id, "5", ["di"]), send(desk, one.id, "6", ["eve"])
    with desk.database.begin() as connection:
        cancel(connection, one.id, taken_back, "test")
        hold(connection, one.id, held, "test", held=True)
        set_policy(connection, one.id, BY_PERSON, "test")
    work(desk)
    [job] = [row["id"] for row in jobs(desk, "audited")]
    workflow.decide(desk, other.id, job, "somebody", approve=True)
    work(desk)
    send(desk, one.id, "7", ["fay"])
    work(desk)
    [job] = [row["id"] for row in jobs(desk, "audited") if row["tenant"] == one.id][:1]
    replaying.ask(desk, one.id, job, "test")
    workflow.fail(job, "The disk is full.", "make", 2)
    workflow.retry(desk, one.id, job, "test")
    work(desk)
    send(desk, one.id, "8", ["gil"])
    desk.round()  # matched, and waits for the job before it
    return desk


def jobs(desk: Desk, state: str) -> list[dict[str, Any]]:
    with reading(desk.database) as connection:
        return rows_of(connection, sa.select(JOBS).where(JOBS.c.state == state))


def found_in(desk: Desk) -> tuple[str, ...]:
    with reading(desk.database, at_one_moment=True) as connection:
        return agreement(connection).mistakes


@pytest.fixture(scope="module")
def busy(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("busy")
    desk = lived(folder)
    desk.check_in()
    desk.close()
    workflow._AT_WORK.clear()
    return folder / "desk"


def test_all_that_a_desk_does_agrees_with_its_ledger_at_every_moment(tmp_path):
    desk = lived(tmp_path)
    assert found_in(desk) == ()
    desk.check_in()
    assert found_in(desk) == ()
    with reading(desk.database) as connection:
        told = agreement(connection)
        states = set(connection.execute(sa.select(REQUESTS.c.state)).scalars())
    assert (told.newest, told.events > 50) == (0, True)
    assert {"closed", "cancelled", "audited", "received"} <= states
    desk.close()
    workflow._AT_WORK.clear()


Change = Callable[[sa.Connection, random.Random], str]


def same(table: sa.Table, row: Any) -> Any:
    return sa.and_(*(column == row[column.name] for column in table.primary_key))


def rows_in(connection: sa.Connection, table: sa.Table) -> list[dict[str, Any]]:
    return rows_of(connection, sa.select(table).order_by(*table.primary_key))


def edited(value: Any, rng: random.Random) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice([-1, 1, 7])
    if isinstance(value, bytes):
        place = rng.randrange(len(value))
        return value[:place] + bytes([value[place] ^ 1 << rng.randrange(8)]) + value[place + 1 :]
    if isinstance(value, str):
        return rng.choice([value + "x", value[:-1], "closed" if value != "closed" else "received"])
    if isinstance(value, dict):
        return {**value, "more": rng.random()}
    if value is None:
        return None
    return value.replace(microsecond=(value.microsecond + 1 + rng.randrange(10**5)) % 10**6)


def edit(connection: sa.Connection, rng: random.Random) -> str:
    table = rng.choice(list(FACTS))
    column = rng.choice(FACTS[table])
    rows = [row for row in rows_in(connection, table) if row[column] is not None]
    if not rows:
        return edit(connection, rng)
    row = rng.choice(rows)
    new = edited(row[column], rng)
    connection.execute(table.update().where(same(table, row)).values({column: new}))
    return f"{table.name}.{column}: {row[column]!r} became {new!r}"


def exchange(connection: sa.Connection, rng: random.Random) -> str:
    """What two rows hold in one column."""
    table = rng.choice([one for one in FACTS if one not in (MODEL_IDS, REQUEST_IDS, SUPPRESSIONS)])
    column = rng.choice(FACTS[table])
    one, *others = rng.sample(rows := rows_in(connection, table), len(rows))
    other = next((row for row in others if row[column] != one[column]), None)
    if other is None:
        return edit(connection, rng)
    for row, value in ((one, other[column]), (other, one[column])):
        connection.execute(table.update().where(same(table, row)).values({column: value}))
    return f"{table.name}.{column} exchanged"


def remove(connection: sa.Connection, rng: random.Random) -> str:
    table = rng.choice(list(FACTS))
    row = rng.choice(rows_in(connection, table))
    connection.execute(table.delete().where(same(table, row)))
    return f"{table.name}: {row!r} removed"


def add(connection: sa.Connection, rng: random.Random) -> str:
    """A copy of a row under another name."""
    table = rng.choice([REQUESTS, JOBS, TOKENS, VERSIONS, EVENTS, WEBHOOKS, SUPPRESSIONS])
    row = dict(rng.choice(rows_in(connection, table)))
    key = {VERSIONS: "number", EVENTS: "number"}.get(table, "id")
    row[key] = 10**6 + rng.randrange(1000) if key == "number" else rng.randbytes(16)
    if table is not SUPPRESSIONS and key == "id":
        row[key] = row[key].hex()
    for name in ("key", "digest"):
        if name in row:
            row[name] = rng.randbytes(32)
    if table is EVENTS:
        row |= {"checkpoint": None}
        row |= rng.choice([{"code": None}, {"code": rng.randbytes(32)}, {"actor": "nobody"}])
    connection.execute(table.insert().values(**row))
    return f"{table.name}: a row added"


CHANGES: tuple[Change, ...] = (edit, edit, edit, exchange, remove, remove, add)


def changed(busy: Path, where: Path, change: Change, seed: int) -> tuple[str, tuple[str, ...]]:
    """What was changed, and what is found once the desk has made its next checkpoint."""
    shutil.copyfile(busy / "desk.sqlite", where / "desk.sqlite")
    for name in ("desk.key", "signing.pem"):
        shutil.copy(busy / name, where / name)
    plain = sa.create_engine(f"sqlite:///{where / 'desk.sqlite'}")
    rng = random.Random(seed)
    what = None
    while what is None:  # the database itself refuses some of what is drawn
        with contextlib.suppress(sa.exc.IntegrityError), plain.begin() as connection:
            what = change(connection, rng)
    plain.dispose()
    desk = Desk.at(where, engine=StandIn())
    desk.check_in()
    found = found_in(desk)
    desk.close()
    return what, found


@pytest.mark.parametrize("seed", range(40))
def test_a_change_by_hand_is_found(busy, tmp_path, seed):
    what, found = changed(busy, tmp_path, CHANGES[seed % len(CHANGES)], seed)
    assert found, what


def claim_nothing_is_left(connection: sa.Connection, _: random.Random) -> str:
    """As somebody would who wants an open request closed without work."""
    waiting = sa.select(TARGETS.c.request).where(TARGETS.c.job.is_(None))
    request = connection.execute(waiting).scalars().first()
    connection.execute(TARGETS.update().where(TARGETS.c.request == request).values(state="destroyed"))
    connection.execute(REQUESTS.update().where(REQUESTS.c.id == request).values(state="destroyed"))
    return f"request {request} claims that nothing is left"


def approve_by_hand(connection: sa.Connection, _: random.Random) -> str:
    """A bad result let through, with an event that says so, written by whoever has the database and not the key."""
    job = rows_of(connection, sa.select(JOBS).where(JOBS.c.state == "audited"))[0]
    connection.execute(JOBS.update().where(JOBS.c.id == job["id"]).values(state="approved", decided_by="me"))
    connection.execute(TARGETS.update().where(TARGETS.c.job == job["id"]).values(state="approved"))
    connection.execute(
        REQUESTS.update()
        .where(REQUESTS.c.state == "audited", REQUESTS.c.tenant == job["tenant"])
        .values(state="approved")
    )
    note(connection, job["tenant"], "approved", job=job["id"], actor="me", by="person")
    return "approved by hand"


@pytest.mark.parametrize("change", [claim_nothing_is_left, approve_by_hand])
def test_a_careful_forger_is_found(busy, tmp_path, change):
    what, found = changed(busy, tmp_path, change, 0)
    assert found, what


@pytest.mark.slow
def test_five_hundred_random_changes_to_the_other_tables_are_all_found(busy, tmp_path):
    missed = []
    for seed in range(1000, 1500):
        what, found = changed(busy, tmp_path, CHANGES[seed % len(CHANGES)], seed)
        if not found:
            missed.append((seed, what))
    assert missed == []
