"""A canary's id goes through every state, cancelled and failed, and is then looked for in all that was written."""

import io
import json
import logging

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from spotlessnet.serve.addresses import Allowed
from spotlessnet.serve.app import make_app
from spotlessnet.serve.database import ID_COPIES, reading
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.engine import WorkError
from spotlessnet.serve.watching import LOG, Lines
from tests.serve.conftest import BY_PERSON, PEOPLE, model_of, new_tenant, until
from tests.serve.listening import listening
from tests.serve.stand_in import StandIn
from tests.serve.test_pages import PAGES, enter

CANARIES = [f"Canary-{state}-0815" for state in ("closed", "back", "cancelled", "failed", "wrong", "held", "dsr")]
UUID = "a7551968-d5d6-44b2-9831-815ac9017798"


class Failing(StandIn):
    """Fails with a text of its own, once, where a certain canary is to be forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = False

    def forget(self, work, say):
        if "Canary-failed-0815" in work.ids and not self.failed:
            self.failed = True
            raise WorkError("The scrubbed network was ruined.", 9)
        return super().forget(work, say)


@pytest.fixture
def log():
    """What the desk logs."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Lines())
    before = (LOG.handlers[:], LOG.level, LOG.propagate)
    LOG.handlers[:] = [handler]
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
    yield stream
    LOG.handlers[:], level, LOG.propagate = before
    LOG.setLevel(level)


class Visitor:
    """Somebody who sends requests and waits for states."""

    def __init__(self, client, tenant) -> None:
        self.client, self.headers = client, tenant.headers()

    def post(self, path, told=None):
        return self.client.post(path, json={} if told is None else told, headers=self.headers)

    def get(self, request):
        return self.client.get(f"/api/v1/requests/{request}", headers=self.headers).json()

    def ask(self, name):
        told = {"key": f"letter of {name}", "ids": [name, "nobody"]}
        return str(self.post("/api/v1/requests", told).json()["id"])

    def reach(self, request, state):
        return until(lambda: (found := self.get(request))["state"] == state and found)

    def job(self, request, state):
        return until(lambda: (jobs := self.get(request)["jobs"]) and jobs[0]["state"] == state and jobs[0]["id"])

    def decide(self, request, how):
        assert self.post(f"/api/v1/jobs/{self.job(request, 'audited')}/{how}").status_code == 200


def go_through_all(visitor: Visitor) -> None:
    """Every state and every way out of it."""
    closed, back, cancelled, failed, wrong, held, dsr = CANARIES
    one = visitor.ask(closed)
    visitor.decide(one, "approve")
    visitor.reach(one, "closed")
    one = visitor.ask(back)
    job = visitor.job(one, "audited")
    visitor.post(f"/api/v1/jobs/{job}/send-back", {"why": "too far", "method": "retrain"})
    until(lambda: (jobs := visitor.get(one)["jobs"]) and jobs[0]["id"] != job)
    visitor.decide(one, "approve")
    visitor.reach(one, "closed")
    one = visitor.ask(failed)
    job = visitor.job(one, "failed")
    two = visitor.ask(cancelled)
    visitor.reach(two, "matched")
    assert visitor.post(f"/api/v1/requests/{two}/cancel").status_code == 200
    assert visitor.post(f"/api/v1/jobs/{job}/retry").status_code == 200
    visitor.decide(one, "approve")
    visitor.reach(one, "closed")
    one = visitor.ask(held)
    visitor.post(f"/api/v1/requests/{one}/hold")
    assert visitor.post(f"/api/v1/requests/{one}/resume").status_code in (200, 409)
    visitor.decide(one, "approve")
    visitor.reach(one, "closed")
    told = {"subject_request_id": UUID, "subject_request_type": "erasure"}
    who = [{"identity_type": "controller_customer_id", "identity_value": dsr}]
    assert visitor.post("/opendsr/v3/requests", {**told, "subject_identities": who}).status_code == 201
    for bad in ({"key": wrong, "ids": [{wrong: 1}]}, {"key": wrong, "ids": []}, {wrong: wrong}, [wrong]):
        answer = visitor.post("/api/v1/requests", bad)
        assert answer.status_code == 422
        assert wrong not in answer.text
    visitor.client.get(f"/api/v1/requests/{wrong}?after={wrong}", headers=visitor.headers)
    visitor.client.get(f"/{wrong}", headers={"Referer": wrong, "User-Agent": wrong})


