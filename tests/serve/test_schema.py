"""Calls made up from the desk's own OpenAPI: none ends in a 5xx, and every answer is as the schema says."""

import contextlib
from collections import Counter
from datetime import timedelta
from typing import Any, cast

import pytest
import schemathesis
from fastapi import Response
from fastapi.responses import JSONResponse
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from spotlessnet.serve import workflow
from spotlessnet.serve.access import Limit
from spotlessnet.serve.database import JOBS, reading
from spotlessnet.serve.trail import now
from spotlessnet.serve.webhooks import add_webhook
from tests.serve.conftest import model_of

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture
def known(desk, tenant, tmp_path, client):
    """Things that are there, so that calls reach further than to a 404."""
    model_of(desk, tenant, tmp_path / "run")
    headers = tenant.headers()
    asked: list[str] = []
    for key, ids in (("1", ["ann"]), ("2", ["nobody"]), ("3", ["bob"])):
        due = (now() + timedelta(days=3)).isoformat()
        told = {"key": key, "ids": ids, "due": due}
        asked.append(client.post("/api/v1/requests", json=told, headers=headers).json()["id"])
    with desk.database.begin() as connection:
        hook, _ = add_webhook(connection, desk.keys, tenant.id, "https://example.org/", "x", desk.webhooks_to)
    desk.round()
    with reading(desk.database) as connection:
        job = connection.execute(JOBS.select()).mappings().one()["id"]
    workflow._AT_WORK[:] = [desk]
    for step in (workflow.plan, workflow.scrub, workflow.judge):
        step(job)
    yield {"request_id": asked, "job_id": [job], "webhook_id": [hook]}
    workflow._AT_WORK.clear()


def call_all(app, tenant, known, examples: int, only: str = "") -> Counter[int]:
    """Call every operation with examples of what fits its schema and of what does not; gives the answers' statuses."""
    app.state.calls, app.state.failures = Limit(1e9, 1e9), Limit(1e9, 1e9)
    app.state.last_round = float("inf")  # nobody makes rounds here, and readiness would say so after a minute
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    statuses: Counter[int] = Counter()
    operations: list[Any] = [cast(Any, found).ok() for found in schema.get_all_operations()]
    for operation in (one for one in operations if only in one.path):
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            # Of what takes no input nothing can be wrong.
            with contextlib.suppress(Unsatisfiable):
                _call_one(operation, mode, tenant.headers(), known, examples, statuses)
    return statuses


def _call_one(operation, mode, headers, known, examples, statuses) -> None:
    there = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in known.items()})

    @settings(
        max_examples=examples,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), real=there)
    def run(case: Any, real: dict[str, str]) -> None:
        case.path_parameters = {name: real.get(name, value) for name, value in (case.path_parameters or {}).items()}
        answer = case.call(headers=headers)
        statuses[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)

    run()


def test_some_calls_from_the_schema(app, tenant, known):
    statuses = call_all(app, tenant, known, 4)
    assert sum(statuses.values()) >= 150
    assert {200, 201, 404, 409, 422} <= statuses.keys()


@pytest.mark.slow
def test_five_thousand_calls_from_the_schema(app, tenant, known):
    statuses = call_all(app, tenant, known, 110)
    print(dict(statuses))
    assert sum(statuses.values()) >= 5000
    assert max(statuses) < 500


def test_the_checks_see_what_is_wrong(app, tenant, known):
    """An endpoint that answers otherwise than the schema says is found."""

    answer = {"status": 0}

    @app.get("/api/v1/broken", responses={200: {"model": int}})
    def broken() -> Response:
        return JSONResponse("no number", answer["status"])

    for answer["status"], found in ((500, "Server error"), (418, "Undocumented"), (200, "Response violates schema")):
        app.openapi_schema = None
        with pytest.raises(BaseException, match=found):
            call_all(app, tenant, known, 1, "/api/v1/broken")
