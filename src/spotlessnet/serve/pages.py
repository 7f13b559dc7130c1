"""Pages for a person at the desk: plain forms that work without a script; scripts only keep a page fresh."""

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

import sqlalchemy as sa
from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse
from jinja2 import Environment, PackageLoader

from spotlessnet.core.errors import SettingError, seconds_in_words
from spotlessnet.proof import ledger
from spotlessnet.proof.bundle import SUFFIX
from spotlessnet.serve import replaying, workflow
from spotlessnet.serve.access import (
    SCOPES,
    Caller,
    add_token,
    caller_of,
    caller_of_cookie,
    form_code,
    is_form_code,
    policy_of,
    revoke_token,
    session_cookie,
    set_policy,
    tokens_of,
)
from spotlessnet.serve.api import REPORT, desk_of, receive, report_file
from spotlessnet.serve.database import TENANTS, reading
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.intake import CANCELLABLE, cancel, hold
from spotlessnet.serve.looking import KINDS, PAGE, counts_of, failed_among, models_of, request_of, requests_in
from spotlessnet.serve.policy import Policy
from spotlessnet.serve.proving import bundle_of, is_proven, seal_of
from spotlessnet.serve.trail import REPLAYED, STEPS, now
from spotlessnet.serve.webhooks import add_webhook, remove_webhook, webhooks_of

COOKIE = "desk"
STATIC = Path(__file__).parent / "static"
SENT = ("style.css", "htmx.min.js", "sse.min.js")
MOST_CHECKED = 20_000
"""Entries up to which the page of the ledger checks all of it; beyond, `spotless verify --ledger` does."""

router = APIRouter(include_in_schema=False)
templates = Environment(loader=PackageLoader("spotlessnet.serve"), autoescape=True, trim_blocks=True)
templates.filters["day"] = lambda at: "" if at is None else at.strftime("%Y-%m-%d")
templates.filters["minute"] = lambda at: "" if at is None else at.strftime("%Y-%m-%d %H:%M")
templates.filters["seconds"] = lambda value: "?" if value is None else seconds_in_words(value)
templates.globals.update(STEPS=STEPS, KINDS=KINDS, SCOPES=SCOPES, CANCELLABLE=CANCELLABLE, REPLAYED=REPLAYED, now=now)


class NoSessionError(Exception):
    """Nobody has entered: the page sends to the door."""


class Visit:
    """One person at the desk: who, and what their forms carry."""

    def __init__(self, desk: Desk, caller: Caller, cookie: str) -> None:
        self.desk, self.caller = desk, caller
        self.code = form_code(desk.keys, cookie)

    def page(self, name: str, **told: Any) -> HTMLResponse:
        """A page of the desk."""
        return HTMLResponse(templates.get_template(name).render(visit=self, **told))

    def need(self, *scopes: str) -> None:
        """Raise unless this person has one of these scopes."""
        if not any(self.caller.may(scope) for scope in scopes):
            raise HTTPException(403, f"This needs a token with the scope {' or '.join(scopes)}.")


def visit_of(request: Request, desk: Annotated[Desk, Depends(desk_of)]) -> Visit:
    """Whoever has entered; all others are sent to the door."""
    cookie = request.cookies.get(COOKIE, "")
    with reading(desk.database) as connection:
        caller = caller_of_cookie(connection, desk.keys, cookie)
    if caller is None:
        raise NoSessionError
    request.state.tenant = caller.tenant
    if wait := request.app.state.calls.wait(caller.token):
        raise HTTPException(429, "Too many calls.", {"Retry-After": str(int(wait) + 1)})
    return Visit(desk, caller, cookie)


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form."""
    try:
        found = parse_qs((await request.body()).decode(), keep_blank_values=True, max_num_fields=100)
    except ValueError as e:
        raise HTTPException(422, "The form cannot be read.") from e
    return {name: ",".join(values) for name, values in found.items()}


def visit_by_form(
    request: Request,
    visit: Annotated[Visit, Depends(visit_of)],
    form: Annotated[dict[str, str], Depends(form_of)],
) -> Visit:
    """Whoever sent a form of ours: another site's cannot carry the code."""
    if not is_form_code(visit.desk.keys, request.cookies.get(COOKIE, ""), form.get("code", "")):
        raise HTTPException(403, "The form is not one of this session. Load the page again.")
    request.app.state.wake.set()
    return visit


Visiting = Annotated[Visit, Depends(visit_of)]
Acting = Annotated[Visit, Depends(visit_by_form)]
Form = Annotated[dict[str, str], Depends(form_of)]


def back(place: str) -> RedirectResponse:
    """On to a page, after a form."""
    return RedirectResponse(place, 303)


