"""Every endpoint against every scope and against another tenant; limits, sessions and tokens."""

from datetime import timedelta
from typing import Any

import pytest

from spotlessnet.serve.access import (
    Limit,
    add_token,
    caller_of,
    caller_of_cookie,
    form_code,
    is_form_code,
    revoke_token,
    session_cookie,
    tokens_of,
)
from spotlessnet.serve.addresses import PUBLIC
from spotlessnet.serve.app import make_app
from spotlessnet.serve.database import JOBS, reading
from spotlessnet.serve.intake import submit
from spotlessnet.serve.trail import now
from spotlessnet.serve.webhooks import add_webhook
from tests.serve.conftest import BY_PERSON, BY_RULE, model_of, new_tenant

ANYBODY = {"/healthz", "/readyz", "/openapi.json", "/opendsr/v3/discovery"}

WANTED = {
    ("POST", "/api/v1/requests"): {"submit"},
    ("GET", "/api/v1/requests"): {"read"},
    ("GET", "/api/v1/requests/{request_id}"): {"read", "submit"},
    ("GET", "/api/v1/requests/{request_id}/receipt"): {"read", "submit"},
    ("POST", "/api/v1/requests/{request_id}/cancel"): {"operate"},
    ("POST", "/api/v1/requests/{request_id}/hold"): {"operate"},
    ("POST", "/api/v1/requests/{request_id}/resume"): {"operate"},
    ("GET", "/api/v1/jobs/{job_id}"): {"read"},
    ("GET", "/api/v1/jobs/{job_id}/report"): {"read"},
    ("POST", "/api/v1/jobs/{job_id}/approve"): {"approve"},
    ("POST", "/api/v1/jobs/{job_id}/send-back"): {"approve"},
    ("POST", "/api/v1/jobs/{job_id}/retry"): {"operate"},
    ("POST", "/api/v1/jobs/{job_id}/replay"): {"operate"},
    ("GET", "/api/v1/models"): {"read"},
    ("POST", "/api/v1/models"): {"operate"},
    ("GET", "/api/v1/suppression"): {"operate"},
    ("GET", "/api/v1/ledger"): {"read"},
    ("GET", "/api/v1/policy"): {"read"},
    ("PUT", "/api/v1/policy"): {"approve"},
    ("GET", "/api/v1/tokens"): {"operate"},
    ("POST", "/api/v1/tokens"): {"operate"},
    ("DELETE", "/api/v1/tokens/{token_id}"): {"operate"},
    ("GET", "/api/v1/webhooks"): {"operate"},
    ("POST", "/api/v1/webhooks"): {"operate"},
    ("DELETE", "/api/v1/webhooks/{webhook_id}"): {"operate"},
    ("POST", "/opendsr/v3/requests"): {"submit"},
    ("GET", "/opendsr/v3/requests/{subject_request_id}"): {"read", "submit"},
    ("GET", "/metrics"): {"read"},
}
"""Which scopes open an endpoint: one of these is enough."""

BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/api/v1/requests"): {"key": "k", "ids": ["ann"]},
    ("POST", "/api/v1/jobs/{job_id}/send-back"): {},
    ("POST", "/api/v1/models"): {"name": "other", "folder": "/nowhere"},
    ("PUT", "/api/v1/policy"): {"days": 20},
    ("POST", "/api/v1/tokens"): {"name": "t", "scopes": ["operate"]},
    ("POST", "/api/v1/webhooks"): {"url": "https://example.org/hook"},
    ("POST", "/opendsr/v3/requests"): {
        "subject_request_id": "a7551968-d5d6-44b2-9831-815ac9017798",
        "subject_request_type": "erasure",
        "subject_identities": [{"identity_type": "controller_customer_id", "identity_value": "ann"}],
    },
}
SCOPES = ("submit", "operate", "approve", "read")


def endpoints(app):
    """Every endpoint of the interface; pages have a test of their own."""
    return [
        (method.upper(), path)
        for path, methods in app.openapi()["paths"].items()
        for method in methods
        if path not in ANYBODY
    ]


