"""From received to closed: together, once, in order, by a rule or by a person, and with a receipt in the ledger."""

import json
import os
from pathlib import Path

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from spotlessnet.core.errors import IntegrityError, SettingError
from spotlessnet.proof.bundle import verify_bundle
from spotlessnet.proof.keys import PublicKeys, SigningKey
from spotlessnet.serve.app import make_app
from spotlessnet.serve.database import EVENTS, ID_COPIES, JOBS, MODELS, REQUESTS, VERSIONS, reading, rows_of
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.engine import WorkError
from spotlessnet.serve.intake import submit
from spotlessnet.serve.proving import seal_of
from spotlessnet.serve.trail import STEPS, now
from tests.serve.conftest import BY_PERSON, PEOPLE, model_of, new_tenant, until
from tests.serve.stand_in import NETWORK, StandIn


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """One desk with its rounds and workflows, which the tests of this file share: each takes a tenant of its own."""
    place = tmp_path_factory.mktemp("running")
    desk = Desk.at(place / "desk", engine=StandIn())
    with TestClient(make_app(desk)) as client:
        yield desk, client
    desk.close()


def ask(client, tenant, key, ids):
    answer = client.post("/api/v1/requests", json={"key": key, "ids": ids}, headers=tenant.headers())
    assert answer.status_code == 201
    return answer.json()["id"]


def get(client, tenant, request):
    return client.get(f"/api/v1/requests/{request}", headers=tenant.headers()).json()


def reached(client, tenant, request, state):
    return until(lambda: (found := get(client, tenant, request))["state"] == state and found)


def select(desk, query):
    with reading(desk.database) as connection:
        return rows_of(connection, query)


def test_requests_that_come_together_are_served_by_one_job_and_closed_with_receipts(running, tmp_path):
    desk, client = running
    tenant = new_tenant(desk, "together")
    model = model_of(desk, tenant, tmp_path / "run")
    with desk.database.begin():  # the rounds wait until all three are there
        pass
    told = [("1", ["ann"]), ("2", ["bob", "ann"]), ("3", ["nobody"])]
    asked = [ask(client, tenant, key, ids) for key, ids in told]
    closed = [reached(client, tenant, one, "closed") for one in asked]
    assert [one["outcome"] for one in closed] == ["published without these ids"] * 2 + ["in no registered model"]
    steps = [event["what"] for event in closed[0]["events"] if event["what"] in STEPS]
    assert steps == list(STEPS)
    [head] = select(desk, sa.select(MODELS).where(MODELS.c.id == model))
    version = select(desk, sa.select(VERSIONS).where(VERSIONS.c.model == model, VERSIONS.c.number == head["version"]))
    assert json.loads((Path(version[0]["folder"]) / NETWORK).read_text()) == PEOPLE[2:]
    link = desk.folder / "published" / tenant.id / "digits"
    assert os.path.realpath(link) == os.path.realpath(version[0]["folder"])
    assert not (tmp_path / "run" / NETWORK).exists()
    assert select(desk, sa.select(ID_COPIES).where(ID_COPIES.c.request.in_(asked))) == []


def test_a_receipt_is_signed_and_in_the_ledger_and_names_nobody(running, tmp_path):
    desk, client = running
    tenant = new_tenant(desk, "receipts")
    model_of(desk, tenant, tmp_path / "run")
    request = ask(client, tenant, "1", ["Canary-0815", "eve"])
    reached(client, tenant, request, "closed")
    bundle = client.get(f"/api/v1/requests/{request}/receipt", headers=tenant.headers()).json()
    told = verify_bundle(bundle, PublicKeys([desk.signer.public])).receipt
    assert told["predicate"]["models"][0]["verdict"] == "forgotten"
    assert told["subject"][0]["name"] == f"request/{request}"
    with reading(desk.database) as connection:
        assert seal_of(connection, desk.signer).is_whole
    with pytest.raises(IntegrityError, match="no key that is trusted here"):
        verify_bundle(bundle, PublicKeys([SigningKey.new().public]))
    everything = json.dumps(told) + client.get(f"/api/v1/requests/{request}", headers=tenant.headers()).text
    assert "Canary-0815" not in everything
    assert '"eve"' not in everything


def test_a_desk_does_not_start_with_another_key_than_the_ledgers(desk, tenant, tmp_path):
    with desk.database.begin() as connection:
        submit(connection, desk.keys, tenant.id, BY_PERSON, key="1", ids=["nobody"], submitter="test")
    desk.round()
    with pytest.raises(SettingError, match="was last signed with key"):
        Desk.at(desk.folder, engine=StandIn(), signing_key=tmp_path / "another.pem")
    Desk.at(desk.folder, engine=StandIn()).close()


