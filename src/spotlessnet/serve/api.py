"""The HTTP interface: every endpoint names the scope that it needs, and answers 404 for what another tenant has."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Depends, Header, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field

from spotlessnet.core.errors import SettingError
from spotlessnet.serve import replaying, workflow
from spotlessnet.serve.access import (
    Caller,
    add_token,
    caller_of,
    policy_of,
    revoke_token,
    set_policy,
    tokens_of,
)
from spotlessnet.serve.addresses import LONGEST
from spotlessnet.serve.database import reading
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.intake import LONGEST_KEY, MOST_IDS, Submitted, asking, cancel, hold
from spotlessnet.serve.looking import PAGE, counts_of, job_of, models_of, plain, request_of, requests_in
from spotlessnet.serve.matching import suppressed
from spotlessnet.serve.policy import Policy
from spotlessnet.serve.proving import bundle_of, head_of
from spotlessnet.serve.webhooks import add_webhook, remove_webhook, webhooks_of
from spotlessnet.store.strict_json import loads_once

REPORT = "report.html"
FEW = 100
"""Ids that are read and sealed while everybody else waits: it takes a millisecond."""

bearer = HTTPBearer(auto_error=False, description="A token of this desk.")


class Unread(BaseModel):
    """A part of a call that is not as it must be; what was sent is not repeated, since it may hold ids."""

    where: list[str]
    what: str


class Refusal(BaseModel):
    """Why a call was refused."""

    detail: str | list[Unread]


MEANINGS = {
    400: "The call cannot be read.",
    401: "The token is missing, unknown or ended.",
    403: "The token lacks the scope.",
    404: "This tenant has no such thing.",
    408: "The call was too slow to come.",
    409: "It does not fit the state that the thing is in.",
    413: "The call is too long.",
    422: "The call cannot be understood, or asks for what cannot be.",
    429: "Too many calls; `Retry-After` says how long to wait.",
    503: "The machine lacks something; try again later.",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": meaning} for status, meaning in MEANINGS.items()
}
router = APIRouter(prefix="/api/v1", tags=["desk"], responses=REFUSALS)


async def desk_of(request: Request) -> Desk:
    """The desk that answers; asked for in the loop itself, since it waits for nothing."""
    found = request.app.state.desk
    assert isinstance(found, Desk)
    return found


def scoped(*scopes: str) -> Any:
    """Whoever calls must bear a token with one of these scopes; too many calls are sent away for a while."""

    def check(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)] = None
    ) -> Caller:
        app, who = request.app.state, request.client.host if request.client else "?"
        caller = None
        if given is not None:
            with reading(app.desk.database) as connection:
                caller = caller_of(connection, given.credentials)
        if caller is None:
            _limited(app.failures, who)
            raise HTTPException(401, "A valid token is needed.", {"WWW-Authenticate": "Bearer"})
        request.state.tenant = caller.tenant
        _limited(app.calls, caller.token)
        if not any(caller.may(scope) for scope in scopes):
            raise HTTPException(403, f"This token lacks the scope {' or '.join(scopes)}.")
        return caller

    return Depends(check)


def _limited(limit: Any, who: str) -> None:
    wait = limit.wait(who)
    if wait:
        raise HTTPException(429, "Too many calls.", {"Retry-After": str(int(wait) + 1)})


ToSubmit = Annotated[Caller, scoped("submit")]
ToOperate = Annotated[Caller, scoped("operate")]
ToApprove = Annotated[Caller, scoped("approve")]
ToRead = Annotated[Caller, scoped("read")]
ToSee = Annotated[Caller, scoped("read", "submit")]
OfDesk = Annotated[Desk, Depends(desk_of)]


class Asked(BaseModel):
    """A request to forget people."""

    key: str | None = Field(None, max_length=LONGEST_KEY, description="Your own name for it; or `Idempotency-Key`.")
    ids: list[str] = Field(min_length=1, max_length=MOST_IDS)
    due: datetime | None = None


class Decision(BaseModel):
    """Why a result is sent back, and what to try next."""

    why: str = Field("", max_length=500)
    method: str | None = Field(None, max_length=80)


class NewModel(BaseModel):
    """A training on the machine of the desk."""

    name: str
    folder: str
    kind: str = "recorded"
    settings: dict[str, str] = Field(default_factory=dict)


class NewToken(BaseModel):
    """A token to be made."""

    name: str
    scopes: list[str]
    expires: datetime | None = None


class NewWebhook(BaseModel):
    """A program to be told what happens to requests."""

    url: str = Field(max_length=LONGEST, description="https://… or http://…, at a public address.")


def answered(found: Submitted) -> dict[str, Any]:
    """What whoever submitted is told."""
    told = {"id": found.id, "state": found.state, "received": found.received, "due": found.due, "again": found.again}
    return plain(told)


async def receive(
    request: Request, desk: Desk, caller: Caller, key: str, ids: list[str], due: datetime | None
) -> Submitted:
    """Receive a request, and wake the desk; waits in the loop, for a thread that waits keeps others from working."""
    read = partial(asking, desk.keys, caller.tenant, key=key, ids=ids, submitter=caller.token, due=due)
    asked = read() if len(ids) <= FEW else await to_thread.run_sync(read)
    found: Submitted = await asyncio.wrap_future(request.app.state.together.put(asked))
    request.app.state.wake.set()
    return found


async def check_said_once(request: Request) -> None:
    """Raise where a name stands twice in a call: of two lists of ids one would be lost, and nobody told."""
    try:
        loads_once(await request.body())
    except ValueError as e:
        raise HTTPException(400, "A name stands twice in the call. Send one list.") from e


@router.post("/requests", status_code=201, responses={200: {"description": "The same request was received before."}})
async def add_request(
    request: Request,
    response: Response,
    desk: OfDesk,
    caller: ToSubmit,
    asked: Asked,
    idempotency_key: Annotated[str | None, Header(max_length=LONGEST_KEY)] = None,
) -> dict[str, Any]:
    """Ask for people to be forgotten; sent twice with the same key it is one request."""
    key = asked.key or idempotency_key
    if key is None:
        raise SettingError("A request needs a key: `key`, or the header Idempotency-Key.")
    await check_said_once(request)
    found = await receive(request, desk, caller, key, asked.ids, asked.due)
    response.status_code = 200 if found.again else 201
    return answered(found)


@router.get("/requests")
def list_requests(
    desk: OfDesk,
    caller: ToRead,
    kind: Annotated[str, Query(pattern="^(open|late|closed|all)$")] = "open",
    after: Annotated[str | None, Query(max_length=36)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = PAGE,
) -> dict[str, Any]:
    """Requests by their date, a page at a time."""
    with reading(desk.database) as connection:
        found = requests_in(connection, caller.tenant, kind, after, limit)
        return plain({"requests": found, "counts": counts_of(connection, caller.tenant)})


@router.get("/requests/{request_id}")
def get_request(desk: OfDesk, caller: ToSee, request_id: str) -> dict[str, Any]:
    """One request with its timeline."""
    with reading(desk.database) as connection:
        return plain(request_of(connection, caller.tenant, request_id))


@router.get("/requests/{request_id}/receipt")
def get_receipt(desk: OfDesk, caller: ToSee, request_id: str) -> dict[str, Any]:
    """The signed receipt of a closed request with its proof of being in the ledger: a bundle for `spotless verify`."""
    with reading(desk.database) as connection:
        entry = request_of(connection, caller.tenant, request_id)["entry"]
        if entry is None:
            raise HTTPException(404, "This request has no receipt yet.")
        return bundle_of(connection, entry)


def _change(name: str, act: Callable[..., None], **told: Any) -> None:
    @router.post(f"/requests/{{request_id}}/{name}", name=name)
    def change(request: Request, desk: OfDesk, caller: ToOperate, request_id: str) -> dict[str, Any]:
        with desk.database.begin() as connection:
            act(connection, caller.tenant, request_id, caller.token, **told)
        request.app.state.wake.set()
        with reading(desk.database) as connection:
            return plain(request_of(connection, caller.tenant, request_id))


_change("cancel", cancel)
_change("hold", hold, held=True)
_change("resume", hold, held=False)


@router.get("/jobs/{job_id}")
def get_job(desk: OfDesk, caller: ToRead, job_id: str) -> dict[str, Any]:
    """One job: its plan, verdict and state, and how a replay came out."""
    with reading(desk.database) as connection:
        return plain({**job_of(connection, caller.tenant, job_id), "replay": replaying.replay_of(connection, job_id)})


@router.get("/jobs/{job_id}/report", response_class=FileResponse, responses={200: {"content": {"text/html": {}}}})
def get_report(desk: OfDesk, caller: ToRead, job_id: str) -> FileResponse:
    """The audit's page."""
    return report_file(desk, caller.tenant, job_id)