@router.get("/static/{name}")
def static(name: str) -> FileResponse:
    """Style and scripts."""
    if name not in SENT:
        raise LookupError(name)
    return FileResponse(STATIC / name, headers={"Cache-Control": "max-age=3600"})


@router.get("/login")
def door() -> HTMLResponse:
    """Where a token is given."""
    return HTMLResponse(templates.get_template("login.html").render(visit=None, wrong=False))


@router.post("/login")
def enter(request: Request, desk: Annotated[Desk, Depends(desk_of)], form: Form) -> Response:
    """Enter with a token; the browser keeps a signed cookie instead of it."""
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise HTTPException(403, "Enter on the desk's own page: another site sent this form.")
    host = request.client.host if request.client else "?"
    with reading(desk.database) as connection:
        caller = caller_of(connection, form.get("token", "").strip())
    if caller is None:
        if wait := request.app.state.failures.wait(host):
            raise HTTPException(429, "Too many attempts.", {"Retry-After": str(int(wait) + 1)})
        page = templates.get_template("login.html").render(visit=None, wrong=True)
        return HTMLResponse(page, 401)
    answer = back("/")
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, session_cookie(desk.keys, caller), httponly=True, samesite="strict", secure=secure)
    return answer


@router.post("/logout")
def leave(visit: Acting) -> Response:
    """Leave the desk."""
    answer = back("/login")
    answer.delete_cookie(COOKIE)
    return answer


@router.get("/")
def inbox(visit: Visiting, kind: str = "open", after: str | None = None) -> HTMLResponse:
    """Requests by their date."""
    visit.need("read", "submit")
    kind = kind if kind in KINDS else "open"
    with reading(visit.desk.database) as connection:
        found = requests_in(connection, visit.caller.tenant, kind, after)
        counts = counts_of(connection, visit.caller.tenant)
        failed = failed_among(connection, [one["id"] for one in found])
        soon = now() + policy_of(connection, visit.caller.tenant).warning
    more = found[-1]["id"] if len(found) == PAGE else None
    told = {"requests": found, "counts": counts, "kind": kind, "more": more, "after": after}
    return visit.page("inbox.html", **told, failed=failed, soon=soon)


@router.get("/requests/new")
def new(visit: Visiting) -> HTMLResponse:
    """The form of a request."""
    visit.need("submit")
    return visit.page("new.html")


@router.post("/requests")
async def add(request: Request, visit: Acting, form: Form) -> Response:
    """Receive a request from the form."""
    visit.need("submit")
    ids = [line.strip() for line in form.get("ids", "").splitlines() if line.strip()]
    found = await receive(request, visit.desk, visit.caller, form.get("key", "").strip(), ids, None)
    return back(f"/requests/{found.id}")


@router.get("/requests/{request_id}")
def one(visit: Visiting, request_id: str) -> HTMLResponse:
    """A request with its timeline, plan and verdict."""
    visit.need("read", "submit")
    with reading(visit.desk.database) as connection:
        found = request_of(connection, visit.caller.tenant, request_id)
        soon = now() + policy_of(connection, visit.caller.tenant).warning
        entry = found["entry"]
        proven = None if entry is None else is_proven(connection, entry, visit.desk.signer)
    reports = {job["id"] for job in found["jobs"] if (visit.desk.out_of(job) / REPORT).is_file()}
    return visit.page("request.html", request=found, proven=proven, reports=reports, soon=soon)


@router.get("/requests/{request_id}/receipt")
def receipt(visit: Visiting, request_id: str) -> JSONResponse:
    """The signed receipt, to keep."""
    visit.need("read", "submit")
    with reading(visit.desk.database) as connection:
        entry = request_of(connection, visit.caller.tenant, request_id)["entry"]
        if entry is None:
            raise LookupError(request_id)
        content = bundle_of(connection, entry)
    return JSONResponse(content, headers={"Content-Disposition": f'attachment; filename="{request_id}{SUFFIX}"'})


@router.post("/requests/{request_id}/{act}")
def change(visit: Acting, request_id: str, act: str) -> Response:
    """Cancel, hold or resume."""
    visit.need("operate")
    with visit.desk.database.begin() as connection:
        if act == "cancel":
            cancel(connection, visit.caller.tenant, request_id, visit.caller.token)
        elif act in ("hold", "resume"):
            hold(connection, visit.caller.tenant, request_id, visit.caller.token, held=act == "hold")
        else:
            raise LookupError(act)
    return back(f"/requests/{request_id}")


