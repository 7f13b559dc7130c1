"""Erasure requests in the shape of OpenDSR, for tools that speak it: the same intake, other names.

Only `erasure` of `controller_customer_id`s in plain text is taken; the certificate and signature headers of OpenDSR are
not made: receipts are signed another way.
"""

import uuid
from datetime import datetime
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field

from spotlessnet.serve.api import REFUSALS, OfDesk, ToSee, ToSubmit, check_said_once, receive
from spotlessnet.serve.database import REQUESTS, reading
from spotlessnet.serve.intake import MOST_IDS
from spotlessnet.serve.looking import plain, request_of

VERSION, IDENTITY = "3.0", "controller_customer_id"
router = APIRouter(prefix="/opendsr/v3", tags=["OpenDSR"], responses=REFUSALS)

STATUS = {"received": "pending", "closed": "completed", "cancelled": "cancelled"}
"""What OpenDSR calls a state; every other one is in progress."""


class Identity(BaseModel):
    """Whose data."""

    identity_type: str
    identity_value: str
    identity_format: str = "raw"


class Erasure(BaseModel):
    """An OpenDSR request."""

    subject_request_id: uuid.UUID
    subject_request_type: str
    subject_identities: Annotated[list[Identity], Field(min_length=1, max_length=MOST_IDS)]
    submitted_time: datetime | None = None
    regulation: str = "gdpr"
    api_version: str = VERSION


@router.get("/discovery")
def discovery() -> dict[str, Any]:
    """What this desk takes."""
    return {
        "api_version": VERSION,
        "supported_identities": [{"identity_type": IDENTITY, "identity_format": "raw"}],
        "supported_subject_request_types": ["erasure"],
    }


@router.post("/requests", status_code=201)
async def add(request: Request, desk: OfDesk, caller: ToSubmit, asked: Erasure) -> dict[str, Any]:
    """Ask for people to be forgotten; the same `subject_request_id` again is the same request."""
    if asked.subject_request_type != "erasure":
        raise HTTPException(400, "Only subject_request_type erasure is served here.")
    if any(one.identity_type != IDENTITY or one.identity_format != "raw" for one in asked.subject_identities):
        raise HTTPException(400, f"Only identities of type {IDENTITY} and format raw are known here.")
    await check_said_once(request)
    ids = [one.identity_value for one in asked.subject_identities]
    found = await receive(request, desk, caller, str(asked.subject_request_id), ids, None)
    told = {"expected_completion_time": found.due, "received_time": found.received}
    named = {"controller_id": caller.tenant, "subject_request_id": str(asked.subject_request_id), "desk_id": found.id}
    return plain({**told, **named, "api_version": VERSION})


@router.get("/requests/{subject_request_id}")
def status(desk: OfDesk, caller: ToSee, subject_request_id: uuid.UUID) -> dict[str, Any]:
    """Where a request stands."""
    key = desk.keys.key_digest(caller.tenant, str(subject_request_id))
    with reading(desk.database) as connection:
        query = sa.select(REQUESTS.c.id).where(REQUESTS.c.tenant == caller.tenant, REQUESTS.c.key == key)
        name = connection.execute(query).scalar()
        if name is None:
            raise LookupError(str(subject_request_id))
        found = request_of(connection, caller.tenant, name)
    told = {"expected_completion_time": found["due"], "received_time": found["received"]}
    named = {"controller_id": caller.tenant, "subject_request_id": str(subject_request_id), "desk_id": name}
    more = {"request_status": STATUS.get(found["state"], "in_progress"), "api_version": VERSION}
    return plain({**told, **named, **more})