def report_file(desk: Desk, tenant: str, job: str) -> FileResponse:
    """The audit's page of a job, which may run its own scripts and nothing else."""
    with reading(desk.database) as connection:
        path: Path = desk.out_of(job_of(connection, tenant, job)) / REPORT
    if not path.is_file():
        raise HTTPException(404, "This job has no report.")
    alone = "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    return FileResponse(path, media_type="text/html", headers={"Content-Security-Policy": alone + "img-src data:"})


@router.post("/jobs/{job_id}/approve")
def approve(request: Request, desk: OfDesk, caller: ToApprove, job_id: str) -> dict[str, Any]:
    """Let an audited result be published."""
    workflow.decide(desk, caller.tenant, job_id, caller.token, approve=True)
    request.app.state.wake.set()
    return get_job(desk, caller, job_id)


@router.post("/jobs/{job_id}/send-back")
def send_back(request: Request, desk: OfDesk, caller: ToApprove, job_id: str, told: Decision) -> dict[str, Any]:
    """Destroy an audited result, and let its requests be served again."""
    workflow.decide(desk, caller.tenant, job_id, caller.token, approve=False, why=told.why, method=told.method)
    request.app.state.wake.set()
    return get_job(desk, caller, job_id)


@router.post("/jobs/{job_id}/replay")
def replay(request: Request, desk: OfDesk, caller: ToOperate, job_id: str) -> dict[str, Any]:
    """Do an audited job once more from the same inputs and compare the networks; it waits for approval afterwards."""
    replaying.ask(desk, caller.tenant, job_id, caller.token)
    request.app.state.wake.set()
    return get_job(desk, caller, job_id)


