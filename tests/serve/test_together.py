"""Requests that come at the same moment share a transaction, and nothing else."""

import threading
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from spotlessnet.core.errors import MismatchError
from spotlessnet.serve.database import EVENTS, ID_COPIES, REQUEST_IDS, REQUESTS, reading
from spotlessnet.serve.intake import Asking, asking
from spotlessnet.serve.together import Together
from spotlessnet.serve.trail import now


def count(desk, table) -> int:
    with reading(desk.database) as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def one(desk, tenant, key: str, ids: list[str], **more) -> Asking:
    return asking(desk.keys, tenant.id, key=key, ids=ids, submitter="test", **more)


@pytest.fixture
def commits(desk):
    seen: list[int] = []
    sa.event.listen(desk.database, "commit", lambda _: seen.append(1))
    return seen


def all_at_once(desk, asked: list[Asking]) -> list[Any]:
    """Callers who all wait while somebody else is written, and what became of each."""
    door = Together(desk.database)
    go = threading.Event()
    door._writer.submit(go.wait)
    calls = [door.put(given) for given in asked]
    go.set()
    found = [call.exception(timeout=20) or call.result() for call in calls]
    assert door._queue == []
    return found


def test_whoever_waits_is_written_in_one_transaction(desk, tenant, commits):
    asked = [one(desk, tenant, str(i), [f"p{i}", "ann"]) for i in range(20)]
    commits.clear()
    found = all_at_once(desk, asked)
    assert len(commits) == 1
    assert len({each.id for each in found}) == 20
    assert [count(desk, table) for table in (REQUESTS, REQUEST_IDS, ID_COPIES)] == [20, 40, 20]


def test_one_that_is_refused_holds_nobody_up_and_a_double_is_the_same_request(desk, tenant, commits):
    soon = now() + timedelta(days=1)
    asked = [one(desk, tenant, "1", ["ann"]), one(desk, tenant, "1", ["bob"]), one(desk, tenant, "1", ["ann"])]
    asked.append(one(desk, tenant, "2", ["bob"], due=soon))
    commits.clear()
    first, other, again, second = all_at_once(desk, asked)
    assert len(commits) == 1
    # Whichever of the three came first, those that say the same are one, and the other is refused.
    kept = [each for each in (first, other, again) if not isinstance(each, MismatchError)]
    assert len({each.id for each in kept}) == 1
    assert [each.again for each in kept].count(False) == 1
    assert isinstance(other, MismatchError) or (isinstance(first, MismatchError) and isinstance(again, MismatchError))
    assert (second.again, second.due) == (False, soon)
    with reading(desk.database) as connection:
        told = sa.select(EVENTS.c.request).where(EVENTS.c.what == "received")
        assert len(connection.execute(told).all()) == count(desk, REQUESTS) == 2


def test_where_the_database_fails_everybody_is_told_and_nothing_is_kept(desk, tenant):
    def fail(*_):
        raise OSError(5, "no disk")

    sa.event.listen(desk.database, "commit", fail)
    found = all_at_once(desk, [one(desk, tenant, str(i), ["ann"]) for i in range(3)])
    sa.event.remove(desk.database, "commit", fail)
    assert all(isinstance(each, OSError) for each in found)
    assert count(desk, REQUESTS) == 0
    assert not Together(desk.database).put(one(desk, tenant, "1", ["ann"])).result(timeout=20).again


def test_whoever_comes_alone_does_not_wait_for_others(desk, tenant, monkeypatch):
    monkeypatch.setattr("spotlessnet.serve.together.GATHER", 3600.0)
    assert not Together(desk.database).put(one(desk, tenant, "1", ["ann"])).result(timeout=20).again


def test_whoever_leaves_before_the_answer_is_received_and_keeps_nobody_waiting(desk, tenant):
    door = Together(desk.database)
    go = threading.Event()
    door._writer.submit(go.wait)
    calls = [door.put(one(desk, tenant, str(i), ["ann"])) for i in range(3)]
    assert calls[0].cancel()
    go.set()
    assert [call.result(timeout=20).again for call in calls[1:]] == [False, False]
    assert count(desk, REQUESTS) == 3
