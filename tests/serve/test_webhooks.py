"""Webhooks: signed, at least once, in order, again after a failure, never with an id, and never to the inside."""

import base64
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from spotlessnet.core.errors import SettingError
from spotlessnet.serve import delivering
from spotlessnet.serve.addresses import PUBLIC, Allowed, place_of, resolved
from spotlessnet.serve.app import make_app
from spotlessnet.serve.database import DELIVERIES, EVENTS, WEBHOOKS, reading, rows_of
from spotlessnet.serve.delivering import FIRST_WAIT, LONGEST_WAIT, MOST_ATTEMPTS, Courier, wait_after
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.intake import submit
from spotlessnet.serve.trail import STEPS, now
from spotlessnet.serve.webhooks import add_webhook
from tests.postgresql import new_database
from tests.serve.conftest import BY_RULE, model_of, new_tenant, until
from tests.serve.listening import listening
from tests.serve.stand_in import StandIn

PAGE = Path(__file__).parents[2] / "docs" / "webhooks.md"
HERE = Allowed.of(["127.0.0.0/8"])


def is_ours(*told):
    """The lines of the guide, run."""
    [code] = re.findall(r"^```python[^\n]*\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    names: dict[str, object] = {}
    exec(code, names)
    return names["is_ours"](*told)  # type: ignore[operator]


@pytest.fixture
def heard():
    with listening() as one:
        yield one


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request) -> str | None:
    """Where a desk keeps its tables."""
    return None if request.param == "sqlite" else new_database(request.getfixturevalue("postgresql"))


@pytest.fixture
def open_desk(tmp_path, database):
    """A desk that may call this machine."""
    made = Desk.at(tmp_path / "desk", database=database, engine=StandIn(), webhooks_to=HERE)
    yield made
    made.close()


def hook_for(desk, tenant, url):
    with desk.database.begin() as connection:
        return add_webhook(connection, desk.keys, tenant.id, url, "test", desk.webhooks_to)


def ask(desk, tenant, key, ids=("nobody",)):
    with desk.database.begin() as connection:
        return submit(connection, desk.keys, tenant.id, BY_RULE, key=key, ids=list(ids), submitter="test").id


def rows(desk, table):
    with reading(desk.database) as connection:
        return rows_of(connection, sa.select(table).order_by(*table.primary_key))


def visits(desk, count=1):
    """Let a courier go to every webhook, as often as told, without waiting for its time."""
    for _ in range(count):
        with desk.database.begin() as connection:
            connection.execute(WEBHOOKS.update().values(next=None))
        courier = Courier(desk)
        courier.once()
        courier.pool.shutdown(wait=True)


def test_each_step_is_told_once_in_order_signed_and_without_ids(tmp_path, heard, database):
    desk = Desk.at(tmp_path / "desk", database=database, engine=StandIn(), webhooks_to=HERE)
    tenant = new_tenant(desk, "told")
    model_of(desk, tenant, tmp_path / "run")
    with TestClient(make_app(desk)) as client:
        made = client.post("/api/v1/webhooks", json={"url": heard.url}, headers=tenant.headers("operate"))
        assert made.status_code == 201
        secret = made.json()["secret"]
        told = {"key": "of Canary-1", "ids": ["ann", "Canary-1"]}
        request = client.post("/api/v1/requests", json=told, headers=tenant.headers()).json()["id"]
        until(lambda: any(b"request.closed" in body for _, body in heard.messages))
        receipt = client.get(f"/api/v1/requests/{request}/receipt", headers=tenant.headers()).json()["receipt"]
        [listed] = client.get("/api/v1/webhooks", headers=tenant.headers("operate")).json()["webhooks"]
    messages = [json.loads(body) for _, body in heard.messages]
    assert [one["type"] for one in messages] == [f"request.{step}" for step in STEPS]
    assert [one["data"]["state"] for one in messages] == list(STEPS)
    assert {one["data"]["request"] for one in messages} == {request}
    assert len(set(heard.names)) == len(STEPS)
    digest = hashlib.sha256(base64.b64decode(receipt["payload"])).hexdigest()
    assert (messages[-1]["data"]["receipt_sha256"], messages[-1]["data"]["entry"]) == (digest, 0)
    assert all(is_ours(secret, headers, body) for headers, body in heard.messages)
    everything = str(heard.messages)
    assert "Canary" not in everything
    assert '"ann"' not in everything
    assert (listed["waiting"], listed["answer"], "secret" in listed) == (0, "204", False)
    assert rows(desk, DELIVERIES) == []
    desk.close()