@router.post("/jobs/{job_id}/retry")
def retry(request: Request, desk: OfDesk, caller: ToOperate, job_id: str) -> dict[str, Any]:
    """Try a failed job again."""
    workflow.retry(desk, caller.tenant, job_id, caller.token)
    request.app.state.wake.set()
    return get_job(desk, caller, job_id)


@router.get("/models")
def list_models(desk: OfDesk, caller: ToRead) -> dict[str, Any]:
    """The registry of trainings, with their lineage."""
    with reading(desk.database) as connection:
        return plain({"models": models_of(connection, caller.tenant)})


@router.post("/models", status_code=201)
def add_model(desk: OfDesk, caller: ToOperate, told: NewModel) -> dict[str, Any]:
    """Register a training; its code is imported, so only folders below those that the desk was told are taken."""
    folder = desk.check_allowed(Path(told.folder), told.settings)
    model = desk.add_model(caller.tenant, told.name, told.kind, dict(told.settings), folder, caller.token)
    return {"id": model}


@router.get("/suppression")
def suppression(desk: OfDesk, caller: ToOperate) -> dict[str, Any]:
    """Who must not be trained on again, as keyed digests with their key: guard it as you guard the data."""
    with reading(desk.database) as connection:
        listed = [one.hex() for one in suppressed(connection, caller.tenant)]
    return {"schema": 1, "algorithm": "HMAC-SHA256", "key": desk.keys.ids_key(caller.tenant).hex(), "digests": listed}


@router.get("/ledger")
def ledger_head(desk: OfDesk, caller: ToRead) -> dict[str, Any]:
    """The signed tree head: keep one elsewhere, and nobody can rewrite what was before it."""
    with reading(desk.database) as connection:
        return head_of(connection, desk.signer)


@router.get("/policy")
def get_policy(desk: OfDesk, caller: ToRead) -> dict[str, Any]:
    """The rules of this tenant."""
    with reading(desk.database) as connection:
        return policy_of(connection, caller.tenant).record()


@router.put("/policy")
def put_policy(desk: OfDesk, caller: ToApprove, told: dict[str, Any]) -> dict[str, Any]:
    """Change the rules of this tenant."""
    with desk.database.begin() as connection:
        policy = Policy.of({**policy_of(connection, caller.tenant).record(), **told})
        set_policy(connection, caller.tenant, policy, caller.token)
    return policy.record()


@router.get("/tokens")
def list_tokens(desk: OfDesk, caller: ToOperate) -> dict[str, Any]:
    """The tokens of this tenant; never the tokens themselves."""
    with reading(desk.database) as connection:
        return plain({"tokens": tokens_of(connection, caller.tenant)})


@router.post("/tokens", status_code=201)
def make_token(desk: OfDesk, caller: ToOperate, told: NewToken) -> dict[str, Any]:
    """A new token, told once; it can have no scope that the asker lacks."""
    more = [scope for scope in told.scopes if not caller.may(scope)]
    if more:
        raise HTTPException(403, "A token can give no scope that it lacks itself.")
    with desk.database.begin() as connection:
        made = add_token(connection, caller.tenant, told.name, told.scopes, actor=caller.token, expires=told.expires)
    return {"token": made}


@router.delete("/tokens/{token_id}", status_code=204)
def end_token(desk: OfDesk, caller: ToOperate, token_id: str) -> None:
    """End a token at once."""
    with desk.database.begin() as connection:
        revoke_token(connection, caller.tenant, token_id, caller.token)


@router.get("/webhooks")
def list_webhooks(desk: OfDesk, caller: ToOperate) -> dict[str, Any]:
    """The webhooks of this tenant, and how they fare; never their secrets."""
    with reading(desk.database) as connection:
        return plain({"webhooks": webhooks_of(connection, caller.tenant)})


@router.post("/webhooks", status_code=201)
def make_webhook(desk: OfDesk, caller: ToOperate, told: NewWebhook) -> dict[str, Any]:
    """Tell a program of every step of every request; the secret that signs is told this once."""
    with desk.database.begin() as connection:
        hook, secret = add_webhook(connection, desk.keys, caller.tenant, told.url, caller.token, desk.webhooks_to)
    return {"id": hook, "secret": secret}


@router.delete("/webhooks/{webhook_id}", status_code=204)
def end_webhook(desk: OfDesk, caller: ToOperate, webhook_id: str) -> None:
    """Tell it nothing more."""
    with desk.database.begin() as connection:
        remove_webhook(connection, caller.tenant, webhook_id, caller.token)