def call(client, endpoint, names, headers):
    method, path = endpoint
    return client.request(method, path.format(**names), json=BODIES.get(endpoint), headers=headers)


@pytest.fixture
def names(desk, tenant, tmp_path):
    """A request and a job of the first tenant, to ask for."""
    model = model_of(desk, tenant, tmp_path / "run")
    with desk.database.begin() as connection:
        asked = submit(connection, desk.keys, tenant.id, BY_PERSON, key="k0", ids=["ann"], submitter="x")
    desk.round()
    with reading(desk.database) as connection:
        job = connection.execute(JOBS.select()).mappings().one()["id"]
    unknown = "a7551968-d5d6-44b2-9831-815ac9017798"
    named = {"request_id": asked.id, "job_id": job, "token_id": unknown, "subject_request_id": unknown}
    return {**named, "webhook_id": unknown, "model": model}


def test_the_table_names_every_endpoint(app):
    assert set(endpoints(app)) == set(WANTED)


def test_a_token_opens_what_its_scope_says_and_nothing_else(client, app, tenant, names):
    for endpoint in endpoints(app):
        assert call(client, endpoint, names, {}).status_code == 401, endpoint
        wrong = {"Authorization": "Bearer spotless_wrong"}
        app.state.failures = Limit(1, 100)
        assert call(client, endpoint, names, wrong).status_code == 401, endpoint
        for scope in SCOPES:
            answer = call(client, endpoint, names, tenant.headers(scope))
            refused = answer.status_code == 403
            assert refused == (scope not in WANTED[endpoint]), (endpoint, scope, answer.text)
            assert answer.status_code < 500, (endpoint, answer.text)


def test_another_tenant_finds_nothing_there(client, app, desk, tenant, names):
    other = new_tenant(desk, "two")
    unknown = "00000000-0000-4000-8000-000000000000"
    with desk.database.begin() as connection:
        names["webhook_id"], _ = add_webhook(connection, desk.keys, tenant.id, "https://example.org/", "x", PUBLIC)
        names["token_id"] = tokens_of(connection, tenant.id)[0]["id"]
        told = {"key": names["subject_request_id"], "ids": ["ann"], "submitter": "x"}
        submit(connection, desk.keys, tenant.id, BY_PERSON, **told)
    own = ("request_id", "job_id", "token_id", "webhook_id", "subject_request_id")
    asked = [one for one in endpoints(app) if any(f"{{{name}}}" in one[1] for name in own)]
    assert len(asked) == 14
    for endpoint in asked:
        theirs, nobodys = (
            call(client, endpoint, {**names, **more}, other.headers()) for more in ({}, dict.fromkeys(own, unknown))
        )
        assert (theirs.status_code, theirs.text) == (404, nobodys.text), endpoint
    with reading(desk.database) as connection:
        assert [one["revoked"] for one in tokens_of(connection, tenant.id) if one["revoked"]] == []
    listed = client.get("/api/v1/requests?kind=all", headers=other.headers()).json()
    assert (listed["requests"], listed["counts"]) == ([], {"late": 0})
    assert client.get("/api/v1/models", headers=other.headers()).json() == {"models": []}
    assert client.get("/api/v1/suppression", headers=other.headers()).json()["digests"] == []


def test_equal_ids_of_two_tenants_have_unlike_digests(desk):
    assert desk.keys.id_digest("one", "ann") != desk.keys.id_digest("two", "ann")


def test_a_token_is_kept_as_a_digest_and_ends_when_it_should(desk, tenant):
    with desk.database.begin() as connection:
        short = add_token(connection, tenant.id, "short", ["read"], expires=now() - timedelta(seconds=1))
        told = add_token(connection, tenant.id, "told", ["read"])
        found = caller_of(connection, told)
        assert found is not None
        assert caller_of(connection, short) is None
        revoke_token(connection, tenant.id, found.token, "op")
        assert caller_of(connection, told) is None
        assert told.encode() not in b"".join(
            bytes(str(row), "utf-8") for row in connection.exec_driver_sql("SELECT * FROM tokens")
        )


