"""Sampled replay: some jobs are done a second time, from the same inputs, and the networks compared byte for byte.

It is done before approval, while everything is there: once a version is published, the one before it and the ids are
destroyed, and nobody can do it again. Which jobs are drawn, only the desk's key tells. What does not come out the same
is approved by no rule.
"""

from pathlib import Path
from typing import Any

import sqlalchemy as sa

from spotlessnet.core.errors import SpotlessError
from spotlessnet.serve.access import policy_of
from spotlessnet.serve.database import EVENTS, JOBS, reading, row_of
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.engine import REPLAY, Work
from spotlessnet.serve.planning import reach
from spotlessnet.serve.publishing import job_row
from spotlessnet.serve.trail import REPLAYED, StateError, note

SAME, OTHER, UNTOLD = "the same", "another", "cannot be told"
ASKED = "replay asked"
OUTCOMES = dict(zip(REPLAYED, (SAME, OTHER, UNTOLD), strict=True))
"""By event, what it says."""

TOO_LATE = (
    "A replay needs the version before and the ids, and both were destroyed when the new version was published. Ask "
    "for it while a job waits for approval, or set the rule replay_share: it then comes before that."
)
NOT_YET = "A replay compares a result, but there is none yet. Ask for it when the job was audited."


def replay_of(connection: sa.Connection, job: str) -> dict[str, Any] | None:
    """How the last replay of a job came out."""
    chosen = sa.and_(EVENTS.c.job == job, EVENTS.c.what.in_(OUTCOMES))
    query = sa.select(EVENTS.c.what, EVENTS.c.at, EVENTS.c.detail).where(chosen)
    found = row_of(connection, query.order_by(EVENTS.c.number.desc()).limit(1))
    return None if found is None else {"outcome": OUTCOMES[found["what"]], "at": found["at"], **found["detail"]}


def came_out_otherwise(connection: sa.Connection, job: str) -> bool:
    """Whether any replay of a job gave another network: one that fits later, asked for again, takes no doubt away."""
    chosen = sa.and_(EVENTS.c.job == job, EVENTS.c.what == REPLAYED[1])
    return connection.execute(sa.select(EVENTS.c.number).where(chosen).limit(1)).first() is not None


def ask(desk: Desk, tenant: str, job: str, actor: str) -> None:
    """Let a job that waits for approval be done again; it comes back to whoever approves with the outcome."""
    with desk.database.begin() as connection:
        row = job_row(connection, job, tenant)
        if row["state"] != "audited":
            late = row["state"] in ("approved", "published", "destroyed", "closed", "withdrawn", "sent back")
            raise StateError(TOO_LATE if late else NOT_YET)
        # A workflow of its own: the one before has ended. What is done already, its steps do not do again.
        connection.execute(JOBS.update().where(JOBS.c.id == job).values(attempt=row["attempt"] + 1))
        reach(connection, job, "scrubbed")
        note(connection, tenant, ASKED, job=job, actor=actor)


def is_due(desk: Desk, connection: sa.Connection, job: dict[str, Any]) -> bool:
    """Whether a job must be done again: it was drawn, or somebody asked for it, and it was not done since."""
    chosen = sa.and_(EVENTS.c.job == job["id"], EVENTS.c.what.in_((ASKED, *OUTCOMES)))
    last = connection.execute(sa.select(EVENTS.c.what).where(chosen).order_by(EVENTS.c.number.desc()).limit(1)).scalar()
    if last is not None:
        return bool(last == ASKED)
    drawn = int.from_bytes(desk.keys.sign("replay", job["id"].encode())[:8], "big") / 2**64
    return drawn < policy_of(connection, job["tenant"]).replay_share


def replay(desk: Desk, job: dict[str, Any], work: Work) -> None:
    """Do a job again where that is due, and note how it came out."""
    with reading(desk.database) as connection:
        if job["state"] != "scrubbed" or not is_due(desk, connection, job):
            return
    told: dict[str, Any]
    try:
        found = desk.engine.replay(work, Path(work.out + REPLAY))
        reason = found.get("reason")
        outcome = SAME if found.get("network") == job["network"] else OTHER
        outcome = UNTOLD if reason else outcome
        told = {"network": found.get("network"), "reason": reason}
    except SpotlessError as error:
        if getattr(error, "may_pass", False):
            raise  # the step is tried again
        outcome = UNTOLD
        told = {"network": None, "reason": str(error)[:500]}
    with desk.database.begin() as connection:
        if job_row(connection, job["id"])["state"] == "scrubbed":
            note(connection, job["tenant"], f"replayed: {outcome}", job=job["id"], **told)
