"""Pages: a person enters with a token, forms carry a code, and a page shows nothing of another tenant."""

import hashlib
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from fastapi.testclient import TestClient

from spotlessnet.serve import workflow
from spotlessnet.serve.access import add_token, caller_of, revoke_token
from spotlessnet.serve.app import make_app
from spotlessnet.serve.database import REQUESTS
from spotlessnet.serve.demo import demo_app
from spotlessnet.serve.live import message
from spotlessnet.serve.pages import STATIC
from spotlessnet.serve.trail import now
from tests.serve.conftest import BY_PERSON, model_of, new_tenant

PAGES = ("/", "/?kind=all", "/requests/new", "/models", "/ledger", "/settings")


def enter(client: TestClient, token: str) -> None:
    answer = client.post("/login", data={"token": token}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=strict" in answer.headers["set-cookie"]


def code_on(page: str) -> str:
    found = re.search(r'name="code" value="(\w+)"', page)
    assert found
    return found[1]


@pytest.fixture
def inside(client, tenant):
    enter(client, tenant.tokens["all"])
    return client


def send(client, **fields):
    code = code_on(client.get("/requests/new").text)
    return client.post("/requests", data={"code": code, **fields})


def test_whoever_has_not_entered_is_sent_to_the_door(client):
    for page in PAGES:
        answer = client.get(page, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert client.post("/login", data={"token": "spotless_no"}).status_code == 401


def test_a_request_is_sent_by_a_form_and_its_page_shows_its_way(inside, desk, tenant, tmp_path):
    model_of(desk, tenant, tmp_path / "run")
    page = send(inside, key="letter <3", ids="ann\n\n Canary-99 \n")
    assert page.url.path.startswith("/requests/")
    desk.round()
    shown = inside.get(page.url.path).text
    assert "digits (1 example)" in shown
    assert '<li aria-current="step">planned</li>' in shown
    everything = shown + "".join(inside.get(one).text for one in PAGES)
    assert "Canary-99" not in everything
    assert "letter" not in everything


def test_a_form_without_the_code_of_the_session_changes_nothing(inside, client, desk, tenant):
    for code in ({}, {"code": ""}, {"code": "0" * 64}, {"code": "ü"}):
        answer = inside.post("/requests", data={"key": "k", "ids": "ann", **code})
        assert answer.status_code == 403
        assert "Load the page again" in answer.text
    other = new_tenant(desk, "two")
    with TestClient(make_app(desk, run=False)) as theirs:
        enter(theirs, other.tokens["all"])
        stolen = code_on(theirs.get("/").text)
    assert inside.post("/requests", data={"key": "k", "ids": "ann", "code": stolen}).status_code == 403
    assert "Nothing here." in inside.get("/?kind=all").text


def test_pages_refuse_in_words_and_show_nothing_of_another_tenant(inside, desk, tenant):
    mine = send(inside, key="k", ids="ann").url.path
    again = send(inside, key="k", ids="bob")
    assert again.status_code == 422
    assert "This key was used before" in again.text
    assert inside.get("/requests/unknown").status_code == 404
    assert inside.get("/nowhere").status_code == 404
    with TestClient(make_app(desk, run=False)) as theirs:
        enter(theirs, new_tenant(desk, "two").tokens["all"])
        for place in (mine, f"{mine}/receipt", f"{mine}/live"):
            assert theirs.get(place).status_code == 404
        code = code_on(theirs.get("/").text)
        assert theirs.post(f"{mine}/cancel", data={"code": code}).status_code == 404


def test_a_page_needs_the_scope_that_its_endpoint_needs(client, tenant):
    wanted = {"/": {"read", "submit"}, "/requests/new": {"submit"}, "/settings": {"read"}, "/models": {"read"}}
    for scope in ("submit", "operate", "approve", "read"):
        enter(client, tenant.tokens[scope])
        for page, scopes in wanted.items():
            assert (client.get(page).status_code == 403) == (scope not in scopes), (page, scope)


def test_settings_change_rules_and_make_tokens_that_are_shown_once(inside, tenant):
    code = code_on(inside.get("/settings").text)
    rules = {
        "days": "20",
        "warn_days": "2",
        "audit_seeds": "5",
        "replay_share": "0.25",
        "batch_minutes": "1.5",
        "approval": "rule",
    }
    assert inside.post("/settings/policy", data={"code": code, **rules}).status_code == 200
    assert 'value="20"' in inside.get("/settings").text
    assert inside.post("/settings/policy", data={"code": code, **rules, "days": "x"}).status_code == 422
    made = inside.post("/settings/tokens", data={"code": code, "name": "<b>r</b>", "read": "on"}).text
    assert re.search(r"<code>spotless_[\w-]+</code>", made)
    assert "<b>r</b>" not in made
    assert "spotless_" not in inside.get("/settings").text


def test_the_ledger_shows_a_seal_that_turns_red_when_a_row_is_changed(inside, desk, tenant):
    place = send(inside, key="k", ids="nobody").url.path
    desk.round()
    assert "✔ signed and in the ledger" in inside.get(place).text
    assert "✔ 1 entry, every one checked: whole" in inside.get("/ledger").text
    with desk.database.begin() as connection:
        connection.exec_driver_sql("UPDATE ledger_entries SET envelope = replace(envelope, 'A', 'B')")
    assert "✘ changed" in inside.get("/ledger").text
    assert "✘ not proven" in inside.get(place).text


def test_a_person_decides_on_the_page(inside, desk, tenant, tmp_path):
    from spotlessnet.serve import workflow
    from spotlessnet.serve.access import set_policy

    model_of(desk, tenant, tmp_path / "run")
    with desk.database.begin() as connection:
        set_policy(connection, tenant.id, BY_PERSON, "test")
    place = send(inside, key="k", ids="ann").url.path
    [(_, job, _)] = desk.round()
    workflow._AT_WORK[:] = [desk]
    for step in (workflow.plan, workflow.scrub, workflow.judge):
        step(job)
    shown = inside.get(place).text
    assert "<dd>short-retrain, about 1 s; its audit about 2.5 h; retraining 10 min</dd>" in shown
    assert "<dd>short-retrain 1 s, retrain 10 min, finetune ?</dd>" in shown
    report = inside.get(f"/jobs/{job}/report")
    assert "what is left" in report.text
    assert "sandbox" in report.headers["Content-Security-Policy"]
    fields = {"code": code_on(shown), "back": place.rpartition("/")[2]}
    assert '<span class="state approved" id="state">' in inside.post(f"/jobs/{job}/approve", data=fields).text
    for step in (workflow.put_out, workflow.clear_away, workflow.close):
        step(job)
        step(job)
    workflow._AT_WORK.clear()
    assert "✔ signed and in the ledger" in inside.get(place).text
    assert inside.get(f"{place}/receipt").json()["index"] == 0


def test_the_door_of_the_demo_opens_once(desk):
    app, code = demo_app(desk)
    with TestClient(make_app(desk, run=False)):
        pass
    first, second = TestClient(app), TestClient(app)
    assert first.get("/demo/wrong", follow_redirects=False).headers.get("set-cookie") is None
    assert first.get(f"/demo/{code}").url.path == "/"
    assert second.get(f"/demo/{code}").url.path == "/login"


def test_every_form_carries_the_code_and_no_page_has_script_or_style_of_its_own(inside, desk, tenant, tmp_path):
    model_of(desk, tenant, tmp_path / "run")
    place = send(inside, key="k", ids="ann").url.path
    desk.round()
    pages = {one: inside.get(one) for one in (*PAGES, place, "/nowhere", "/login")}
    assert sum(page.text.count("<form") for page in pages.values()) > 10
    for name, page in pages.items():
        policy = page.headers["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert "script-src 'self'" in policy
        assert re.findall(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=", page.text) == [], name
        for form in re.findall(r"<form.*?</form>", page.text, re.S):
            assert 'name="code"' in form or 'action="/login"' in form, (name, form)


def test_scripts_of_others_are_those_that_are_noted_with_their_licence(inside):
    noted = dict(re.findall(r"^([0-9a-f]{64})  (\S+)", (STATIC / "VENDORED.txt").read_text(), re.M))
    assert sorted(noted.values()) == sorted(one.name for one in STATIC.glob("*.js"))
    for digest, name in noted.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest
        assert inside.get(f"/static/{name}").status_code == 200
    assert inside.get("/static/VENDORED.txt").status_code == 404
    assert inside.get("/static/..%2fpages.py").status_code == 404


def test_a_page_hears_of_news_after_what_it_shows_and_of_the_end(inside, desk, tenant):
    place = send(inside, key="k", ids="nobody").url.path
    shown = int(re.findall(r"live\?after=(\d+)", inside.get(place).text)[0])
    desk.round()
    heard = inside.get(f"{place}/live?after={shown}").text
    assert re.findall(r"event: (\w+)", heard) == ["changed", "ended"]
    [last] = re.findall(r"id: (\d+)", heard)
    again = inside.get(f"{place}/live?after={shown}", headers={"Last-Event-ID": last}).text
    assert re.findall(r"event: (\w+)", again) == ["ended"]
    assert "live?after" not in inside.get(place).text
    for wrong in ("-1", "x", str(10**30)):
        assert inside.get(f"{place}/live?after={wrong}").status_code == 422
    assert inside.get(f"{place}/live", headers={"Last-Event-ID": "9" * 40}).status_code == 200


def test_what_the_worker_says_is_text_and_whoever_left_hears_nothing_more(inside, desk, tenant):
    said = {"number": 7, "what": "progress", "detail": {"line": "<b>epoch\n3</b>"}}
    assert message([said], 7) == "id: 7\nevent: progress\ndata: &lt;b&gt;epoch 3&lt;/b&gt;\n\n"
    assert message([said, {"number": 8, "what": "audited", "detail": {}}], 8).count("event:") == 2
    place = send(inside, key="k", ids="ann").url.path
    with desk.database.begin() as connection:
        connection.exec_driver_sql("UPDATE requests SET state = 'matched'")
        caller = caller_of(connection, tenant.tokens["all"])
        assert caller is not None
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(lambda: inside.get(f"{place}/live").text)
        time.sleep(0.3)
        assert not heard.done()
        with desk.database.begin() as connection:
            revoke_token(connection, tenant.id, caller.token, "test")
        assert "ended" not in heard.result(timeout=20)


def test_the_inbox_marks_what_is_late_due_soon_or_failed(inside, desk, tenant, tmp_path):
    model_of(desk, tenant, tmp_path / "run")
    for number, due in enumerate((-1, 2, 20)):
        send(inside, key=str(number), ids=f"p{number}")
        with desk.database.begin() as connection:
            newest = REQUESTS.update().where(REQUESTS.c.warned.is_(None))
            connection.execute(newest.values(due=now() + timedelta(days=due), warned=now(), held=True))
    page = inside.get("/").text
    assert (page.count(">late</strong>"), page.count(">due soon</strong>"), page.count(">failed<")) == (1, 1, 0)
    place = send(inside, key="k", ids="ann").url.path
    desk.round()
    with desk.database.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET state = 'failed'")
    assert inside.get("/").text.count('<span class="state failed">failed</span>') == 1
    assert '<span class="state failed">failed</span>' in inside.get(place).text
    metrics = inside.get("/metrics", headers=tenant.headers("read")).text
    assert "\nspotless_requests_late 1\n" in metrics
    assert "\nspotless_requests_due_soon 1\n" in metrics
    assert "\nspotless_jobs_failed 1\n" in metrics


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 303)])
def test_another_site_cannot_let_a_person_in_as_somebody_else(client, tenant, site, status):
    """They would write the next ids into the desk of whoever's token that was."""
    told = {"data": {"token": tenant.tokens["all"]}, "headers": {"Sec-Fetch-Site": site}}
    answer = client.post("/login", **told, follow_redirects=False)
    assert answer.status_code == status
    assert ("set-cookie" in answer.headers) == (status == 303)


def test_whoever_may_operate_but_not_approve_is_offered_the_replay_alone(client, desk, tmp_path):
    tenant = new_tenant(desk, "two", BY_PERSON)
    model_of(desk, tenant, tmp_path / "run")
    with desk.database.begin() as connection:
        token = add_token(connection, tenant.id, "operator", ["operate", "read"])
    asked = client.post("/api/v1/requests", json={"key": "1", "ids": ["ann"]}, headers=tenant.headers()).json()
    [(_, job, _)] = desk.round()
    workflow._AT_WORK[:] = [desk]
    for step in (workflow.plan, workflow.scrub, workflow.judge):
        step(job)
    workflow._AT_WORK.clear()
    enter(client, token)
    page = client.get(f"/requests/{asked['id']}").text
    assert f"/jobs/{job}/replay" in page
    assert f"/jobs/{job}/approve" not in page
    assert f"/jobs/{job}/send-back" not in page
