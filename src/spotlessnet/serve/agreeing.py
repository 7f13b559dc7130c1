"""Whether the desk's tables agree with its trail, and the trail with the ledger: who edits a row by hand is found.

Events carry digests of rows (`row_digests.py`), and the ledger carries digests of events (`checkpoints.py`). What is
not looked at: what has no meaning after its moment (messages to webhooks, when somebody was warned, since when an id is
suppressed), encrypted copies of ids, which open under the desk's key or not at all, and events of the last seconds,
before their checkpoint.
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.proof import tables
from spotlessnet.proof.checking import Enough, Findings
from spotlessnet.proof.deletions import DELETION
from spotlessnet.proof.dsse import STATEMENT, taken_apart
from spotlessnet.proof.spelling import parsed
from spotlessnet.serve.agreeing_jobs import check_jobs, check_models
from spotlessnet.serve.agreeing_requests import Receipt, check_copies, check_people, check_requests
from spotlessnet.serve.checkpoints import REFUSED, TRAIL, digest_of_events
from spotlessnet.serve.database import EVENTS, TENANTS, TOKENS, WEBHOOKS
from spotlessnet.serve.row_digests import OF_TENANT, OF_TOKEN, OF_WEBHOOK, digest_of, spelled
from spotlessnet.serve.told import Said, Told, streamed


@dataclass(frozen=True)
class Agreement:
    """What a walk through a desk's tables found.

    **Arguments:**

    - `events`: events of the trail that the ledger holds.
    - `newest`: events that it does not hold yet.
    - `mistakes`: what does not agree, as sentences.
    """

    events: int
    newest: int
    mistakes: tuple[str, ...]


def has_tables(connection: sa.Connection) -> bool:
    """Whether a database is that of a desk, and not of a ledger alone."""
    there = sa.inspect(connection)
    if not there.has_table("events") or not there.has_table("requests"):
        return False
    return "checkpoint" in {one["name"] for one in there.get_columns("events")}


def agreement(connection: sa.Connection) -> Agreement:
    """Compare every table with the trail, and the trail with the ledger; the ledger itself was checked before."""
    findings = Findings()
    counted = {"events": 0, "newest": 0}
    try:
        receipts, checkpoints = _entries(connection)
        counted = _check_trail(connection, findings, checkpoints)
        told = Told.by(connection)
        check_requests(connection, findings, told, receipts)
        check_copies(connection, findings, told)
        check_people(connection, findings, told)
        check_jobs(connection, findings, told)
        check_models(connection, findings, told)
        _check_access(connection, findings, told)
    except Enough:
        pass
    except (sa.exc.SQLAlchemyError, DataError, IntegrityError, LookupError, TypeError, ValueError, AttributeError) as e:
        # A value of a kind that was never written there, such as text for JSON.
        findings.told.append(f"a row cannot be read ({type(e).__name__}), though it could when it was written")
    return Agreement(**counted, mistakes=tuple(findings.told))


def _entries(connection: sa.Connection) -> tuple[dict[str, Receipt], dict[int, tuple[int, str]]]:
    """From the ledger: receipts by their request, and by entry the events that it holds, counted, with their digest."""
    receipts: dict[str, Receipt] = {}
    checkpoints: dict[int, tuple[int, str]] = {}
    kept = tables.entries.c
    query = sa.select(kept.position, kept.envelope).where(kept.kind == STATEMENT).order_by(kept.position)
    for row in streamed(connection, query):
        payload = taken_apart(parsed(row["envelope"].encode(), "An entry")).payload
        statement: dict[str, Any] = parsed(payload, "A statement")
        digest = statement["subject"][0]["digest"]["sha256"]
        if statement["predicateType"] == TRAIL:
            checkpoints[row["position"]] = (statement["predicate"]["events"], digest)
        elif statement["predicateType"] == DELETION:
            told = statement["predicate"]
            receipts[told["request"]] = Receipt(row["position"], digest, told)
    return receipts, checkpoints


def _check_trail(
    connection: sa.Connection, findings: Findings, checkpoints: dict[int, tuple[int, str]]
) -> dict[str, int]:
    """Each checkpoint against the events that it is of."""
    query = sa.select(EVENTS).where(EVENTS.c.checkpoint.is_not(None)).order_by(EVENTS.c.checkpoint, EVENTS.c.number)
    left = dict(checkpoints)
    for entry, group in groupby(streamed(connection, query), key=lambda event: event["checkpoint"]):
        events = list(group)
        if entry == REFUSED:
            findings.tell(f"the trail: {len(events)} events were written or changed by another hand")
        elif left.pop(entry, None) != (len(events), digest_of_events(events)):
            findings.tell(f"the trail: events that entry {entry} of the ledger holds were changed, added or removed")
    for entry in left:
        findings.tell(f"the trail: the events that entry {entry} of the ledger holds were removed")
    newest = sa.select(sa.func.count()).select_from(EVENTS).where(EVENTS.c.checkpoint.is_(None))
    held = sum(count for count, _ in checkpoints.values())
    return {"events": held, "newest": int(connection.execute(newest).scalar_one())}


def _when(said: Said | None, otherwise: Any) -> Any:
    """The time that an event tells; older ones told none."""
    return None if said is None else said.detail.get("when", spelled(otherwise) or "")


def _check_access(connection: sa.Connection, findings: Findings, told: Told) -> None:
    """Who may do what: tenants with their rules, tokens, webhooks."""
    for row in streamed(connection, sa.select(TENANTS)):
        last = told.tenants.pop(row["id"], {})
        made = last.get("tenant added")
        if made is None or made.detail.get("row", digest_of(row, OF_TENANT)) != digest_of(row, OF_TENANT):
            findings.tell(f"tenant {row['id']} is not the one that was added")
            continue
        rules = last["policy changed"].detail if "policy changed" in last else made.detail.get("policy", row["policy"])
        if rules != row["policy"]:
            findings.tell(f"the rules of tenant {row['id']} are not those that were set")
    for row in streamed(connection, sa.select(TOKENS)):
        last = told.tokens.pop(row["id"], {})
        made = last.get("token added")
        if made is None or made.detail.get("row", digest_of(row, OF_TOKEN)) != digest_of(row, OF_TOKEN):
            findings.tell(f"token {row['id']} is not one that was added")
        elif spelled(row["revoked"]) != _when(last.get("token revoked"), row["revoked"]):
            findings.tell(f"token {row['id']} was ended, or taken up again, by nobody")
    for row in streamed(connection, sa.select(WEBHOOKS)):
        last = told.webhooks.pop(row["id"], {})
        made = last.get("webhook added")
        if made is None or made.detail.get("row", digest_of(row, OF_WEBHOOK)) != digest_of(row, OF_WEBHOOK):
            findings.tell(f"webhook {row['id']} is not one that was added")
    gone = [("tenant", name) for name in told.tenants] + [("token", name) for name in told.tokens]
    gone += [("webhook", name) for name, last in told.webhooks.items() if "webhook removed" not in last]
    for kind, name in gone:
        findings.tell(f"{kind} {name} was removed by nobody")