def test_nothing_that_the_desk_writes_holds_the_id_of_a_person(tmp_path, log):
    desk = Desk.at(tmp_path / "desk", engine=Failing(), webhooks_to=Allowed.of(["127.0.0.0/8"]))
    owner, other = new_tenant(desk, "owner", BY_PERSON), new_tenant(desk, "other")
    model_of(desk, owner, tmp_path / "run", [*PEOPLE, *CANARIES])
    shown: dict[str, str] = {}
    with listening() as heard, TestClient(make_app(desk)) as client:
        assert client.post("/api/v1/webhooks", json={"url": heard.url}, headers=owner.headers()).status_code == 201
        visitor = Visitor(client, owner)
        go_through_all(visitor)
        for one in listed(visitor):
            if one["state"] not in ("closed", "cancelled"):
                visitor.decide(one["id"], "approve")
                visitor.reach(one["id"], "closed")
        requests = [one["id"] for one in listed(visitor)]
        assert len(requests) == 6
        for one in requests:
            for path in (f"/api/v1/requests/{one}", f"/api/v1/requests/{one}/receipt"):
                shown[path] = client.get(path, headers=owner.headers()).text
        for path in ("/metrics", "/api/v1/models", "/api/v1/ledger", "/api/v1/suppression", "/openapi.json"):
            shown[path] = client.get(path, headers=owner.headers()).text
        for tenant in (owner, other):
            enter(client, tenant.tokens["all"])
            pages = [*PAGES, *(f"/requests/{one}" for one in requests)]
            shown |= {f"{tenant.id}{page}": client.get(page).text for page in pages}
        shown["webhooks"] = str(heard.messages)
        assert "request.cancelled" in shown["webhooks"]
        assert "request.failed" in shown["webhooks"]
    with reading(desk.database) as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(ID_COPIES)).scalar_one() == 0
    desk.close()
    shown["log"] = log.getvalue()
    assert shown["log"].count('"event": "call"') > 20
    assert all(json.loads(line)["event"] for line in shown["log"].splitlines())
    # The training itself knows whom it saw, and the stand-in's networks are lists of names.
    known = b"".join(path.read_bytes() for path in desk.folder.rglob("network.json"))
    assert CANARIES[4].encode() in known, "whoever asked for nothing is still there, and would be found"
    files = {
        path: path.read_bytes() for path in desk.folder.rglob("*") if path.is_file() and path.name != "network.json"
    }
    assert {"desk.sqlite", "workflows.sqlite"} <= {path.name for path in files}
    for name in CANARIES:
        assert [where for where, text in shown.items() if name in text] == []
        assert [path.name for path, content in files.items() if name.encode() in content] == []


def listed(visitor):
    """All requests of the tenant."""
    return visitor.client.get("/api/v1/requests?kind=all", headers=visitor.headers).json()["requests"]


def test_health_and_readiness_need_no_token_and_say_when_rounds_stop(client, app, monkeypatch):
    assert client.get("/healthz").json()["status"] == "ok"
    assert client.get("/readyz").json() == {"status": "ok"}
    app.state.last_round -= 100
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["status"][:12]) == (503, "the desk has")
    assert client.get("/healthz").status_code == 200


def test_metrics_are_in_the_format_of_prometheus(client, tenant):
    answer = client.get("/metrics", headers=tenant.headers("read"))
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    named = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    values = [line for line in lines if not line.startswith("#")]
    assert {line.partition("{")[0].split()[0] for line in values} == named
    assert all(float(line.split()[-1]) >= 0 for line in values)


def test_an_error_in_the_log_has_its_kind_and_not_its_text(log):
    try:
        raise ValueError("Canary-log")
    except ValueError:
        LOG.exception("round failed")
    assert json.loads(log.getvalue())["error"] == "ValueError"
    assert "Canary" not in log.getvalue()
