"""Whether requests, and whom they ask for, are as the trail and their receipts say."""

import hashlib
from collections import defaultdict
from itertools import groupby
from typing import Any, NamedTuple

import sqlalchemy as sa

from spotlessnet.proof.checking import Findings
from spotlessnet.serve.database import ID_COPIES, MODELS, REQUEST_IDS, REQUESTS, SUPPRESSIONS, TARGETS
from spotlessnet.serve.row_digests import OF_REQUEST, digest_of
from spotlessnet.serve.told import Last, Told, streamed
from spotlessnet.serve.trail import ENDED, STEPS

Targets = dict[str, list[tuple[str, str | None, str]]]


class Receipt(NamedTuple):
    """A receipt in the ledger.

    **Arguments:**

    - `content`: the digest of the ids that were asked for.
    """

    entry: int
    content: str
    told: dict[str, Any]


def check_requests(connection: sa.Connection, findings: Findings, told: Told, receipts: dict[str, Receipt]) -> None:
    """Every request against its events and its receipt."""
    targets: Targets = defaultdict(list)
    for one in streamed(connection, sa.select(TARGETS)):
        targets[one["request"]].append((one["model"], one["job"], one["state"]))
    names = {row["id"]: row["name"] for row in streamed(connection, sa.select(MODELS.c.id, MODELS.c.name))}
    seen = set()
    for row in streamed(connection, sa.select(REQUESTS)):
        seen.add(row["id"])
        last = told.requests.get(row["id"], {})
        served = sorted(targets.pop(row["id"], []))
        wrong = _wrong(row, last, served, names, receipts.get(row["id"]))
        if wrong:
            findings.tell(f"request {row['id']}: {wrong}")
    gone = {name for name, last in told.requests.items() if "received" in last} | receipts.keys() | targets.keys()
    for name in sorted(gone - seen):
        findings.tell(f"request {name} was removed, though it was received")


def _wrong(row: Any, last: Last, served: list[Any], names: dict[str, str], receipt: Receipt | None) -> str | None:
    if "received" not in last:
        return "it was received by nobody"
    made = digest_of(row, OF_REQUEST)
    if last["received"].detail.get("row", made) != made:
        return "it is not as it was received"
    if (row["state"] == "closed") != (receipt is not None) or (receipt is not None and not _is_of(receipt, row)):
        return "it is not as its receipt in the ledger says"
    end = next((what for what in ENDED if what in last), None)
    if (row["state"] if row["state"] in ENDED else None) != end:
        return f"it is {row['state']}, but not so by the trail"
    if end is not None:
        digest = digest_of(row, served=[list(one) for one in served])
        return None if last[end].detail.get("row", digest) == digest else "it is not as it was at its end"
    return _wrong_open(row, last, served, names)


def _is_of(receipt: Receipt, row: Any) -> bool:
    said = receipt.told
    same = [said[name] == row[name].isoformat(timespec="seconds") for name in ("received", "due", "closed")]
    same += [said["ids"] == row["count"], said["outcome"] == row["outcome"]]
    return all(same) and (receipt.entry, receipt.content) == (row["entry"], bytes(row["content"]).hex())


def _wrong_open(row: Any, last: Last, served: list[Any], names: dict[str, str]) -> str | None:
    if any(row[name] is not None for name in ("closed", "entry", "outcome")):
        return "it is open, but says how it ended"
    if bool(row["held"]) != ("held" in last):
        return "it was put on hold, or let go on, by nobody"
    if row["warned"] is not None and not {"late", "due soon"} & last.keys():
        return "it says that somebody was warned, but nobody was"
    if "matched" not in last:
        return None if (row["state"], served) == ("received", []) else "it went on without being matched"
    found = sorted(one["model"] for one in last["matched"].detail["models"])
    if found != sorted(names.get(model, "") for model, _, _ in served):
        return "its models are not those that it was matched with"
    without_job = {"matched", "destroyed"} if "served before" in last else {"matched"}
    if any(state not in (STEPS[2:-1] if job else without_job) for _, job, state in served):
        return "its models are not as far as it says"
    least = min((state for _, _, state in served), key=STEPS.index, default="destroyed")
    return None if row["state"] == least else f"it is {row['state']}, but its models are {least}"


def check_copies(connection: sa.Connection, findings: Findings, told: Told) -> None:
    """The encrypted copies of ids: each open request has its own, and nobody else has one."""
    is_open = REQUESTS.c.state.not_in(ENDED)
    missing = {row["id"] for row in streamed(connection, sa.select(REQUESTS.c.id).where(is_open))}
    for row in streamed(connection, sa.select(ID_COPIES)):
        name = row["request"]
        if name not in missing:
            findings.tell(f"request {name}: its ids are kept, though it has ended")
            continue
        missing.remove(name)
        received = told.requests.get(name, {}).get("received")
        made = hashlib.sha256(bytes(row["sealed"])).hexdigest()
        if received is not None and received.detail.get("copy", made) != made:
            findings.tell(f"request {name}: the encrypted copy of its ids is not the one that was received")
    for name in sorted(missing):
        findings.tell(f"request {name}: the encrypted copy of its ids was removed")


def check_people(connection: sa.Connection, findings: Findings, told: Told) -> None:
    """Whom each request asks for against its digest, and the suppression list against them all."""
    query = sa.select(REQUESTS.c.id, REQUESTS.c.tenant, REQUESTS.c.content, REQUESTS.c.state)
    known = {row["id"]: row for row in streamed(connection, query)}
    must: set[tuple[str, bytes]] = set()
    may: set[tuple[str, bytes]] = set()
    for request, group in groupby(
        streamed(connection, sa.select(REQUEST_IDS).order_by(REQUEST_IDS.c.request)), key=lambda one: one["request"]
    ):
        ids = sorted(bytes(one["id"]) for one in group)
        row = known.pop(request, None)
        if row is None or hashlib.sha256(b"".join(ids)).digest() != bytes(row["content"]):
            findings.tell(f"request {request}: the people it asks for are not those that were received")
            continue
        if row["state"] != "cancelled":
            people = {(row["tenant"], one) for one in ids}
            may |= people
            must |= people if "matched" in told.requests.get(request, {}) else set()
    for request in sorted(known):
        findings.tell(f"request {request}: the people it asks for were removed")
    listed = {(row["tenant"], bytes(row["id"])) for row in streamed(connection, sa.select(SUPPRESSIONS))}
    if must - listed or listed - may:
        findings.tell(f"the suppression list: {len(must - listed)} people lack, {len(listed - may)} nobody asked for")
