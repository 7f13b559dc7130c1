"""What a second attack by hand found: dates and names that stopped everybody, networks changed on disk, copies left."""

# mypy: disable-error-code="attr-defined, func-returns-value, arg-type"

import json
import socket
import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from spotlessnet.core.errors import ResourceError, SettingError
from spotlessnet.serve import delivering, workflow
from spotlessnet.serve.addresses import PUBLIC, Allowed
from spotlessnet.serve.agreeing import agreement
from spotlessnet.serve.app import make_app
from spotlessnet.serve.database import EVENTS, ID_COPIES, JOBS, REQUESTS, empty_log, reading, rows_of
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.intake import submit
from spotlessnet.serve.planning import is_ready
from spotlessnet.serve.sealing import Keys
from spotlessnet.serve.trail import now
from tests.postgresql import new_database
from tests.serve.conftest import BY_PERSON, BY_RULE, PEOPLE, model_of, new_tenant, until
from tests.serve.stand_in import NETWORK, StandIn


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """One desk with its rounds and workflows, which the tests of this file share: each takes a tenant of its own."""
    desk = Desk.at(tmp_path_factory.mktemp("running") / "desk", engine=StandIn())
    with TestClient(make_app(desk)) as client:
        yield desk, client
    desk.close()


def ask(client, tenant, **told):
    answer = client.post("/api/v1/requests", json={"key": "1", "ids": ["ann"], **told}, headers=tenant.headers())
    assert answer.status_code == 201
    return answer.json()["id"]


def get(client, tenant, request):
    return client.get(f"/api/v1/requests/{request}", headers=tenant.headers()).json()


def reached(client, tenant, request, state):
    return until(lambda: (found := get(client, tenant, request))["state"] == state and found)


def events(desk, **chosen):
    query = sa.select(EVENTS).where(*(EVENTS.c[name] == value for name, value in chosen.items()))
    with reading(desk.database) as connection:
        return [one["what"] for one in rows_of(connection, query.order_by(EVENTS.c.number))]


def findings(desk):
    with reading(desk.database) as connection:
        return list(agreement(connection).mistakes)


def test_a_date_of_the_first_year_stops_nobody(running, tmp_path, monkeypatch):
    desk, client = running
    one, other = new_tenant(desk, "first year"), new_tenant(desk, "ours")
    for tenant in (one, other):
        model_of(desk, tenant, tmp_path / tenant.id)
    told = {"key": "1", "ids": ["ann"], "due": "0001-01-01T00:00:00Z"}
    assert client.post("/api/v1/requests", json=told, headers=one.headers()).status_code == 422
    # One that was let in before such dates were refused.
    monkeypatch.setattr("spotlessnet.serve.trail.YEARS", range(1, 9999))
    early = ask(client, one, due="0001-01-01T00:00:00Z")
    later = ask(client, other)
    assert all(reached(client, tenant, request, "closed") for tenant, request in ((one, early), (other, later)))


def test_the_first_date_of_all_is_urgent():
    first = [{"received": now(), "due": now().replace(year=1)}]
    assert is_ready(first, BY_RULE)


