"""Requests are received once, by their key, and without a single id in plain text."""

from datetime import timedelta

import pytest
import sqlalchemy as sa

from spotlessnet.core.errors import DataError, MismatchError, SettingError
from spotlessnet.serve.database import EVENTS, ID_COPIES, REQUEST_IDS, REQUESTS, SUPPRESSIONS, reading
from spotlessnet.serve.intake import cancel, hold, submit
from spotlessnet.serve.trail import StateError, now
from tests.serve.conftest import BY_RULE, model_of


def ask(desk, tenant, key, ids, **more):
    with desk.database.begin() as connection:
        return submit(
            connection, desk.keys, tenant.id, BY_RULE, key=key, ids=ids, submitter=tenant.tokens["submit"][:30], **more
        )


def count(desk, table):
    with reading(desk.database) as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def test_the_same_key_and_ids_are_one_request_in_whatever_order(desk, tenant):
    first = ask(desk, tenant, "case 7", ["ann", "bob"])
    again = ask(desk, tenant, "case 7", ["bob", " ann ", "bob"])
    assert (first.again, again.again) == (False, True)
    assert first.id == again.id
    assert [count(desk, table) for table in (REQUESTS, REQUEST_IDS, ID_COPIES)] == [1, 2, 1]


def test_the_same_key_with_other_ids_is_refused(desk, tenant):
    ask(desk, tenant, "case 7", ["ann"])
    with pytest.raises(MismatchError, match="This key was used before for a request with other ids"):
        ask(desk, tenant, "case 7", ["bob"])
    assert count(desk, REQUESTS) == 1


@pytest.mark.parametrize("ids", [[], [""], ["  "], ["x" * 501], ["\ud800"]])
def test_what_cannot_be_an_id_is_refused(desk, tenant, ids):
    with pytest.raises(DataError, match="`ids` must be"):
        ask(desk, tenant, "case", ids)


@pytest.mark.parametrize("key", ["", "x" * 201, "two\nlines"])
def test_what_cannot_be_a_key_is_refused(desk, tenant, key):
    with pytest.raises(SettingError, match="`key` must be 1 to 200 printable characters"):
        ask(desk, tenant, key, ["ann"])


def test_a_date_can_only_be_earlier_than_the_policy_says(desk, tenant):
    soon = now() + timedelta(days=3)
    assert ask(desk, tenant, "soon", ["ann"], due=soon).due == soon
    assert ask(desk, tenant, "never", ["ann"], due=now() + timedelta(days=999)).due < now() + timedelta(days=31)


def test_no_id_and_no_key_of_a_request_is_written_in_plain_text(desk, tenant, tmp_path):
    model_of(desk, tenant, tmp_path / "run")
    ask(desk, tenant, "request of Canary-4711", ["Canary-4711", "ann"])
    desk.round()
    desk.close()
    files = [path for path in (tmp_path / "desk").rglob("*") if path.is_file()]
    assert any(path.name == "desk.sqlite" for path in files)
    assert [path.name for path in files if b"Canary-4711" in path.read_bytes()] == []


def test_a_copy_of_ids_opens_under_its_own_tenant_alone(desk, tenant):
    sealed = desk.keys.seal_ids(tenant.id, ["ann"])
    assert desk.keys.open_ids(tenant.id, sealed) == ["ann"]
    for other, content in (("another", sealed), (tenant.id, sealed[:-1] + bytes([sealed[-1] ^ 1]))):
        with pytest.raises(Exception, match="must open under the desk's key"):
            desk.keys.open_ids(other, content)


def test_a_cancelled_request_leaves_neither_copy_nor_suppression_that_no_other_needs(desk, tenant, tmp_path):
    model_of(desk, tenant, tmp_path / "run")
    first = ask(desk, tenant, "1", ["zoe", "yan"])
    second = ask(desk, tenant, "2", ["zoe"])
    desk._match()
    assert count(desk, SUPPRESSIONS) == 2
    with desk.database.begin() as connection:
        cancel(connection, tenant.id, first.id, "op")
        cancel(connection, tenant.id, first.id, "op")
    assert count(desk, SUPPRESSIONS) == 1
    with reading(desk.database) as connection:
        assert list(connection.execute(sa.select(ID_COPIES.c.request)).scalars()) == [second.id]
        cancelled = sa.select(sa.func.count()).where(EVENTS.c.what == "cancelled")
        assert connection.execute(cancelled).scalar_one() == 1


def test_a_held_request_waits_and_a_closed_one_cannot_be_held(desk, tenant):
    one = ask(desk, tenant, "1", ["nobody"])
    with desk.database.begin() as connection:
        hold(connection, tenant.id, one.id, "op", held=True)
    desk.round()
    assert state_of(desk, one.id) == "received"
    with desk.database.begin() as connection:
        hold(connection, tenant.id, one.id, "op", held=False)
    desk.round()
    assert state_of(desk, one.id) == "closed"
    with desk.database.begin() as connection, pytest.raises(StateError, match="Only an open request can be held"):
        hold(connection, tenant.id, one.id, "op", held=True)


def state_of(desk, request):
    with reading(desk.database) as connection:
        return connection.execute(sa.select(REQUESTS.c.state).where(REQUESTS.c.id == request)).scalar_one()


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+14:00", "2030-01-01T00:00:00"])
def test_a_time_that_utc_does_not_have_is_refused_before_it_meets_other_requests(client, tenant, at):
    asked = {"key": "1", "ids": ["ann"], "due": at}
    assert client.post("/api/v1/requests", json=asked, headers=tenant.headers()).status_code == 422
    made = {"name": "new", "scopes": ["read"], "expires": at}
    assert client.post("/api/v1/tokens", json=made, headers=tenant.headers()).status_code == 422