def test_the_lines_of_the_guide_refuse_what_was_changed_or_is_old(open_desk, tenant, heard):
    owner = new_tenant(open_desk, "owner")
    _, secret = hook_for(open_desk, owner, heard.url)
    ask(open_desk, owner, "1")
    visits(open_desk)
    [(headers, body)] = heard.messages
    assert is_ours(secret, headers, body)
    assert not is_ours(secret, headers, body.replace(b"received", b"closed"))
    assert not is_ours(secret, {**headers, "webhook-id": "evt_2"}, body)
    old = str(int(headers["webhook-timestamp"]) - 301)
    assert not is_ours(secret, {**headers, "webhook-timestamp": old}, body)
    assert not is_ours("whsec_" + base64.b64encode(bytes(32)).decode(), headers, body)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_secret_is_nowhere_in_the_database_and_unlike_for_each_webhook(open_desk, heard):
    owner = new_tenant(open_desk, "owner")
    secrets = [hook_for(open_desk, owner, heard.url)[1] for _ in range(2)]
    assert len(set(secrets)) == 2
    open_desk.close()
    content = b"".join(one.read_bytes() for one in open_desk.folder.glob("desk.sqlite*"))
    for secret in secrets:
        assert secret.encode() not in content
        assert base64.b64decode(secret.removeprefix("whsec_")) not in content


def test_a_webhook_hears_of_its_own_tenant_alone(open_desk, heard):
    one, two = new_tenant(open_desk, "one"), new_tenant(open_desk, "two")
    hook_for(open_desk, one, heard.url)
    ask(open_desk, two, "theirs")
    mine = ask(open_desk, one, "mine")
    open_desk.round()
    visits(open_desk)
    assert {json.loads(body)["data"]["request"] for _, body in heard.messages} == {mine}


@pytest.mark.parametrize("status", [500, 404, 302])
def test_a_failure_is_tried_again_in_order_and_given_up_at_last(open_desk, heard, status):
    owner = new_tenant(open_desk, "owner")
    hook_for(open_desk, owner, heard.url)
    request = ask(open_desk, owner, "1")
    open_desk.round()  # received, matched and closed
    heard.answer = lambda: status
    visits(open_desk, 2)
    [hook] = rows(open_desk, WEBHOOKS)
    assert (hook["failures"], hook["answer"]) == (2, str(status))
    assert hook["next"] > now() + timedelta(seconds=FIRST_WAIT)
    Courier(open_desk).once()
    assert len(heard.messages) == 2, "its time has not come"
    visits(open_desk, MOST_ATTEMPTS - 2)
    assert len(heard.messages) == MOST_ATTEMPTS
    assert len(set(heard.names)) == 1, "the second waits for the first"
    heard.answer = lambda: 200
    visits(open_desk)
    assert [json.loads(body)["type"] for _, body in heard.messages[MOST_ATTEMPTS:]] == [
        "request.matched",
        "request.closed",
    ]
    [left] = rows(open_desk, DELIVERIES)
    assert left["given_up"] is not None
    [event] = [one for one in rows(open_desk, EVENTS) if one["what"] == "webhook given up"]
    assert (event["request"], event["detail"]["attempts"]) == (request, MOST_ATTEMPTS)


def test_what_is_days_old_is_given_up_at_a_failure(open_desk, heard):
    owner = new_tenant(open_desk, "owner")
    hook_for(open_desk, owner, heard.url)
    old = ask(open_desk, owner, "1")
    with open_desk.database.begin() as connection:
        connection.execute(DELIVERIES.update().values(at=now() - timedelta(days=4)))
    ask(open_desk, owner, "2")
    heard.answer = lambda: 503
    visits(open_desk)
    assert [one["given_up"] is None for one in rows(open_desk, DELIVERIES)] == [False, True]
    [event] = [one for one in rows(open_desk, EVENTS) if one["what"] == "webhook given up"]
    assert (event["request"], event["detail"]["attempts"]) == (old, 1)


def test_waits_grow_up_to_an_hour():
    seconds = [wait_after(failures).total_seconds() for failures in (1, 2, 8, 11, 500)]
    for found, wanted in zip(seconds, (FIRST_WAIT, 2 * FIRST_WAIT, 640, LONGEST_WAIT, LONGEST_WAIT), strict=True):
        assert 0.9 * wanted <= found <= 1.1 * wanted


KILLED = """
import sys, time
from pathlib import Path
from spotlessnet.serve.addresses import Allowed
from spotlessnet.serve.delivering import Courier
from spotlessnet.serve.desk import Desk
place, database = sys.argv[1:]
Courier(Desk.at(Path(place), database=database or None, webhooks_to=Allowed.of(["127.0.0.0/8"]))).start()
time.sleep(60)
"""


