"""Several workers on one PostgreSQL: what two of them do at the same moment ends as if one had come after the other."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="the extra `serve` is not installed")

import psycopg
import sqlalchemy as sa

from spotlessnet.proof import ledger
from spotlessnet.serve.access import add_tenant
from spotlessnet.serve.addresses import PUBLIC
from spotlessnet.serve.database import (
    DELIVERIES,
    JOBS,
    MODELS,
    REQUESTS,
    SUPPRESSIONS,
    TARGETS,
    reading,
    rows_of,
)
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.intake import cancel, submit
from spotlessnet.serve.matching import match
from spotlessnet.serve.outbox import put_out
from spotlessnet.serve.planning import reach, start_job
from spotlessnet.serve.proving import seal_of
from spotlessnet.serve.running import tenant_named
from spotlessnet.serve.sealing import Keys
from spotlessnet.serve.trail import now
from spotlessnet.serve.webhooks import add_webhook, remove_webhook
from tests.postgresql import new_database
from tests.serve.conftest import BY_RULE, Tenant, model_of
from tests.serve.stand_in import StandIn

Act = Callable[[sa.Connection], Any]
HEAD_START = 0.4
"""Seconds in which the second one does what it can while the first has not yet committed."""


@pytest.fixture
def desk(tmp_path, postgresql) -> Iterator[Desk]:
    made = Desk.at(tmp_path / "desk", database=new_database(postgresql), engine=StandIn())
    yield made
    made.close()


def both(desk: Desk, first: Act, second: Act) -> None:
    """Both in transactions of their own: the second begins before the first commits, and may have to wait for it."""
    wrong: list[BaseException] = []

    def after() -> None:
        try:
            with desk.database.begin() as connection:
                second(connection)
        except BaseException as e:
            wrong.append(e)

    thread = threading.Thread(target=after)
    with desk.database.begin() as connection:
        first(connection)
        thread.start()
        thread.join(HEAD_START)
    thread.join(20)
    assert not thread.is_alive()
    assert wrong == []


def ask(desk: Desk, tenant: Tenant, key: str, ids: list[str]) -> str:
    with desk.database.begin() as connection:
        return submit(connection, desk.keys, tenant.id, BY_RULE, key=key, ids=ids, submitter="test").id


def state_of(desk: Desk, request: str) -> str:
    with reading(desk.database) as connection:
        return str(connection.execute(sa.select(REQUESTS.c.state).where(REQUESTS.c.id == request)).scalar_one())


def received(connection: sa.Connection, request: str) -> list[dict[str, Any]]:
    return rows_of(connection, sa.select(REQUESTS).where(REQUESTS.c.id == request).with_for_update())


def test_a_request_in_two_jobs_reaches_the_state_that_both_reached(desk, tenant, tmp_path):
    models = [model_of(desk, tenant, tmp_path / name, name=name) for name in ("one", "two")]
    request = ask(desk, tenant, "1", ["ann"])
    desk.round()
    with reading(desk.database) as connection:
        jobs = [connection.execute(sa.select(MODELS.c.job).where(MODELS.c.id == one)).scalar_one() for one in models]
    both(desk, *(lambda connection, job=job: reach(connection, job, "destroyed") for job in jobs))
    assert state_of(desk, request) == "destroyed"


def test_a_request_that_is_being_cancelled_is_taken_into_no_job(desk, tenant, tmp_path):
    model = model_of(desk, tenant, tmp_path / "one")
    request = ask(desk, tenant, "1", ["ann"])
    desk._match()
    both(
        desk,
        lambda connection: cancel(connection, tenant.id, request, "test"),
        lambda connection: start_job(connection, model),
    )
    assert state_of(desk, request) == "cancelled"
    with reading(desk.database) as connection:
        assert rows_of(connection, sa.select(JOBS)) == []


def test_a_job_goes_on_from_the_version_that_counts_when_it_begins(desk, tenant, tmp_path):
    model = model_of(desk, tenant, tmp_path / "one")
    request = ask(desk, tenant, "1", ["ann"])
    desk._match()

    def publish(connection):
        connection.execute(MODELS.update().where(MODELS.c.id == model).values(version=1))

    both(desk, publish, lambda connection: start_job(connection, model))
    with reading(desk.database) as connection:
        [job] = rows_of(connection, sa.select(JOBS))
        [target] = rows_of(connection, sa.select(TARGETS).where(TARGETS.c.request == request))
    assert (job["base"], target["job"]) == (1, job["id"])


def test_a_model_gets_one_job(desk, tenant, tmp_path):
    model = model_of(desk, tenant, tmp_path / "one")
    ask(desk, tenant, "1", ["ann"])
    desk._match()
    both(desk, *[lambda connection: start_job(connection, model)] * 2)
    with reading(desk.database) as connection:
        assert len(rows_of(connection, sa.select(JOBS))) == 1


def test_two_workers_may_list_the_same_person(desk, tenant, tmp_path):
    model_of(desk, tenant, tmp_path / "one")
    one, two = (ask(desk, tenant, key, ["ann", "bob"]) for key in "12")
    both(
        desk,
        lambda connection: match(connection, received(connection, one)),
        lambda connection: match(connection, received(connection, two)),
    )
    assert (state_of(desk, one), state_of(desk, two)) == ("matched", "matched")
    with reading(desk.database) as connection:
        assert len(rows_of(connection, sa.select(SUPPRESSIONS))) == 2


def test_one_key_sent_to_two_workers_at_once_is_one_request(desk, tenant):
    found = []

    def send(connection):
        found.append(submit(connection, desk.keys, tenant.id, BY_RULE, key="1", ids=["ann"], submitter="test"))

    both(desk, send, send)
    assert found[0].id == found[1].id
    assert [one.again for one in found] == [False, True]


def test_the_ledger_is_whole_to_whoever_checks_it_while_it_grows(desk, tenant):
    ask(desk, tenant, "1", ["nobody"])
    desk.round()
    with reading(desk.database, at_one_moment=True) as connection:
        assert ledger.size_of(connection) == 1
        ask(desk, tenant, "2", ["nobody"])
        desk.round()
        found = seal_of(connection, desk.signer)
    assert (found.size, found.mistakes) == (1, ())


def test_a_connection_that_ended_while_it_lay_idle_is_made_anew(desk, monkeypatch):
    with reading(desk.database) as connection:
        own = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
    monkeypatch.setattr("spotlessnet.serve.database.IDLE", 0.0)
    with psycopg.connect(desk.database.url.set(drivername="postgresql").render_as_string(False)) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [own])
    with reading(desk.database) as connection:
        assert connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one() != own


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["told first", "removed first"])
def test_a_webhook_may_be_removed_while_something_is_put_out_for_it(desk, tenant, order):
    """Otherwise messages would lead to a webhook that is gone, and whoever sends a request would see 500."""
    request = ask(desk, tenant, "1", ["ann"])
    with desk.database.begin() as connection:
        hook, _ = add_webhook(connection, desk.keys, tenant.id, "https://example.org/hook", "test", PUBLIC)
    told: dict[str, Any] = {"event": 1, "at": now(), "request": request, "job": None}
    acts: list[Act] = [
        lambda connection: put_out(connection, tenant.id, "received", **told),
        lambda connection: remove_webhook(connection, tenant.id, hook, "test"),
    ]
    both(desk, *(acts[i] for i in order))
    with reading(desk.database) as connection:
        assert rows_of(connection, sa.select(DELIVERIES)) == []


def test_two_workers_may_make_the_first_tenant_at_once(desk):
    """The second one looked before the first had committed, waits for it, and then finds its tenant."""
    found: list[tuple[str, str | None]] = []
    thread = threading.Thread(target=lambda: found.append(tenant_named(desk, "first")))
    with desk.database.begin() as connection:
        own = add_tenant(connection, "first")
        thread.start()
        thread.join(HEAD_START)
    thread.join(20)
    assert found == [(own, None)]


def test_two_workers_that_start_at_once_have_one_key(tmp_path, monkeypatch):
    path = tmp_path / "desk.key"
    first = Keys.at(path)
    is_there = [False]
    monkeypatch.setattr(type(path), "exists", lambda self: is_there.pop() if is_there else True)
    assert Keys.at(path) == first
