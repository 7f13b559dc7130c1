"""Some jobs are done a second time before they are approved, and what does not come out the same waits for a person."""

import json

import pytest
import sqlalchemy as sa

from spotlessnet.core.errors import SettingError
from spotlessnet.proof.dsse import taken_apart
from spotlessnet.serve import replaying, workflow
from spotlessnet.serve.database import EVENTS, JOBS, reading
from spotlessnet.serve.engine import WorkError
from spotlessnet.serve.intake import submit
from spotlessnet.serve.policy import Policy
from spotlessnet.serve.proving import bundle_of, seal_of
from spotlessnet.serve.trail import StateError
from tests.serve.conftest import Tenant, model_of, new_tenant

ALWAYS = Policy(approval="rule", audit_seeds=5, replay_share=1.0)
MAKE = (workflow.plan, workflow.scrub, workflow.judge)


@pytest.fixture
def at_work(desk):
    workflow._AT_WORK[:] = [desk]
    yield desk
    workflow._AT_WORK.clear()


def made(desk, tenant: Tenant, key: str = "1", person: str = "ann") -> str:
    """A job of one request, made and judged."""
    with desk.database.begin() as connection:
        submit(connection, desk.keys, tenant.id, ALWAYS, key=key, ids=[person], submitter="test")
    [(_, job, _)] = desk.round()
    for step in MAKE:
        step(job)
    return job


def state_of(desk, job: str) -> tuple[str, str | None]:
    with reading(desk.database) as connection:
        state = connection.execute(sa.select(JOBS.c.state).where(JOBS.c.id == job)).scalar_one()
        found = replaying.replay_of(connection, job)
    return state, None if found is None else found["outcome"]


def test_a_job_that_comes_out_the_same_is_approved_by_rule(at_work, tmp_path):
    tenant = new_tenant(at_work, "always", ALWAYS)
    model_of(at_work, tenant, tmp_path / "run")
    assert state_of(at_work, made(at_work, tenant)) == ("approved", "the same")


def test_one_that_comes_out_otherwise_waits_for_a_person(at_work, tmp_path, monkeypatch):
    tenant = new_tenant(at_work, "always", ALWAYS)
    model_of(at_work, tenant, tmp_path / "run")
    monkeypatch.setattr(at_work.engine, "replay", lambda *_: {"network": "0" * 64})
    assert state_of(at_work, made(at_work, tenant)) == ("audited", "another")


@pytest.mark.parametrize("how", ["secret noise", "an error"])
def test_what_cannot_be_told_says_why_and_holds_nobody_up(at_work, tmp_path, monkeypatch, how):
    tenant = new_tenant(at_work, "always", ALWAYS)
    model_of(at_work, tenant, tmp_path / "run")

    def replay(*_):
        if how == "an error":
            raise WorkError("The data are not there any more.", 3)
        return {"reason": "secret noise was added"}

    monkeypatch.setattr(at_work.engine, "replay", replay)
    job = made(at_work, tenant)
    assert state_of(at_work, job) == ("approved", "cannot be told")
    with reading(at_work.database) as connection:
        assert (replaying.replay_of(connection, job) or {})["reason"]


def test_about_the_share_that_the_rules_say_is_drawn_and_each_draw_stays(desk):
    tenant = new_tenant(desk, "some", Policy(replay_share=0.25)).id
    with reading(desk.database) as connection:
        drawn = [replaying.is_due(desk, connection, {"id": f"job {i}", "tenant": tenant}) for i in range(400)]
        again = [replaying.is_due(desk, connection, {"id": f"job {i}", "tenant": tenant}) for i in range(400)]
    assert drawn == again
    assert 70 < sum(drawn) < 130


def test_a_person_asks_for_it_and_it_comes_back_to_be_approved(at_work, client, tmp_path):
    tenant = new_tenant(at_work, "asks", Policy(audit_seeds=5))
    model_of(at_work, tenant, tmp_path / "run")
    job = made(at_work, tenant)
    assert state_of(at_work, job) == ("audited", None)
    asked = client.post(f"/api/v1/jobs/{job}/replay", headers=tenant.headers("operate"))
    assert asked.status_code == 200
    assert at_work.round() == [("make", job, 2)]
    assert client.post(f"/api/v1/jobs/{job}/approve", headers=tenant.headers()).status_code == 409
    for step in MAKE:
        step(job)
    told = client.get(f"/api/v1/jobs/{job}", headers=tenant.headers()).json()
    assert (told["state"], told["replay"]["outcome"]) == ("audited", "the same")
    client.post(f"/api/v1/jobs/{job}/approve", headers=tenant.headers())
    for step in (workflow.put_out, workflow.clear_away, workflow.close):
        step(job)
    with pytest.raises(StateError, match="both were destroyed when the new version was published"):
        replaying.ask(at_work, tenant.id, job, "test")
    late = client.post(f"/api/v1/jobs/{job}/replay", headers=tenant.headers())
    assert (late.status_code, "destroyed" in late.json()["detail"]) == (409, True)
    with reading(at_work.database, at_one_moment=True) as connection:
        assert seal_of(connection, at_work.signer).mistakes == ()
        receipt = json.loads(json.dumps(bundle_of(connection, 0)))
        told = connection.execute(sa.select(EVENTS.c.what).where(EVENTS.c.job == job)).scalars().all()
    assert "replayed: the same" in told
    import base64

    steps = json.loads(base64.b64decode(receipt["receipt"]["payload"]))["predicate"]["steps"]
    assert "replayed: the same" in [one["what"] for one in steps]


def test_the_share_is_a_share():
    with pytest.raises(SettingError, match="replay_share must be 0"):
        Policy(replay_share=1.5)


def test_one_that_came_out_otherwise_once_is_approved_by_no_rule_however_often_it_is_asked_for(
    at_work, tmp_path, monkeypatch
):
    tenant = new_tenant(at_work, "always", ALWAYS)
    model_of(at_work, tenant, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(at_work.engine, "replay", lambda *_: {"network": "0" * 64})
        job = made(at_work, tenant)
    replaying.ask(at_work, tenant.id, job, "test")
    workflow.judge(job)
    assert state_of(at_work, job) == ("audited", "the same")


def test_a_result_that_was_sent_back_stays_in_the_timeline_and_in_the_receipt(at_work, client, tmp_path):
    tenant = new_tenant(at_work, "strict", Policy(audit_seeds=5))
    model_of(at_work, tenant, tmp_path / "run")
    first = made(at_work, tenant)
    workflow.decide(at_work, tenant.id, first, "test", approve=False, why="too far")
    workflow.take_back(first)
    [(_, second, _)] = at_work.round()
    for step in MAKE:
        step(second)
    workflow.decide(at_work, tenant.id, second, "test", approve=True)
    for step in (workflow.put_out, workflow.clear_away, workflow.close):
        step(second)
    [request] = client.get("/api/v1/requests?kind=all", headers=tenant.headers()).json()["requests"]
    shown = client.get(f"/api/v1/requests/{request['id']}", headers=tenant.headers()).json()["events"]
    assert [one["detail"]["why"] for one in shown if one["what"] == "sent back"] == ["too far"]
    assert [one["job"] for one in shown if one["what"] == "audited"] == [first, second]
    with reading(at_work.database) as connection:
        payload = taken_apart(bundle_of(connection, request["entry"])["receipt"]).payload
        steps = [one["what"] for one in json.loads(payload)["predicate"]["steps"]]
    assert steps.count("audited") == 2
    assert steps.index("sent back") < steps.index("approved")
    at_work.check_in()
    with reading(at_work.database) as connection:
        assert seal_of(connection, at_work.signer).is_whole