@pytest.mark.slow
def test_a_courier_that_is_killed_in_a_delivery_loses_nothing(open_desk, database, heard):
    owner = new_tenant(open_desk, "owner")
    hook_for(open_desk, owner, heard.url)
    ask(open_desk, owner, "1")
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(open_desk.folder), database or ""])

    def killing() -> int:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return 204

    heard.answer = killing
    until(lambda: heard.messages, 60)
    assert process.wait() == -signal.SIGKILL
    heard.answer = lambda: 204
    [hook] = rows(open_desk, WEBHOOKS)
    assert now() < hook["next"] < now() + delivering.TAKEN, "taken by the one that was killed, for a while"
    Courier(open_desk).once()
    assert len(heard.messages) == 1
    visits(open_desk)
    [first, second] = heard.names
    assert first == second, "the receiver can tell that it is the same"
    assert rows(open_desk, DELIVERIES) == []


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "//example.org/",
        "https://",
        "http://[::1",
        "https://example.org:99999/",
        "https://user:word@example.org/",
        "https://example.org/#part",
        "https://example.org/ü",
        "https://example.org/a b",
        "https://example.org/\r\nX-Other: 1",
        "https://example.org/" + "x" * 2000,
        "http://127.0.0.1:8000/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1]/",
        "http://[::1]/",
        "http://[::ffff:169.254.169.254]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[2002:a9fe:a9fe::1]/",
        "http://10.0.0.1/",
        "http://0.0.0.0/",
        "http://224.0.0.1/",
    ],
)
def test_what_is_no_public_address_of_the_web_is_refused(client, tenant, url):
    answer = client.post("/api/v1/webhooks", json={"url": url}, headers=tenant.headers("operate"))
    assert answer.status_code == 422
    with pytest.raises(SettingError, match="A webhook"):
        place_of(url, PUBLIC)


@pytest.mark.parametrize("host", ["127.0.0.1", "0x7f000001", "2130706433", "127.1", "localhost"])
def test_a_name_that_leads_inside_is_refused_at_the_call(open_desk, heard, host, monkeypatch):
    """Whatever the system makes of a host's name, the address is looked at."""
    place = place_of(f"http://{host}.example/", PUBLIC)
    looked_up = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: looked_up)
    with pytest.raises(SettingError, match="must lead to a public address"):
        resolved(place, PUBLIC)
    public = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.215.14", 80))
    looked_up.insert(0, public)
    with pytest.raises(SettingError, match="must lead to a public address"):
        resolved(place, PUBLIC)
    assert resolved(place, HERE) == "93.184.215.14"


def test_a_name_that_was_changed_to_lead_inside_is_given_up_at_once(desk, tenant, heard, monkeypatch):
    hook_for(desk, tenant, heard.url.replace("127.0.0.1", "hook.example"))
    ask(desk, tenant, "1")
    inside = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: inside)
    visits(desk)
    assert heard.messages == []
    [hook] = rows(desk, WEBHOOKS)
    assert hook["answer"] == "not allowed"
    assert [one["given_up"] is None for one in rows(desk, DELIVERIES)] == [False]


def test_webhooks_are_added_and_removed_on_the_page_of_settings(client, desk, tenant):
    from tests.serve.test_pages import code_on, enter

    enter(client, tenant.tokens["all"])
    code = code_on(client.get("/settings").text)
    page = client.post("/settings/webhooks", data={"code": code, "url": "https://example.org/hook"}).text
    assert re.search(r"<code>whsec_[\w+/=]+</code>", page)
    assert "https://example.org/hook" in page
    assert "whsec_" not in client.get("/settings").text
    [hook] = rows(desk, WEBHOOKS)
    ask(desk, tenant, "1")
    assert "1 waiting" in client.get("/settings").text
    other = new_tenant(desk, "two")
    assert client.delete(f"/api/v1/webhooks/{hook['id']}", headers=other.headers()).status_code == 404
    client.post(f"/settings/webhooks/{hook['id']}/end", data={"code": code})
    assert (rows(desk, WEBHOOKS), rows(desk, DELIVERIES)) == ([], [])
    assert client.post("/settings/webhooks", data={"code": code, "url": "ftp://x"}).status_code == 422


def test_a_network_that_is_none_is_refused():
    with pytest.raises(SettingError, match="--webhooks-to must be an address or a network"):
        Allowed.of(["example.org"])


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_clock_that_was_ahead_does_not_silence_a_webhook_for_years(open_desk, heard):
    owner = new_tenant(open_desk, "clock")
    hook_for(open_desk, owner, heard.url)
    ask(open_desk, owner, "1")
    for ahead, messages in ((timedelta(seconds=LONGEST_WAIT), 0), (timedelta(days=365), 1)):
        with open_desk.database.begin() as connection:
            connection.execute(WEBHOOKS.update().values(next=now() + ahead))
        courier = Courier(open_desk)
        courier.once()
        courier.pool.shutdown(wait=True)
        assert len(heard.messages) == messages