def test_no_token_gives_a_scope_that_it_lacks(client, tenant):
    told = {"name": "more", "scopes": ["approve"]}
    assert client.post("/api/v1/tokens", json=told, headers=tenant.headers("operate")).status_code == 403


def test_a_cookie_must_be_signed_by_this_desk_and_belongs_to_its_token(desk, tenant):
    with reading(desk.database) as connection:
        caller = caller_of(connection, tenant.tokens["read"])
        assert caller is not None
        cookie = session_cookie(desk.keys, caller)
        assert caller_of_cookie(connection, desk.keys, cookie) == caller
        for bad in ("", ".", "a.b", cookie[:-2] + "AA", cookie.replace(".", ""), f"{cookie}.{cookie}"):
            assert caller_of_cookie(connection, desk.keys, bad) is None
    code = form_code(desk.keys, cookie)
    assert is_form_code(desk.keys, cookie, code)
    assert not is_form_code(desk.keys, cookie, "ü" + code[1:])


def test_too_many_calls_are_sent_away_for_a_while(desk, tenant, client, app):
    limit = Limit(rate=2, burst=3)
    assert [limit.wait("a", at=0.0) for _ in range(3)] == [0, 0, 0]
    assert limit.wait("a", at=0.0) == 0.5
    assert limit.wait("b", at=0.0) == 0
    assert limit.wait("a", at=0.5) == 0
    app.state.calls = Limit(rate=0.1, burst=1)
    answers = [client.get("/api/v1/policy", headers=tenant.headers("read")) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].headers["Retry-After"] == "10"


def test_a_long_body_is_refused_and_what_was_sent_is_not_repeated(client, tenant):
    told = {"key": "k", "ids": ["x" * (2**24)]}
    assert client.post("/api/v1/requests", json=told, headers=tenant.headers()).status_code == 413
    wrong = client.post("/api/v1/requests", json={"key": "k", "ids": [{"Canary": 1}]}, headers=tenant.headers())
    assert wrong.status_code == 422
    assert "Canary" not in wrong.text


def test_a_training_outside_the_given_folders_cannot_be_registered_over_http(client, tenant, tmp_path):
    for folder, settings in (("/etc", {}), (str(tmp_path / ".." / ".."), {}), (str(tmp_path), {"test": "os:path"})):
        told = {"name": "m", "folder": folder, "settings": settings}
        answer = client.post("/api/v1/models", json=told, headers=tenant.headers())
        assert answer.status_code == 422
        assert answer.json()["detail"].startswith("Registering a training runs its code")


def test_pages_and_answers_bear_the_headers_that_browsers_heed(client):
    headers = client.get("/healthz").headers
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_opendsr_is_the_same_intake(client, desk, tenant):
    endpoint = ("POST", "/opendsr/v3/requests")
    first = call(client, endpoint, {}, tenant.headers())
    again = call(client, endpoint, {}, tenant.headers())
    assert (first.status_code, first.json()) == (201, again.json())
    place = f"/opendsr/v3/requests/{BODIES[endpoint]['subject_request_id']}"
    assert client.get(place, headers=tenant.headers()).json()["request_status"] == "pending"
    desk.round()
    assert client.get(place, headers=tenant.headers()).json()["request_status"] == "completed"
    other = {**BODIES[endpoint], "subject_request_type": "access"}
    assert client.post("/opendsr/v3/requests", json=other, headers=tenant.headers()).status_code == 400


def test_the_rules_of_a_tenant_are_checked(client, tenant):
    for wrong in ({"days": 0}, {"days": "x"}, {"approval": "anybody"}, {"audit_seeds": 2}, {"nothing": 1}):
        assert client.put("/api/v1/policy", json=wrong, headers=tenant.headers()).status_code == 422
    assert make_app is not None
    assert BY_RULE.approves("forgotten")
    assert not BY_RULE.approves("inconclusive")
    assert not BY_RULE.approves(None)