@router.post("/jobs/{job_id}/{act}")
def decide(visit: Acting, job_id: str, act: str, form: Form) -> Response:
    """Approve, send back, try again, or do it a second time and compare."""
    visit.need("operate" if act in ("retry", "replay") else "approve")
    told = (visit.desk, visit.caller.tenant, job_id, visit.caller.token)
    if act == "retry":
        workflow.retry(*told)
    elif act == "replay":
        replaying.ask(*told)
    elif act in ("approve", "send-back"):
        method = form.get("method", "").strip() or None
        workflow.decide(*told, approve=act == "approve", why=form.get("why", ""), method=method)
    else:
        raise LookupError(act)
    place = form.get("back", "")
    return back(f"/requests/{place}" if place.replace("-", "").isalnum() else "/")


@router.get("/jobs/{job_id}/report")
def report(visit: Visiting, job_id: str) -> FileResponse:
    """The audit's page."""
    visit.need("read")
    return report_file(visit.desk, visit.caller.tenant, job_id)


@router.get("/models")
def models(visit: Visiting) -> HTMLResponse:
    """Models with their lineage."""
    visit.need("read")
    with reading(visit.desk.database) as connection:
        found = models_of(connection, visit.caller.tenant)
    return visit.page("models.html", models=found)


@router.get("/ledger")
def the_ledger(visit: Visiting) -> HTMLResponse:
    """The ledger, checked from its first entry to its last."""
    visit.need("read")
    with reading(visit.desk.database, at_one_moment=True) as connection:
        size = ledger.size_of(connection)
        checked = seal_of(connection, visit.desk.signer) if size <= MOST_CHECKED else None
        closed = requests_in(connection, visit.caller.tenant, "closed")
        is_alone = connection.execute(sa.select(sa.func.count()).select_from(TENANTS)).scalar_one() == 1
    told = {"size": size, "checked": checked, "closed": closed, "is_alone": is_alone}
    return visit.page("ledger.html", **told, key=visit.desk.signer.public)


@router.get("/settings")
def settings(visit: Visiting) -> HTMLResponse:
    """The rules of the tenant and its tokens."""
    visit.need("read")
    return _settings(visit)


def _settings(visit: Visit, **made: str) -> HTMLResponse:
    with reading(visit.desk.database) as connection:
        policy = policy_of(connection, visit.caller.tenant)
        tokens = tokens_of(connection, visit.caller.tenant)
        hooks = webhooks_of(connection, visit.caller.tenant)
    return visit.page("settings.html", policy=policy, tokens=tokens, hooks=hooks, **made)


@router.post("/settings/policy")
def rules(visit: Acting, form: Form) -> Response:
    """Change the rules."""
    visit.need("approve")
    told: dict[str, Any] = {name: name in form for name in ("approver_differs", "destroy_private")}
    try:
        told |= {name: int(form[name]) for name in ("days", "warn_days", "audit_seeds")}
        told |= {name: float(form[name]) for name in ("batch_minutes", "replay_share")}
        told |= {"approval": form["approval"]}
    except (KeyError, ValueError) as e:
        raise SettingError("The rules must be numbers where numbers are asked for. Check the form.") from e
    with visit.desk.database.begin() as connection:
        set_policy(connection, visit.caller.tenant, Policy.of(told), visit.caller.token)
    return back("/settings")


@router.post("/settings/tokens")
def tokens(visit: Acting, form: Form) -> Response:
    """A new token, shown once on the page that answers."""
    visit.need("operate")
    scopes = [scope for scope in SCOPES if scope in form]
    for scope in scopes:
        visit.need(scope)
    with visit.desk.database.begin() as connection:
        made = add_token(connection, visit.caller.tenant, form.get("name", ""), scopes, actor=visit.caller.token)
    return _settings(visit, token=made)


@router.post("/settings/tokens/{token_id}/end")
def end(visit: Acting, token_id: str) -> Response:
    """End a token."""
    visit.need("operate")
    with visit.desk.database.begin() as connection:
        revoke_token(connection, visit.caller.tenant, token_id, visit.caller.token)
    return back("/settings")


@router.post("/settings/webhooks")
def hook(visit: Acting, form: Form) -> Response:
    """A new webhook, with its secret on the page that answers."""
    visit.need("operate")
    told = (visit.caller.tenant, form.get("url", "").strip(), visit.caller.token, visit.desk.webhooks_to)
    with visit.desk.database.begin() as connection:
        _, secret = add_webhook(connection, visit.desk.keys, *told)
    return _settings(visit, secret=secret)


@router.post("/settings/webhooks/{webhook_id}/end")
def end_hook(visit: Acting, webhook_id: str) -> Response:
    """Tell a webhook nothing more."""
    visit.need("operate")
    with visit.desk.database.begin() as connection:
        remove_webhook(connection, visit.caller.tenant, webhook_id, visit.caller.token)
    return back("/settings")


def error_page(status: int, text: str) -> HTMLResponse:
    """What went wrong, in words."""
    return HTMLResponse(templates.get_template("error.html").render(visit=None, status=status, text=text), status)
