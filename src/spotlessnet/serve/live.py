"""Server-sent events: the page of an open request hears of each new event, and of what the worker says."""

from collections import Counter
from collections.abc import AsyncIterator
from html import escape
from typing import Annotated, Any

import anyio
from anyio import to_thread
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import StreamingResponse

from spotlessnet.serve.access import caller_of_cookie
from spotlessnet.serve.database import reading
from spotlessnet.serve.looking import news_of
from spotlessnet.serve.pages import COOKIE, Visiting
from spotlessnet.serve.trail import ENDED

LIVE = 600
"""Seconds over one connection; a browser then connects again, from where it was."""

EVERY = 0.5
MOST = 2**31 - 1
"""The highest number that an event can have."""

MOST_LIVE = 50
"""Connections of one tenant at once: each asks the database twice a second."""

router = APIRouter(include_in_schema=False)


@router.get("/requests/{request_id}/live")
async def live(
    request: Request, visit: Visiting, request_id: str, after: Annotated[int, Query(ge=0, le=MOST)] = 0
) -> StreamingResponse:
    """`changed` where the page must be taken anew, `progress` with a line of the worker, `ended` at the end.

    **Arguments:**

    - `after`: the last event that the page shows; a browser that connects again says itself what it saw last.
    """
    visit.need("read", "submit")
    others: Counter[str] = request.app.state.live
    if others[visit.caller.tenant] >= MOST_LIVE:
        raise HTTPException(503, "Too many pages are open. Load this one again by hand.", {"Retry-After": "60"})
    told = request.headers.get("last-event-id", "")
    seen = min(max(after, int(told)), MOST) if told.isdecimal() and len(told) < 20 else after
    cookie = request.cookies.get(COOKIE, "")

    def news() -> tuple[str, list[dict[str, Any]]] | None:
        with reading(visit.desk.database) as connection:
            if caller_of_cookie(connection, visit.desk.keys, cookie) is None:
                return None  # left, or the token was ended
            return news_of(connection, visit.caller.tenant, request_id, seen)

    first = await to_thread.run_sync(news)

    async def lines() -> AsyncIterator[str]:
        nonlocal seen
        found = first
        yield "retry: 1000\n\n"
        for _ in range(int(LIVE / EVERY)):
            if found is None:
                return
            state, events = found
            if events:
                seen = int(events[-1]["number"])
                yield message(events, seen)
            if state in ENDED:
                yield "event: ended\ndata: \n\n"
                return
            await anyio.sleep(EVERY)
            found = await to_thread.run_sync(news)

    async def counted() -> AsyncIterator[str]:
        others[visit.caller.tenant] += 1
        try:
            async for line in lines():
                yield line
        finally:
            others[visit.caller.tenant] -= 1

    return StreamingResponse(counted(), media_type="text/event-stream")


def message(events: list[dict[str, Any]], seen: int) -> str:
    """What a browser is sent: the newest line of the worker, as text in HTML, and that there is something new."""
    said = [event["detail"].get("line", "") for event in events if event["what"] == "progress"]
    parts = []
    if said:
        line = escape(" ".join(said[-1].split()))
        parts.append(f"id: {seen}\nevent: progress\ndata: {line}\n\n")
    if len(said) < len(events):
        parts.append(f"id: {seen}\nevent: changed\ndata: {seen}\n\n")
    return "".join(parts)
