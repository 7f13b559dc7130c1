"""For those who run the desk: is it well, how much is there to do, and what was asked of it; never an id."""

import json
import logging
import sys
import time
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from spotlessnet import __version__
from spotlessnet.proof import ledger
from spotlessnet.serve.access import policy_of
from spotlessnet.serve.api import MEANINGS, OfDesk, ToRead
from spotlessnet.serve.database import reading
from spotlessnet.serve.looking import counts_of, failed_jobs, soon_due
from spotlessnet.serve.matching import kept_by
from spotlessnet.serve.trail import STEPS, now
from spotlessnet.serve.webhooks import webhooks_of

LOG = logging.getLogger("spotlessnet.serve")
router = APIRouter(tags=["running it"])

IN_JSON: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}}
    for status, text in MEANINGS.items()
}
"""Refusals of an endpoint that itself answers in plain text."""


class Lines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        told = {"at": now().isoformat(timespec="milliseconds"), "level": record.levelname.lower()}
        # Of what others log, only the server's own words: all else may repeat what it was given.
        is_known = record.name.startswith((LOG.name, "uvicorn"))
        told |= {"event": record.getMessage().strip() if is_known else record.name, **getattr(record, "told", {})}
        if record.exc_info and record.exc_info[0] is not None:
            # The kind alone: the text of an error from elsewhere may repeat what it was given.
            told["error"] = record.exc_info[0].__name__
        return json.dumps(told)


def start_log() -> None:
    """Lines of JSON on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    LOG.setLevel(logging.INFO)
    # Whatever else logs, of errors above all, comes as such a line too.
    for one in (LOG, logging.getLogger("dbos"), logging.getLogger()):
        one.handlers[:] = [handler]
        one.propagate = False


class Logged:
    """One line for a call: the endpoint's own path, not the one that was asked for, which may hold anything.

    Written for the server's own interface, as is `app.Headed`: Starlette's simpler one starts two tasks for each call.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Note the status as it is sent."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 500

        async def noted(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            told: dict[str, Any] = {"method": scope["method"], "path": getattr(scope.get("route"), "path", "unknown")}
            told |= {"status": status, "ms": round(1000 * (time.perf_counter() - began), 1)}
            LOG.info("call", extra={"told": {**told, "tenant": scope.get("state", {}).get("tenant")}})


@router.get("/healthz")
@router.get("/health", include_in_schema=False)
def health() -> dict[str, str]:
    """The process lives."""
    return {"status": "ok", "version": __version__}


@router.get("/readyz", responses={503: {"description": "It is not."}})
@router.get("/ready", include_in_schema=False)
def ready(request: Request, desk: OfDesk, response: Response) -> dict[str, str]:
    """The database answers and the rounds go on."""
    with reading(desk.database) as connection:
        ledger.size_of(connection)
    if time.monotonic() - request.app.state.last_round > 60:
        response.status_code = 503
        return {"status": "the desk has made no round for a minute"}
    return {"status": "ok"}


@router.get("/metrics", response_class=PlainTextResponse, responses=IN_JSON)
def metrics(desk: OfDesk, caller: ToRead) -> str:
    """Counts of this tenant in Prometheus' text format."""
    with reading(desk.database) as connection:
        found = counts_of(connection, caller.tenant)
        size = ledger.size_of(connection)
        soon = soon_due(connection, caller.tenant, now() + policy_of(connection, caller.tenant).warning)
        failed = failed_jobs(connection, caller.tenant)
        hooks = webhooks_of(connection, caller.tenant)
        kept = sum(kept_by(connection, caller.tenant).values())
    gauges: tuple[tuple[str, str, int], ...] = (
        ("requests_late", "Open requests past their date.", found["late"]),
        ("requests_due_soon", "Open requests whose date comes near.", soon),
        ("jobs_failed", "Jobs that wait for a person since they failed.", failed),
        ("people_asked_before", "People in a model that was registered after they asked to be forgotten.", kept),
        ("webhook_messages_waiting", "Messages that webhooks are still to be told.", sum(o["waiting"] for o in hooks)),
        ("webhook_messages_given_up", "Messages that were given up.", sum(o["given_up"] for o in hooks)),
        ("ledger_entries", "Entries of the ledger.", size),
    )
    lines = ["# HELP spotless_requests Requests by state.", "# TYPE spotless_requests gauge"]
    lines += [f'spotless_requests{{state="{state}"}} {found.get(state, 0)}' for state in (*STEPS, "cancelled")]
    for name, meaning, value in gauges:
        lines += [f"# HELP spotless_{name} {meaning}", f"# TYPE spotless_{name} gauge", f"spotless_{name} {value}"]
    return "\n".join(lines) + "\n"