@pytest.mark.parametrize("moment", ["before it is judged", "before a person decides", "after a person decided"])
def test_a_network_that_was_changed_on_disk_is_not_published(running, tmp_path, monkeypatch, moment):
    desk, client = running
    tenant = new_tenant(desk, moment, BY_PERSON)
    model = model_of(desk, tenant, tmp_path / "run")
    changed = threading.Event()

    def change(job: str) -> None:
        (desk.folder / "models" / model / job / NETWORK).write_text(json.dumps(PEOPLE))
        changed.set()

    if moment == "before it is judged":
        replay = workflow.replaying.replay
        monkeypatch.setattr(
            workflow.replaying, "replay", lambda desk, row, work: (replay(desk, row, work), change(row["id"]))
        )
    request = ask(client, tenant)
    [job] = until(lambda: get(client, tenant, request)["jobs"])
    job = job["id"]
    asking = {"headers": tenant.headers()}
    if moment == "before a person decides":
        reached(client, tenant, request, "audited")
        change(job)
        refused = client.post(f"/api/v1/jobs/{job}/approve", **asking)
        assert (refused.status_code, "changed since" in refused.json()["detail"]) == (409, True)
    elif moment == "after a person decided":
        reached(client, tenant, request, "audited")
        decided = workflow.reach
        monkeypatch.setattr(workflow, "reach", lambda *told: (decided(*told), change(job)))
        assert client.post(f"/api/v1/jobs/{job}/approve", **asking).status_code == 200
    if moment != "before a person decides":
        until(lambda: client.get(f"/api/v1/jobs/{job}", **asking).json()["state"] == "failed")
    assert changed.is_set()
    monkeypatch.undo()
    assert not (desk.folder / "published" / tenant.id).exists()
    assert findings(desk) == []
    # There is a way on: made again, it is the right one.
    assert client.post(f"/api/v1/jobs/{job}/send-back", json={}, **asking).status_code == 200
    assert findings(desk) == []
    found = until(lambda: [one for one in get(client, tenant, request)["jobs"] if one["state"] == "audited"])
    assert client.post(f"/api/v1/jobs/{found[0]['id']}/approve", **asking).status_code == 200
    reached(client, tenant, request, "closed")
    left = json.loads((desk.folder / "published" / tenant.id / "digits" / NETWORK).read_text())
    assert left == PEOPLE[1:]


def test_a_result_that_a_rule_approved_and_a_person_sent_back_agrees_with_the_trail(running, tmp_path, monkeypatch):
    desk, client = running
    tenant = new_tenant(desk, "by rule", BY_RULE)
    model_of(desk, tenant, tmp_path / "run")
    monkeypatch.setattr(workflow, "publish", lambda *_: 1 / 0)
    monkeypatch.setattr(workflow, "take_back", lambda *_: None)
    request = ask(client, tenant)
    [job] = until(lambda: [one for one in get(client, tenant, request)["jobs"] if one["state"] == "failed"])
    monkeypatch.undo()
    assert client.post(f"/api/v1/jobs/{job['id']}/send-back", json={}, headers=tenant.headers()).status_code == 200
    assert findings(desk) == []
    reached(client, tenant, request, "closed")


def test_a_verdict_that_was_changed_before_it_was_judged_is_found(desk, tmp_path, monkeypatch):
    desk.engine.verdict = "not forgotten"
    tenant = new_tenant(desk, "verdict", BY_RULE)
    model_of(desk, tenant, tmp_path / "run")
    with TestClient(make_app(desk)) as client:

        def edited(*_):
            with desk.database.begin() as connection:
                connection.execute(JOBS.update().values(verdict="forgotten"))

        monkeypatch.setattr(workflow.replaying, "replay", edited)
        ask(client, tenant)
        found = until(lambda: findings(desk))
    assert any("its result is not the one that was made" in one or "at its end" in one for one in found)


def test_who_was_warned_that_a_request_is_due_soon_is_told_when_it_is_late(desk, tenant, client):
    request = ask(client, tenant, due=(now() + timedelta(hours=1)).isoformat())
    client.post(f"/api/v1/requests/{request}/hold", headers=tenant.headers())
    desk.round()
    desk.round()
    assert events(desk, request=request) == ["received", "held", "due soon"]
    with desk.database.begin() as connection:  # an hour later
        hours = {"due": now() - timedelta(minutes=1), "warned": now() - timedelta(hours=1)}
        connection.execute(REQUESTS.update().values(**hours))
    desk.round()
    desk.round()
    assert events(desk, request=request) == ["received", "held", "due soon", "late"]


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nX-Long: ", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b""]
)
def test_a_program_that_drips_its_answer_is_left_in_time(monkeypatch, answer):
    monkeypatch.setattr(delivering, "SECONDS", 0.6)
    ended = threading.Event()

    def drip(server: socket.socket) -> None:
        line, _ = server.accept()
        with line:
            line.sendall(answer)
            while not ended.wait(0.2):
                try:
                    line.sendall(b"H" if answer else b"")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        begin = time.monotonic()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        with pytest.raises(ResourceError, match="TimeoutError"):
            delivering.post(url, {}, b"{}", Allowed.of(["127.0.0.0/8"]))
        taken = time.monotonic() - begin
        ended.set()
        thread.join()
    assert taken < 1.5


