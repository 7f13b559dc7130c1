"""Whatever becomes of a job's work, somebody can go on with it: none is stuck, and none is begun beside itself."""

import json
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from dbos import DBOS
from fastapi.testclient import TestClient

from spotlessnet.core.errors import DataError
from spotlessnet.serve import workflow
from spotlessnet.serve.agreeing import agreement
from spotlessnet.serve.app import make_app
from spotlessnet.serve.database import JOBS, reading, rows_of
from spotlessnet.serve.engine import WorkError
from spotlessnet.serve.intake import submit
from spotlessnet.serve.trail import StateError
from tests.serve.conftest import BY_PERSON, model_of, new_tenant, until
from tests.serve.stand_in import NETWORK


@pytest.fixture
def at_work(desk):
    workflow._AT_WORK[:] = [desk]
    yield desk
    workflow._AT_WORK.clear()


def asked(desk, tenant) -> str:
    """A job of one request; gives its id."""
    with desk.database.begin() as connection:
        submit(connection, desk.keys, tenant.id, BY_PERSON, key="1", ids=["ann"], submitter="test")
    [(_, job, _)] = desk.round()
    return job


def send(client, tenant) -> str:
    """A request over HTTP; gives its path."""
    answer = client.post("/api/v1/requests", json={"key": "1", "ids": ["ann"]}, headers=tenant.headers())
    return f"/api/v1/requests/{answer.json()['id']}"


def audited(desk, tenant) -> str:
    job = asked(desk, tenant)
    for step in (workflow.plan, workflow.scrub, workflow.judge):
        step(job)
    assert state_of(desk, job) == "audited"
    return job


def state_of(desk, job) -> str:
    with reading(desk.database) as connection:
        return str(connection.execute(sa.select(JOBS.c.state).where(JOBS.c.id == job)).scalar_one())


def test_what_was_sent_back_and_could_not_be_destroyed_can_be_tried_again(at_work, tmp_path):
    tenant = new_tenant(at_work, "back", BY_PERSON)
    model_of(at_work, tenant, tmp_path / "run")
    job = audited(at_work, tenant)
    workflow.decide(at_work, tenant.id, job, "anna", approve=False)
    assert at_work.round() == [("withdraw", job, 1)]
    workflow.fail(job, "The disk is full.", "withdraw", 1)
    assert (state_of(at_work, job), at_work.round()) == ("failed", [])
    with pytest.raises(StateError, match="Try the job again"):
        workflow.decide(at_work, tenant.id, job, "anna", approve=False)
    workflow.retry(at_work, tenant.id, job, "anna")
    # Not back to approval, for what was made may be half destroyed; and under an id that DBOS has not seen.
    assert at_work.round() == [("withdraw", job, 2)]
    workflow.take_back(job)
    assert state_of(at_work, job) == "withdrawn"
    [(name, again, attempt)] = at_work.round()
    assert (name, attempt) == ("make", 1)
    assert again != job
    at_work.check_in()
    with reading(at_work.database) as connection:
        assert agreement(connection).mistakes == ()


def test_a_failure_that_comes_after_the_work_was_done_changes_nothing(at_work, tmp_path):
    """A step may be run again after a kill, and fail then, when a person has approved long ago."""
    tenant = new_tenant(at_work, "late", BY_PERSON)
    model_of(at_work, tenant, tmp_path / "run")
    job = audited(at_work, tenant)
    workflow.fail(job, "The database was away.", "make", 1)
    assert state_of(at_work, job) == "audited"
    workflow.decide(at_work, tenant.id, job, "anna", approve=True)
    workflow.fail(job, "The database was away.", "make", 1)
    assert at_work.round() == [("finish", job, 1)]
    workflow.fail(job, "The registry was away.", "finish", 1)
    assert state_of(at_work, job) == "failed"


