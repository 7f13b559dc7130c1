"""Every page against every scope, nobody and another tenant; a new one cannot be added without a row."""

import pytest
from fastapi.testclient import TestClient

from spotlessnet.serve.app import make_app
from spotlessnet.serve.database import JOBS, reading
from spotlessnet.serve.intake import submit
from spotlessnet.serve.webhooks import add_webhook
from tests.serve.conftest import BY_PERSON, model_of, new_tenant
from tests.serve.test_access import ANYBODY, SCOPES, WANTED
from tests.serve.test_pages import code_on, enter

OPEN = {
    *(("GET", path) for path in ANYBODY),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/login"),
    ("POST", "/login"),
    ("GET", "/static/{name}"),
}
"""What everybody may call."""

PAGES: dict[tuple[str, str], set[str]] = {
    ("GET", "/"): {"read", "submit"},
    ("GET", "/requests/new"): {"submit"},
    ("POST", "/requests"): {"submit"},
    ("GET", "/requests/{request_id}"): {"read", "submit"},
    ("GET", "/requests/{request_id}/receipt"): {"read", "submit"},
    ("GET", "/requests/{request_id}/live"): {"read", "submit"},
    ("POST", "/requests/{request_id}/{act}"): {"operate"},
    ("POST", "/jobs/{job_id}/{act}"): {"approve"},
    ("GET", "/jobs/{job_id}/report"): {"read"},
    ("GET", "/models"): {"read"},
    ("GET", "/ledger"): {"read"},
    ("GET", "/settings"): {"read"},
    ("POST", "/settings/policy"): {"approve"},
    ("POST", "/settings/tokens"): {"operate"},
    ("POST", "/settings/tokens/{token_id}/end"): {"operate"},
    ("POST", "/settings/webhooks"): {"operate"},
    ("POST", "/settings/webhooks/{webhook_id}/end"): {"operate"},
    ("POST", "/logout"): set(SCOPES),
}
"""Which scopes open a page or let a form through: one of these is enough."""

OTHERS = ("{request_id}", "{job_id}", "{token_id}", "{webhook_id}")
"""What another tenant has, by its name in a path."""


def routes(app):
    """Every method and path that the application answers, whether it is in the schema or not."""
    found = set()
    for one in app.routes:
        inner = getattr(one, "original_router", None)
        for route in [one] if inner is None else inner.routes:
            found |= {(method, route.path) for method in route.methods if method != "HEAD"}
    return found


@pytest.fixture
def names(desk, tenant, tmp_path):
    """A request, a job and a webhook of the first tenant."""
    model_of(desk, tenant, tmp_path / "run")
    with desk.database.begin() as connection:
        asked = submit(connection, desk.keys, tenant.id, BY_PERSON, key="k0", ids=["ann"], submitter="x")
        hook, _ = add_webhook(connection, desk.keys, tenant.id, "https://example.org/", "x", desk.webhooks_to)
    desk.round()
    with reading(desk.database) as connection:
        job = connection.execute(JOBS.select()).mappings().one()["id"]
    return {"request_id": asked.id, "job_id": job, "token_id": "none", "webhook_id": hook, "act": "approve"}


def call(client, page, names, code=None):
    method, path = page
    if path.endswith("/live"):
        return client.get(path.format(**names).replace("/live", "/live?after=x"), follow_redirects=False)
    data = None if method == "GET" else {"code": code or ""}
    return client.request(method, path.format(**names), data=data, follow_redirects=False)


def test_the_tables_name_everything_that_is_answered(app):
    assert routes(app) == OPEN | set(WANTED) | set(PAGES)
    assert {path for _, path in WANTED} <= app.openapi()["paths"].keys()


def test_a_page_opens_with_its_scopes_alone(desk, app, tenant, names):
    for scope in SCOPES:
        for page, scopes in PAGES.items():
            with TestClient(app) as client:
                enter(client, tenant.tokens[scope])
                code = code_of(client, desk)
                answer = call(client, page, names, code)
            refused = answer.status_code == 403
            live_is_checked_later = page[1].endswith("/live")
            if not live_is_checked_later:
                assert refused == (scope not in scopes), (page, scope, answer.text)
            assert answer.status_code < 500


def code_of(client, desk):
    from spotlessnet.serve.access import form_code

    return form_code(desk.keys, client.cookies["desk"].strip('"'))


def test_nobody_gets_past_the_door_and_no_form_without_its_code(desk, app, tenant, names):
    with TestClient(app) as nobody, TestClient(app) as somebody:
        enter(somebody, tenant.tokens["all"])
        for page in PAGES:
            if not page[1].endswith("/live"):
                answer = call(nobody, page, names)
                assert (answer.status_code, answer.headers["location"]) == (303, "/login"), page
            if page[0] == "POST":
                assert call(somebody, page, names, "0" * 64).status_code == 403, page


def test_another_tenant_finds_no_page_of_it(desk, tenant, names):
    other = new_tenant(desk, "two")
    with TestClient(make_app(desk, run=False)) as client:
        enter(client, other.tokens["all"])
        code = code_on(client.get("/settings").text)
        for page in PAGES:
            if any(one in page[1] for one in OTHERS) and not page[1].endswith("/live"):
                assert call(client, page, names, code).status_code == 404, page
        assert client.get(f"/requests/{names['request_id']}/live").status_code == 404


def test_what_is_live_needs_its_scope_too(desk, app, tenant, names):
    for scope in SCOPES:
        with TestClient(app) as client:
            assert client.get(f"/requests/{names['request_id']}/live", follow_redirects=False).status_code == 303
            enter(client, tenant.tokens[scope])
            if scope not in PAGES["GET", "/requests/{request_id}/live"]:
                assert client.get(f"/requests/{names['request_id']}/live").status_code == 403