@pytest.mark.parametrize("address", ["fec0::1", "64:ff9b::7f00:1", "64:ff9b:1::a00:1", "::7f00:1", "::ffff:0:7f00:1"])
def test_addresses_of_a_site_or_behind_a_gateway_are_not_public(address):
    from ipaddress import ip_address

    assert not PUBLIC.holds(ip_address(address))
    assert PUBLIC.holds(ip_address("2606:2800:220:1:248:1893:25c8:1946"))


def test_a_name_that_stands_twice_loses_nobody(client, tenant):
    told = '{"key": "1", "ids": ["ann"], "ids": ["bob"]}'
    headers = {**tenant.headers(), "Content-Type": "application/json"}
    assert client.post("/api/v1/requests", content=told, headers=headers).status_code == 400
    one = '[{"identity_type": "controller_customer_id", "identity_value": "ann", "identity_value": "bob"}]'
    told = '"subject_request_id": "a7551968-d5d6-44b2-9831-815ac9017798", "subject_request_type": "erasure"'
    told = f'{{{told}, "subject_identities": {one}}}'
    assert client.post("/opendsr/v3/requests", content=told, headers=headers).status_code == 400


@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
@pytest.mark.parametrize("method", ["x" * 81, "a\0b", ""])
def test_a_method_that_no_job_can_have_is_refused_and_stops_nobody(request, tmp_path, monkeypatch, where, method):
    database = None if where == "sqlite" else new_database(request.getfixturevalue("postgresql"))
    desk = Desk.at(tmp_path / "desk", database=database, engine=StandIn(verdict="inconclusive"))
    one, other = new_tenant(desk, "one"), new_tenant(desk, "other", BY_PERSON)
    for tenant in (one, other):
        model_of(desk, tenant, tmp_path / tenant.id)
    with TestClient(make_app(desk)) as client:
        asked = ask(client, one)
        [job] = reached(client, one, asked, "audited")["jobs"]
        back = {"json": {"method": method}, "headers": one.headers()}
        assert client.post(f"/api/v1/jobs/{job['id']}/send-back", **back).status_code == 422
        # Where one came in all the same, nobody else waits behind it.
        monkeypatch.setattr("spotlessnet.serve.matching.LONGEST_METHOD", 10_000)
        workflow.decide(desk, one.id, job["id"], "test", approve=False, method="x" * 81)
        until(lambda: "withdrawn" in events(desk, job=job["id"]))
        asked = ask(client, other)
        assert reached(client, other, asked, "audited")
    desk.close()


def test_a_setting_names_no_file_outside_however_it_is_spelled(desk, tmp_path):
    inside = tmp_path / "in" / "run"
    (tmp_path / "in" / "odd:").mkdir(parents=True)
    desk = replace(desk, roots=(tmp_path / "in",))
    assert desk.check_allowed(inside, {"test": f"{tmp_path}/in/code.py:test", "method": "retrain"}) == inside
    for text in (f"{tmp_path}/in/odd:/../../code.py:test", f"{tmp_path}/data.npz", "package.module:test"):
        with pytest.raises(SettingError, match="--trainings"):
            desk.check_allowed(inside, {"test": text})


def test_where_webhooks_lead_is_seen_by_who_may_operate_alone(client, tenant):
    made = {"url": "https://example.org/hook-with-a-word"}
    assert client.post("/api/v1/webhooks", json=made, headers=tenant.headers()).status_code == 201
    for scope, is_seen in (("read", False), ("all", True)):
        client.cookies.clear()
        client.post("/login", data={"token": tenant.tokens[scope]})
        page = client.get("/settings")
        assert (page.status_code, "hook-with-a-word" in page.text) == (200, is_seen)


