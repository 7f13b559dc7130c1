"""The service, put together: routes, errors in words, limits, headers, and the thread that makes the desk's rounds."""

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import sqlalchemy as sa
from anyio import to_thread
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException as Ended

from spotlessnet import __version__
from spotlessnet.core.errors import ResourceError, SpotlessError
from spotlessnet.serve import api, live, opendsr, pages, watching, workflow
from spotlessnet.serve.access import Limit
from spotlessnet.serve.database import empty_log
from spotlessnet.serve.delivering import Courier
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.together import Together
from spotlessnet.serve.trail import StateError
from spotlessnet.serve.watching import LOG

LARGEST = 2**24
"""Bytes of a call at most."""

SLOWEST = 60
"""Seconds in which a call must have come."""

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
}

FOR_PROGRAMS = ("/api/", "/opendsr/", "/metrics", "/health", "/ready", "/openapi.json")

ROUND = 0.5
"""Seconds between two rounds where nobody calls."""

LOOK = 10.0
"""Seconds between two looks at whether workflows that must be at work are, and at SQLite's log."""

BREATH = 0.05
"""Seconds after a round in which calls gather for the next one."""


class Rounds(threading.Thread):
    """Makes the desk's rounds, and starts the workflows that are due; an error in one round does not end it."""

    def __init__(self, app: FastAPI, desk: Desk) -> None:
        super().__init__(name="rounds", daemon=True)
        self.app, self.desk = app, desk
        self.ended = threading.Event()
        self.started: set[tuple[str, str, int]] = set()
        self.looked = -math.inf

    def run(self) -> None:
        while not self.ended.is_set():
            self.ended.wait(BREATH)
            self.app.state.wake.wait(ROUND)
            self.app.state.wake.clear()
            if self.ended.is_set():
                return
            try:
                self.once()
            except Exception:
                LOG.exception("round failed")
                time.sleep(ROUND)

    def once(self) -> None:
        """One round."""
        due = set(self.desk.round())
        for one in due - self.started:
            workflow.enqueue(*one)
        if time.monotonic() > self.looked + LOOK:
            for one in due & self.started:
                workflow.look_after(*one)
            empty_log(self.desk.database)  # the copies of ids that were closed since lie in it
            self.looked = time.monotonic()
        self.started = due
        self.app.state.last_round = time.monotonic()

    def stop(self) -> None:
        """End after the round at hand."""
        self.ended.set()
        self.app.state.wake.set()
        self.join(timeout=30)


def make_app(desk: Desk, *, worker: str = "local", rate: float = 400.0, run: bool = True) -> FastAPI:
    """The application of a desk.

    **Arguments:**

    - `worker`: the name of this process among several on one database; a restart under the same name goes on.
    - `rate`: calls a second for each token.
    - `run`: whether rounds are made and workflows run, besides answering.
    """

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        if not run:
            yield
            return
        # In threads: DBOS refuses to be waited for in the loop that answers calls.
        await to_thread.run_sync(lambda: workflow.launch(desk, worker=worker))
        rounds = Rounds(app, desk)
        app.state.rounds = rounds
        rounds.start()
        courier = Courier(desk)
        courier.start()
        app.state.up.set()
        try:
            yield
        finally:
            await to_thread.run_sync(rounds.stop)
            await to_thread.run_sync(courier.stop)
            await to_thread.run_sync(workflow.stop)
            await to_thread.run_sync(desk.check_in)

    app = FastAPI(title="spotlessnet desk", version=__version__, lifespan=life, docs_url=None, redoc_url=None)
    app.state.desk = desk
    app.state.together = Together(desk.database)
    app.state.wake = threading.Event()
    app.state.up = threading.Event()
    app.state.last_round = time.monotonic()
    app.state.live = Counter()
    app.state.calls, app.state.failures = Limit(rate, 2 * rate), Limit(1.0, 20.0)
    for part in (api, opendsr, watching, pages, live):
        app.include_router(part.router)
    app.add_middleware(Capped)
    app.add_middleware(Headed)
    app.add_middleware(watching.Logged)
    answers: tuple[tuple[Any, Any], ...] = (
        (SpotlessError, _refused),
        (LookupError, _missing),
        (sa.exc.DataError, _unwritable),
        (sa.exc.OperationalError, _away),
        (sa.exc.InterfaceError, _away),
        (sa.exc.TimeoutError, _away),
        (RequestValidationError, _unread),
        (Ended, _ended),
        (pages.NoSessionError, lambda *_: pages.back("/login")),
    )
    for kind, answer in answers:
        app.add_exception_handler(kind, answer)
    return app


class Headed:
    """Puts the headers on every answer that has not its own."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Add them as the answer begins."""

        async def headed(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, headed)


def _told(request: Request, status: int, text: str, headers: Any = None) -> Response:
    """A reason: as a page to a person, as JSON to a program."""
    if request.url.path.startswith(FOR_PROGRAMS):
        return JSONResponse({"detail": text}, status, headers)
    return pages.error_page(status, text)


def _refused(request: Request, error: Any) -> Response:
    if isinstance(error, StateError):
        return _told(request, 409, str(error))
    return _told(request, 503 if isinstance(error, ResourceError) else 422, str(error))


def _away(request: Request, error: Any) -> Response:
    """The database does not answer, is locked, or has no room: that passes, and is no mistake of the call."""
    LOG.error("database", extra={"told": {"error": type(error).__name__}})
    return _told(request, 503, "The database cannot do that now. Try again later.", {"Retry-After": "5"})


def _unwritable(request: Request, _: Any) -> Response:
    """PostgreSQL takes no text with a character 0, nor one that is too long, where SQLite finds nothing by it."""
    return _told(request, 422, "The call holds a text that cannot be looked for.")


def _missing(request: Request, _: Any) -> Response:
    return _told(request, 404, "There is no such thing.")


def _ended(request: Request, error: Any) -> Response:
    return _told(request, error.status_code, str(error.detail), error.headers)


def _unread(_: Request, error: Any) -> JSONResponse:
    # Without the input itself: it may hold ids.
    told = [{"where": [str(part) for part in one["loc"]][:3], "what": one["type"]} for one in error.errors()[:20]]
    return JSONResponse({"detail": told}, 422)


class Capped:
    """Ends calls whose body is too long, or too slow to come, however it is sent."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Look at the length that was announced, and count the bytes as they come."""
        told = dict(scope.get("headers", ())).get(b"content-length", b"")
        if told.isdigit() and int(told) > LARGEST:
            await JSONResponse({"detail": f"A call may have {LARGEST} bytes at most."}, 413)(scope, receive, send)
            return
        seen = 0
        ends: float | None = asyncio.get_running_loop().time() + SLOWEST

        async def counted() -> Any:
            nonlocal seen, ends
            try:
                async with asyncio.timeout_at(ends):
                    message = await receive()
            except TimeoutError as e:
                raise HTTPException(408, f"A call must have come whole after {SLOWEST} seconds.") from e
            seen += len(message.get("body", b""))
            if seen > LARGEST:
                raise HTTPException(413, f"A call may have {LARGEST} bytes at most.")
            if not message.get("more_body", False):
                ends = None  # what is waited for now is the caller's leaving
            return message

        await self.app(scope, counted if scope["type"] == "http" else receive, send)
