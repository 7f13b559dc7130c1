"""Whether jobs, models and their versions are as the trail says."""

from collections import defaultdict
from typing import Any

import sqlalchemy as sa

from spotlessnet.proof.checking import Findings
from spotlessnet.serve.database import JOBS, MODELS, TARGETS, VERSIONS, rows_of
from spotlessnet.serve.row_digests import (
    OF_JOB,
    OF_VERSION,
    digest_of,
    digest_of_model,
    digest_of_people,
    spelled,
)
from spotlessnet.serve.told import Last, Said, Told, streamed
from spotlessnet.serve.trail import STEPS

ENDS = {"job closed": "closed", "withdrawn": "withdrawn"}
"""Events with which a job ends, and its state then."""

MADE = ("method", "network", "receipt", "verdict", "reason")
"""What a worker says of its result, in the event."""


def check_jobs(connection: sa.Connection, findings: Findings, told: Told) -> None:
    """Every job against its events, and the requests in it against the job."""
    states: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for one in streamed(connection, sa.select(TARGETS).where(TARGETS.c.job.is_not(None))):
        states[one["job"]].add((one["model"], one["state"]))
    seen = set()
    for row in streamed(connection, sa.select(JOBS)):
        seen.add(row["id"])
        last = told.jobs.get(row["id"], {})
        wrong = _wrong(row, last, told.tries[row["id"]]) or _wrong_requests(row, states.pop(row["id"], set()))
        if wrong:
            findings.tell(f"job {row['id']}: {wrong}")
    for name in sorted({name for name, last in told.jobs.items() if "planned" in last} - seen):
        findings.tell(f"job {name} was removed")
    for name in sorted(states):
        findings.tell(f"requests are in job {name}, which is not there")


def _wrong(row: Any, last: Last, tries: int) -> str | None:
    if "planned" not in last:
        return "it was planned by nobody"
    made = digest_of(row, OF_JOB)
    if last["planned"].detail.get("row", made) != made or row["attempt"] != 1 + tries:
        return "it is not as it was planned"
    end = next((what for what in ENDS if what in last), None)
    if end is not None:
        digest = digest_of(row)
        is_same = row["state"] == ENDS[end] and last[end].detail.get("row", digest) == digest
        return None if is_same else "it is not as it was at its end"
    # What ended before there was an event of that, has no digest either.
    is_older = row["state"] in ENDS.values() and "row" not in last["planned"].detail
    if row["state"] != "planned" and row["state"] not in last and not is_older:
        return f"it is {row['state']}, but not so by the trail"
    if row["state"] in ("published", "destroyed") and "approved" not in last:
        return "it was approved by nobody"
    return _wrong_result(row, last)


def _wrong_result(row: Any, last: Last) -> str | None:
    """What the worker made, and who decided on it."""
    if "scrubbed" in last:
        same = all(row[name] == last["scrubbed"].detail.get(name, row[name]) for name in MADE)
    else:
        same = row["method"] == last["planned"].detail.get("method", row["method"])
        same = same and all(row[name] is None for name in ("network", "receipt", "verdict", "reason"))
    if not same:
        return "its result is not the one that was made"
    if "audited" in last:
        said = last["audited"].detail
        if (row["verdict"] or "not audited") != said["verdict"] or row["reason"] != said.get("reason", row["reason"]):
            return "its verdict is not the audit's"
    if row["plan"] != (last["cost"].detail if "cost" in last else None):
        return "its plan is not the one that was made"
    decided = [last[what].actor for what in ("approved", "sent back") if what in last]
    by_rule = "approved" in last and last["approved"].detail.get("by") == "rule"
    by_person = "sent back" in last or (decided and not by_rule)
    if row["decided_by"] != (decided[-1] if by_person else None):
        return "it was decided by somebody else"
    if row["state"] == "failed" and (row["message"] or "")[:500] != last["failed"].detail["text"]:
        return "its reason for failing is another one"
    return "it says why it failed, but did not" if row["message"] and row["state"] not in _FAILED else None


_FAILED = ("failed", "sent back")


def _wrong_requests(row: Any, states: set[tuple[str, str]]) -> str | None:
    if any(model != row["model"] for model, _ in states):
        return "requests for another model are in it"
    # A request that is in another job too may be closed later than this job.
    open_ones = {state for _, state in states if state != "closed"}
    if row["state"] in STEPS[:-1] and open_ones - {row["state"]}:
        return f"it is {row['state']}, but its requests are not"
    return None


def check_models(connection: sa.Connection, findings: Findings, told: Told) -> None:
    """Every model with its versions against the events of registering and publishing."""
    jobs = {row["id"]: row for row in streamed(connection, sa.select(JOBS.c.id, JOBS.c.model, JOBS.c.state))}
    at_work: dict[str, list[str]] = defaultdict(list)
    for job in jobs.values():
        if job["state"] not in ("closed", "withdrawn"):
            at_work[job["model"]].append(job["id"])
    gone: dict[tuple[str, int], str | None] = {}
    for name, last in told.jobs.items():
        if "destroyed" in last and name in jobs:
            said = last["destroyed"].detail
            gone[jobs[name]["model"], said["version"]] = said.get("when")
    versions: dict[str, list[Any]] = defaultdict(list)
    for row in streamed(connection, sa.select(VERSIONS).order_by(VERSIONS.c.model, VERSIONS.c.number)):
        versions[row["model"]].append(dict(row))
    published = dict(told.models)
    for row in rows_of(connection, sa.select(MODELS)):
        said = published.pop((row["tenant"], row["name"]), [])
        own = versions.pop(row["id"], [])
        wrong = _wrong_model(row, said, at_work[row["id"]]) or _wrong_versions(row, said, own, gone)
        if wrong is None and said[-1].detail.get("held", "") not in ("", digest_of_people(connection, row["id"])):
            wrong = "the people it holds are not those it was made with"
        if wrong:
            findings.tell(f"model {row['id']}: {wrong}")
    for _, name in published:
        findings.tell(f"model {name!r} was removed or renamed")
    for name in versions:
        findings.tell(f"versions of model {name}, which is not there")


def _wrong_model(row: Any, said: list[Said], at_work: list[str]) -> str | None:
    if not said or "version" in said[0].detail:
        return "it was registered by nobody"
    made = digest_of_model(row)
    if said[0].detail.get("row", made) != made:
        return "it is not as it was registered"
    if row["version"] != len(said) - 1:
        return f"version {row['version']} counts, but {len(said) - 1} was published last"
    return None if at_work == ([] if row["job"] is None else [row["job"]]) else "another job is at work on it"


def _wrong_versions(row: Any, said: list[Said], own: list[Any], gone: dict[tuple[str, int], Any]) -> str | None:
    if [one["number"] for one in own] != list(range(len(said))):
        return "its versions are not those that were published"
    for one, event in zip(own, said, strict=True):
        digest = digest_of(one, OF_VERSION)
        if event.detail.get("version_row", digest) != digest or event.detail["network"] != one["network"]:
            return f"version {one['number']} is not the one that was published"
        was, now = (row["id"], one["number"]) in gone, one["destroyed"] is not None
        when = gone.get((row["id"], one["number"]))
        if was != now or (when is not None and when != spelled(one["destroyed"])):
            return f"version {one['number']} was destroyed by nobody, or is said not to be"
    return None