def test_the_encrypted_copy_of_a_closed_request_is_in_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("spotlessnet.serve.app.LOOK", 0.1)
    desk = Desk.at(tmp_path / "desk", engine=StandIn())
    tenant = new_tenant(desk, "one")
    with desk.database.begin() as connection:
        told = {"key": "1", "ids": ["nobody"], "submitter": "test"}
        request = submit(connection, desk.keys, tenant.id, BY_RULE, **told).id
    with reading(desk.database) as connection:
        sealed = bytes(connection.execute(sa.select(ID_COPIES.c.sealed)).scalar_one())

    def holding() -> list[str]:
        return [one.name for one in desk.folder.iterdir() if one.is_file() and sealed in one.read_bytes()]

    assert holding()
    with TestClient(make_app(desk)) as client:
        reached(client, tenant, request, "closed")
        until(lambda: not holding())
    desk.close()


def test_a_log_that_somebody_reads_is_emptied_later_and_keeps_nobody_waiting(desk, tenant):
    with reading(desk.database) as connection:
        connection.execute(sa.select(REQUESTS)).all()
        with desk.database.begin() as other:
            submit(other, desk.keys, tenant.id, BY_RULE, key="1", ids=["ann"], submitter="test")
        begin = time.monotonic()
        assert not empty_log(desk.database)
        assert time.monotonic() - begin < 2
    assert empty_log(desk.database)
    assert (desk.folder / "desk.sqlite-wal").stat().st_size == 0


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (ID_COPIES.delete(), "was removed"),
        (ID_COPIES.update().values(sealed=b"other"), "not the one that was received"),
        (REQUESTS.update().values(state="closed"), "its ids are kept, though it has ended"),
    ],
)
def test_copies_of_ids_that_another_hand_touched_are_found(desk, tenant, client, edit, found):
    ask(client, tenant)
    assert findings(desk) == []
    with desk.database.begin() as connection:
        connection.execute(edit)
    assert any(found in one for one in findings(desk))


def test_a_key_for_ids_that_others_may_read_is_refused(tmp_path):
    keys = Keys.at(tmp_path / "desk.key")
    (tmp_path / "desk.key").chmod(0o440)
    assert Keys.at(tmp_path / "desk.key") == keys
    (tmp_path / "desk.key").chmod(0o644)
    with pytest.raises(ResourceError, match="must be kept from others, but its mode is 644"):
        Keys.at(tmp_path / "desk.key")


@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
def test_a_character_0_is_the_callers_mistake(request, tmp_path, where):
    database = None if where == "sqlite" else new_database(request.getfixturevalue("postgresql"))
    desk = Desk.at(tmp_path / "desk", database=database, engine=StandIn(), roots=(tmp_path,))
    tenant = new_tenant(desk, "one")
    told = {"name": "x", "folder": "\0"}
    setting = {**told, "folder": str(tmp_path), "settings": {"test": "\0:x"}}
    with TestClient(make_app(desk, run=False), headers=tenant.headers()) as client:
        client.post("/login", data={"token": tenant.tokens["all"]})
        seen = [client.post("/api/v1/models", json=one).status_code for one in (told, setting)]
        seen += [client.post(f"/api/v1/{one}").status_code for one in ("requests/%00/cancel", "jobs/%00/approve")]
        seen += [client.delete(f"/api/v1/{one}/%00").status_code for one in ("tokens", "webhooks")]
        pages = ("requests/%00", "jobs/%00/report", "requests/%00/receipt", "requests/%00/live")
        seen += [client.get(f"/{one}").status_code for one in (*pages, "api/v1/requests/%00", "api/v1/jobs/%00")]
    desk.close()
    assert set(seen) <= {404, 422}