def test_a_workflow_that_ended_without_a_word_is_left_to_a_person(desk, tmp_path, monkeypatch):
    """As on a full disk: neither the work nor its failure can be written down."""
    tenant = new_tenant(desk, "silent")
    model_of(desk, tenant, tmp_path / "run")
    broken = {"is": True}
    plan, fail = workflow.plan, workflow.fail

    def planned(job):
        if broken["is"]:
            raise DataError("no room")
        plan(job)

    def failed(*told):
        if broken["is"]:
            raise OSError(28, "no room")
        fail(*told)

    monkeypatch.setattr(workflow, "plan", planned)
    monkeypatch.setattr(workflow, "fail", failed)
    monkeypatch.setattr("spotlessnet.serve.app.LOOK", 0.1)
    with TestClient(make_app(desk)) as client:
        place = send(client, tenant)
        job = until(lambda: (found := client.get(place, headers=tenant.headers()).json()["jobs"]) and found[0])["id"]
        until(lambda: (found := DBOS.get_workflow_status(f"make-{job}-1")) and found.status == "ERROR")
        assert state_of(desk, job) == "planned"
        broken["is"] = False
        until(lambda: state_of(desk, job) == "failed")
        assert client.post(f"/api/v1/jobs/{job}/retry", headers=tenant.headers()).status_code == 200
        until(lambda: client.get(place, headers=tenant.headers()).json()["state"] == "closed")


def test_a_workflow_that_nobody_runs_any_more_is_gone_on_with(monkeypatch):
    """As after a full disk, on which DBOS could not even note that it ended; one look may come before it begins."""
    resumed: list[str] = []
    status = SimpleNamespace(status="PENDING", executor_id=DBOS.executor_id)
    monkeypatch.setattr(DBOS, "get_workflow_status", lambda name: status)
    monkeypatch.setattr(DBOS, "resume_workflow", lambda name, queue_name: resumed.append(name))
    own = ("make", "a-job", 1)
    workflow._RUN_HERE.add("make-a-job-1")
    for _ in range(3):
        workflow.look_after(*own)
    workflow._RUN_HERE.clear()
    workflow.look_after(*own)
    assert resumed == []
    workflow.look_after(*own)
    assert resumed == ["make-a-job-1"]
    workflow.look_after(*own)  # it waits for its turn now
    status.executor_id = "another worker"
    workflow.look_after(*own)
    workflow.look_after(*own)
    assert resumed == ["make-a-job-1"]


def test_what_could_not_be_destroyed_ends_up_destroyed(desk, tmp_path, monkeypatch):
    """The whole way through DBOS, with an engine that fails for good the first time."""
    tenant = new_tenant(desk, "whole", BY_PERSON)
    model_of(desk, tenant, tmp_path / "run")
    withdraw, calls = type(desk.engine).withdraw, []

    def failing(self, base, out):
        calls.append(out)
        if len(calls) == 1:
            raise WorkError("It is not to be destroyed.", 9)
        withdraw(self, base, out)

    monkeypatch.setattr(type(desk.engine), "withdraw", failing)
    with TestClient(make_app(desk)) as client:
        place = send(client, tenant)
        get = lambda: client.get(place, headers=tenant.headers()).json()  # noqa: E731
        job = until(lambda: (found := get())["state"] == "audited" and found)["jobs"][0]["id"]
        back = client.post(f"/api/v1/jobs/{job}/send-back", json={}, headers=tenant.headers())
        assert back.status_code == 200
        until(lambda: state_of(desk, job) == "failed")
        assert client.post(f"/api/v1/jobs/{job}/retry", headers=tenant.headers()).status_code == 200
        until(lambda: (found := get())["state"] == "audited" and found["jobs"][0]["id"] != job)
    with reading(desk.database) as connection:
        [gone] = rows_of(connection, sa.select(JOBS).where(JOBS.c.id == job))
    assert not (desk.out_of(gone) / NETWORK).exists()
    assert json.loads((tmp_path / "run" / NETWORK).read_text())
