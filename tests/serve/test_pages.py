"""Pages: a person enters with a token, forms carry a code, and a page shows nothing of another tenant."""

import re

import pytest
from fastapi.testclient import TestClient

from spotlessnet.serve.app import make_app
from spotlessnet.serve.demo import demo_app
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
    assert "digits (1 examples)" in shown
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
    rules = {"days": "20", "warn_days": "2", "audit_seeds": "5", "batch_minutes": "1.5", "approval": "rule"}
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
    assert "short-retrain, about 1 s; retraining 5 s" in shown
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