def test_a_person_approves_or_sends_back_and_the_submitter_may_not(running, tmp_path):
    desk, client = running
    tenant = new_tenant(desk, "persons", BY_PERSON)
    model_of(desk, tenant, tmp_path / "run")
    request = ask(client, tenant, "1", ["ann"])
    first = reached(client, tenant, request, "audited")["jobs"][0]["id"]
    path = f"/api/v1/jobs/{first}"
    back = client.post(f"{path}/send-back", json={"why": "too far", "method": "retrain"}, headers=tenant.headers())
    assert back.status_code == 200
    second = until(lambda: (job := get(client, tenant, request)["jobs"]) and job[0]["id"] != first and job[0])
    found = reached(client, tenant, request, "audited")["jobs"][0]
    assert (found["id"], found["method"]) == (second["id"], "retrain")
    assert client.post(f"{path}/approve", headers=tenant.headers()).status_code == 409
    client.put("/api/v1/policy", json={"approver_differs": True}, headers=tenant.headers())
    path = f"/api/v1/jobs/{second['id']}/approve"
    refused = client.post(path, headers=tenant.headers())
    assert (refused.status_code, refused.json()["detail"][:34]) == (409, "Whoever submitted a request may no")
    assert client.post(path, headers=tenant.headers("approve")).status_code == 200
    reached(client, tenant, request, "closed")


def test_what_another_request_removed_meanwhile_is_not_done_again(running, tmp_path):
    desk, client = running
    tenant = new_tenant(desk, "overlap", BY_PERSON)
    model = model_of(desk, tenant, tmp_path / "run")
    first = ask(client, tenant, "1", ["ann", "bob"])
    job = reached(client, tenant, first, "audited")["jobs"][0]["id"]
    second = ask(client, tenant, "2", ["ann"])
    reached(client, tenant, second, "matched")
    client.post(f"/api/v1/jobs/{job}/approve", headers=tenant.headers())
    found = reached(client, tenant, second, "closed")
    assert "served before" in [event["what"] for event in found["events"]]
    assert len(select(desk, sa.select(JOBS).where(JOBS.c.model == model))) == 1


def test_a_failed_job_says_why_and_can_be_tried_again(running, tmp_path, monkeypatch):
    desk, client = running
    tenant = new_tenant(desk, "failing")
    model_of(desk, tenant, tmp_path / "run")
    forget, calls = StandIn.forget, []

    def failing(self, work, say):
        calls.append(work.out)
        if len(calls) == 1:
            raise WorkError("The scrubbed network was ruined.", 9)
        return forget(self, work, say)

    monkeypatch.setattr(StandIn, "forget", failing)
    request = ask(client, tenant, "1", ["ann"])
    job = until(lambda: (jobs := get(client, tenant, request)["jobs"]) and jobs[0]["state"] == "failed" and jobs[0])
    assert (job["message"], len(calls)) == ("The scrubbed network was ruined.", 1)
    assert client.post(f"/api/v1/jobs/{job['id']}/retry", headers=tenant.headers()).status_code == 200
    reached(client, tenant, request, "closed")


def test_a_verdict_that_does_not_pass_waits_for_a_person_whatever_the_rule(running, tmp_path, monkeypatch):
    desk, client = running
    tenant = new_tenant(desk, "not passing")
    model_of(desk, tenant, tmp_path / "run")
    monkeypatch.setattr(desk.engine, "verdict", "inconclusive")
    request = ask(client, tenant, "1", ["ann"])
    found = reached(client, tenant, request, "audited")
    assert found["jobs"][0]["verdict"] == "inconclusive"
    desk.round()
    assert get(client, tenant, request)["state"] == "audited"


def test_a_request_near_its_date_is_warned_of_once_and_starts_its_batch(running, tmp_path):
    desk, client = running
    from datetime import timedelta

    from spotlessnet.serve.policy import Policy

    tenant = new_tenant(desk, "dates", Policy(approval="rule", audit_seeds=5, batch_minutes=600))
    model_of(desk, tenant, tmp_path / "run")
    patient = ask(client, tenant, "1", ["ann"])
    reached(client, tenant, patient, "matched")
    desk.round()
    assert get(client, tenant, patient)["state"] == "matched"
    with desk.database.begin() as connection:
        late = now() - timedelta(hours=1)
        connection.execute(REQUESTS.update().where(REQUESTS.c.id == patient).values(due=late))
    reached(client, tenant, patient, "closed")
    about = sa.select(EVENTS.c.what).where(EVENTS.c.request == patient, EVENTS.c.what.in_(("late", "due soon")))
    assert [row["what"] for row in select(desk, about)] == ["late"]
