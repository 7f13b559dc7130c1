"""Whichever statement to the database fails, everything can be done again: the end is the same, and there is one."""

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from spotlessnet.serve import workflow
from spotlessnet.serve.database import EVENTS, ID_COPIES, JOBS, REQUESTS, VERSIONS, reading, rows_of
from spotlessnet.serve.intake import submit
from spotlessnet.serve.proving import seal_of
from tests.serve.conftest import BY_RULE, PEOPLE, Tenant, model_of, new_tenant
from tests.serve.stand_in import NETWORK


class CutError(Exception):
    """The power went."""


@pytest.fixture
def cut(desk):
    """Lets the n-th statement from now on fail; `None` lets all through. Gives how many there were."""
    left: dict[str, Any] = {"n": None, "seen": 0}

    def look(*_):
        left["seen"] += 1
        if left["n"] is not None and left["seen"] == left["n"]:
            raise CutError

    def begin(n):
        seen = left["seen"]
        left["n"], left["seen"] = n, 0
        return seen

    sa.event.listen(desk.database, "before_cursor_execute", look)
    workflow._AT_WORK[:] = [desk]
    yield begin
    workflow._AT_WORK.clear()
    sa.event.remove(desk.database, "before_cursor_execute", look)


STEPS = {
    "make": (workflow.plan, workflow.scrub, workflow.judge),
    "finish": (workflow.put_out, workflow.clear_away, workflow.close),
}


def once_through(desk, tenant: Tenant) -> None:
    """What the service does, from the first request to the last receipt."""
    for key, ids in {"1": ["ann", "bob"], "2": ["bob", "nobody"]}.items():
        with desk.database.begin() as connection:
            submit(connection, desk.keys, tenant.id, BY_RULE, key=key, ids=ids, submitter="test")
    for _ in range(4):
        for name, job, _ in desk.round():
            for step in STEPS[name]:
                step(job)


def test_every_statement_may_fail(desk, cut, tmp_path):
    whole = new_tenant(desk, "whole")
    model_of(desk, whole, tmp_path / "whole")
    cut(None)
    once_through(desk, whole)
    count = cut(None)
    assert count > 80
    for n in range(5, count, 23):
        tenant = new_tenant(desk, f"cut {n}")
        model = model_of(desk, tenant, tmp_path / f"run {n}")
        cut(n)
        with pytest.raises(CutError):
            once_through(desk, tenant)
        cut(None)
        once_through(desk, tenant)
        with reading(desk.database) as connection:
            requests = rows_of(connection, sa.select(REQUESTS).where(REQUESTS.c.tenant == tenant.id))
            assert [row["state"] for row in requests] == ["closed"] * 2, n
            assert len({row["entry"] for row in requests}) == 2
            versions = rows_of(connection, sa.select(VERSIONS).where(VERSIONS.c.model == model))
            told = sa.select(EVENTS.c.what).where(EVENTS.c.tenant == tenant.id, EVENTS.c.what == "closed")
            assert len(rows_of(connection, told)) == 2
            assert rows_of(connection, sa.select(ID_COPIES)) == []
        left = json.loads((Path(versions[-1]["folder"]) / NETWORK).read_text())
        assert left == PEOPLE[2:]
    with reading(desk.database) as connection:
        assert seal_of(connection, desk.signer).is_whole
        assert {row["state"] for row in rows_of(connection, sa.select(JOBS))} == {"closed"}


def test_a_failure_that_is_told_again_does_not_touch_the_next_attempt(desk, cut, tenant, tmp_path):
    """A process may be killed after it told of a failure and before that was noted; then it is told once more."""
    model_of(desk, tenant, tmp_path / "run")
    with desk.database.begin() as connection:
        submit(connection, desk.keys, tenant.id, BY_RULE, key="1", ids=["ann"], submitter="test")
    [(_, job, attempt)] = desk.round()
    workflow.fail(job, "The disk is full.", "make", attempt)
    assert desk.round() == []
    workflow.retry(desk, tenant.id, job, "test")
    [(_, _, again)] = desk.round()
    workflow.fail(job, "The disk is full.", "make", attempt)
    # Otherwise a person would see it failed, and begin a third attempt beside the second.
    assert desk.round() == [("make", job, again)]
    assert (attempt, again) == (1, 2)
    assert workflow.told_by(f"make-{job}-{again}") == ("make", again)
