"""What a hostile or careless caller may try, and what the machine may lack: refused in words, logged without any."""

import json
import logging
import socket
import threading
import time

import pytest
import sqlalchemy as sa
import uvicorn
from fastapi.testclient import TestClient

from spotlessnet.serve import app as service
from spotlessnet.serve import live, watching
from spotlessnet.serve.app import make_app
from spotlessnet.serve.database import REQUESTS, reading
from spotlessnet.serve.intake import submit
from spotlessnet.serve.looking import models_of, requests_in
from tests.serve.conftest import BY_RULE, model_of, new_tenant
from tests.serve.test_pages import enter


def ask(desk, tenant, key, ids, **more) -> str:
    with desk.database.begin() as connection:
        return submit(connection, desk.keys, tenant.id, BY_RULE, key=key, ids=ids, submitter="test", **more).id


@pytest.fixture
def port(app):
    """The service behind a real socket."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=number, log_level="error", log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield number
    server.should_exit = True
    thread.join(20)


def test_a_call_that_is_too_slow_to_come_is_ended(port, monkeypatch):
    monkeypatch.setattr(service, "SLOWEST", 0.2)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as caller:
        head = (
            "POST /api/v1/requests HTTP/1.1\r\nHost: desk\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
        )
        caller.sendall(f'{head}\r\n{{"key"'.encode())
        answer = caller.recv(4096).decode()
    assert answer.startswith("HTTP/1.1 408")
    assert "nosniff" in answer  # such answers too have all headers


def test_a_call_that_is_too_long_is_ended_with_all_headers_and_a_line_in_the_log(client, tenant, caplog):
    with caplog.at_level(logging.INFO, watching.LOG.name):
        answer = client.post("/api/v1/requests", content=b"x" * (service.LARGEST + 1), headers=tenant.headers())
    assert (answer.status_code, answer.headers["x-content-type-options"]) == (413, "nosniff")
    assert [one.told["status"] for one in caplog.records] == [413]


def test_where_the_database_is_locked_or_full_a_caller_is_asked_to_come_again(desk, client, tenant, monkeypatch):
    def full(*_):
        raise sa.exc.OperationalError("INSERT", {"key": "Canary-7"}, OSError(28, "database or disk is full"))

    sa.event.listen(desk.database, "commit", full)
    told = {"json": {"key": "1", "ids": ["Canary-7"]}, "headers": tenant.headers()}
    answer = client.post("/api/v1/requests", **told)
    sa.event.remove(desk.database, "commit", full)
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
    assert "Canary" not in answer.text
    assert client.post("/api/v1/requests", **told).status_code == 201


def test_what_others_log_comes_without_the_words_that_it_was_given(capfd, monkeypatch):
    roots = {one: (logging.getLogger(one).handlers[:], logging.getLogger(one).propagate) for one in ("", "dbos")}
    before = watching.LOG.handlers[:]
    try:
        watching.start_log()
        for name in ("dbos", "sqlalchemy.pool", "asyncio", "uvicorn.error"):
            try:
                raise ValueError("Canary-8")
            except ValueError:
                logging.getLogger(name).error("it failed", exc_info=True)
        logging.getLogger("dbos").error("Canary-8")
    finally:
        watching.LOG.handlers[:] = before
        watching.LOG.propagate = True
        for one, (handlers, propagate) in roots.items():
            logging.getLogger(one).handlers[:], logging.getLogger(one).propagate = handlers, propagate
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [one["event"] for one in lines] == ["dbos", "sqlalchemy.pool", "asyncio", "it failed", "dbos"]
    assert [one.get("error") for one in lines] == ["ValueError"] * 4 + [None]
    assert "Canary" not in str(lines)


def test_a_tenant_can_have_so_many_pages_that_keep_themselves_fresh_and_no_more(desk, app, tenant, monkeypatch):
    request = ask(desk, tenant, "1", ["nobody"])
    with TestClient(app) as client:
        enter(client, tenant.tokens["all"])
        app.state.live[tenant.id] = live.MOST_LIVE
        assert client.get(f"/requests/{request}/live").status_code == 503
        app.state.live.clear()
        monkeypatch.setattr(live, "LIVE", 0.5)
        assert client.get(f"/requests/{request}/live").status_code == 200
        assert app.state.live[tenant.id] == 0


def test_a_page_cannot_begin_at_another_tenants_request(desk, tenant):
    """Otherwise whoever knows its name could learn when it is due."""
    other = new_tenant(desk, "other")
    [own, last] = [ask(desk, tenant, key, ["ann"]) for key in "12"]
    foreign = ask(desk, other, "1", ["ann"])
    with reading(desk.database) as connection:
        assert [one["id"] for one in requests_in(connection, tenant.id, after=own)] == [last]
        assert len(requests_in(connection, tenant.id, after=foreign)) == 2


def test_a_red_seal_names_nothing_of_another_tenant(desk, tenant):
    other = new_tenant(desk, "other")
    request = ask(desk, other, "1", ["nobody"])
    desk.round()
    with TestClient(make_app(desk, run=False)) as client:
        enter(client, tenant.tokens["all"])
        assert "whole" in client.get("/ledger").text
        with desk.database.begin() as connection:
            connection.execute(REQUESTS.update().where(REQUESTS.c.id == request).values(outcome="something else"))
        page = client.get("/ledger").text
        assert "✘ changed" in page
        assert request not in page
        # Whoever is alone at the desk is told what was found.
        connection = desk.database.raw_connection()
        connection.execute("PRAGMA foreign_keys=OFF")
        connection.execute("DELETE FROM tenants WHERE id = ?", [other.id])
        connection.commit()
        connection.close()
        assert request in client.get("/ledger").text


def test_a_model_that_came_after_a_request_says_whom_it_holds(desk, client, tenant, tmp_path):
    """The request was matched and closed before; nobody would look for its people in the new model by itself."""
    ask(desk, tenant, "1", ["ann", "nobody"])
    desk.round()
    model_of(desk, tenant, tmp_path / "run")
    foreign = new_tenant(desk, "other")
    model_of(desk, foreign, tmp_path / "other")

    def held(of):
        with reading(desk.database) as connection:
            return [one["asked_before"] for one in models_of(connection, of.id)]

    assert (held(tenant), held(foreign)) == ([1], [0])
    assert "spotless_people_asked_before 1" in client.get("/metrics", headers=tenant.headers()).text
    enter(client, tenant.tokens["all"])
    assert "1 person who asked to be forgotten before" in client.get("/models").text
    ask(desk, tenant, "1, again", ["ann"])
    desk.round()
    assert held(tenant) == [0]
