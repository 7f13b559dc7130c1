"""What must be so during a storm and after it: nothing lost or done twice, receipts, audited models only."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from spotlessnet.proof import ledger
from spotlessnet.proof.bundle import verify_bundle
from spotlessnet.proof.dsse import taken_apart
from spotlessnet.proof.keys import PublicKeys
from spotlessnet.serve.checkpoints import TRAIL
from spotlessnet.serve.database import EVENTS, ID_COPIES, JOBS, MODELS, REQUESTS, TARGETS, VERSIONS, reading, rows_of
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.proving import bundle_of, seal_of
from spotlessnet.serve.publishing import PUBLISHED
from spotlessnet.serve.trail import REPLAYED, TOLD
from tests.serve.moody import marks
from tests.serve.stand_in import NETWORK, digest

if TYPE_CHECKING:
    from tests.serve.storm import Storm

Row = dict[str, Any]


def check_published(desk: Desk, tenant: str) -> None:
    """Whatever a link leads to now is there, whole, and may be published."""
    place = desk.folder / PUBLISHED / tenant
    for link in sorted(place.glob("[!.]*")) if place.is_dir() else []:
        for _ in range(20):
            target = Path(os.readlink(link))
            try:
                json.loads((target / NETWORK).read_text())
                break
            except FileNotFoundError:  # another version came in between, and this one was destroyed
                assert os.readlink(link) != str(target), "the published version is not there"
        with reading(desk.database) as connection:
            check_verdict(connection, desk.engine, target.name)


def check_verdict(connection: sa.Connection, engine: Any, job: str) -> None:
    """A job whose result is published passed its audit, or was let through by a person who saw that it did not fail."""
    said = engine.verdict_of(job)
    told = sa.select(EVENTS.c.detail).where(EVENTS.c.job == job, EVENTS.c.what == "approved")
    [approved] = [detail["by"] for detail in connection.execute(told).scalars()]
    assert (said, approved) in (("forgotten", "rule"), ("inconclusive", "person")), "published without a passed audit"
    held = connection.execute(sa.select(JOBS.c.verdict).where(JOBS.c.id == job)).scalar_one()
    assert held == said, "the verdict in the database is not the audit's"


def check_what_is_left(storm: "Storm") -> dict[str, Any]:
    """Everything, once all requests have ended; gives what there was to count."""
    tenant = storm.tenant.id
    with reading(storm.desk.database, at_one_moment=True) as connection:
        rows = {row["id"]: row for row in rows_of(connection, sa.select(REQUESTS).where(REQUESTS.c.tenant == tenant))}
        assert rows.keys() == set(storm.ids.values()), "a request was lost, or came from nowhere"
        check_receipts(connection, storm.desk, [row for row in rows.values() if row["state"] == "closed"])
        assert connection.execute(sa.select(sa.func.count()).select_from(ID_COPIES)).scalar_one() == 0
        models = rows_of(connection, sa.select(MODELS).where(MODELS.c.tenant == tenant))
        counted: Counter[str] = Counter()
        for model in models:
            counted += check_model(connection, storm, model, rows)
    again = counted["begun"] - counted["done"] - counted["raised"]
    assert again <= storm.kills, f"{again} pieces of work were begun and not done, by {storm.kills} kills"
    assert counted["jobs"] > 1
    states = Counter(row["state"] for row in rows.values())
    return {**dict(counted), "requests": len(rows), "closed": states["closed"], "cancelled": states["cancelled"]}


def check_receipts(connection: sa.Connection, desk: Desk, closed: list[Row]) -> None:
    """The ledger holds one receipt of each closed request and nothing else."""
    keys = PublicKeys([desk.signer.public])
    for row in closed:
        proven = verify_bundle(bundle_of(connection, row["entry"]), keys)
        assert proven.receipt["predicate"]["request"] == row["id"]
    size = ledger.size_of(connection)
    entries = [json.loads(taken_apart(ledger.entry(connection, i)).payload) for i in range(size)]
    told = [one for one in entries if one["predicateType"] != TRAIL]
    assert sorted(one["predicate"]["request"] for one in told) == sorted(row["id"] for row in closed)
    events = connection.execute(sa.select(EVENTS.c.request).where(EVENTS.c.what == "closed")).scalars()
    assert sorted(events) == sorted(row["id"] for row in closed), "closed twice"
    # The ledger, and with it every table: whatever was interrupted, they agree.
    mistakes = seal_of(connection, desk.signer).mistakes
    assert mistakes == (), "\n".join(mistakes)


def check_heard(storm: "Storm", names: list[str]) -> dict[str, int]:
    """A webhook was told of every step of every request, at least once."""
    own = sa.select(EVENTS.c.number, EVENTS.c.request).where(
        EVENTS.c.tenant == storm.tenant.id, EVENTS.c.what.in_(TOLD)
    )
    by_job = sa.select(EVENTS.c.number, TARGETS.c.request).join(TARGETS, TARGETS.c.job == EVENTS.c.job)
    with reading(storm.desk.database) as connection:
        events = [
            *connection.execute(own.where(EVENTS.c.request.is_not(None))),
            *connection.execute(by_job.where(EVENTS.c.what == "published")),
        ]
        must = {f"evt_{number}_{request}" for number, request in events}
        assert must <= set(names), f"{len(must - set(names))} steps of {len(must)} were never told"
        replayed = connection.execute(sa.select(EVENTS.c.what).where(EVENTS.c.what.in_(REPLAYED))).scalars().all()
    assert set(replayed) <= {"replayed: the same"}
    found = {"messages": len(set(names)), "told twice": len(names) - len(set(names))}
    return {**found, "replayed": len(replayed)}


def check_model(connection: sa.Connection, storm: "Storm", model: Row, rows: dict[str, Row]) -> Counter[str]:
    """The lineage of one model, the marks of the work on it, and the network that is published now."""
    versions = rows_of(connection, sa.select(VERSIONS).where(VERSIONS.c.model == model["id"]))
    versions.sort(key=lambda one: one["number"])
    assert [one["number"] for one in versions] == list(range(model["version"] + 1))
    published = [one["job"] for one in versions[1:]]
    assert len(set(published)) == len(published), "one job was published twice"
    for job in published:
        check_verdict(connection, storm.engine, job)
    current = Path(versions[-1]["folder"])
    assert digest(current / NETWORK) == versions[-1]["network"]
    assert not any((Path(one["folder"]) / NETWORK).exists() for one in versions[:-1]), "a version was not destroyed"
    jobs = {row["id"]: row for row in rows_of(connection, sa.select(JOBS).where(JOBS.c.model == model["id"]))}
    assert {job["state"] for job in jobs.values()} <= {"closed", "withdrawn"}
    assert {name for name, job in jobs.items() if job["state"] == "closed"} == set(published)
    counted = check_marks(storm.desk.folder / "models" / model["id"], jobs)
    people = set(storm.held[model["name"]])
    wanted = {key for key, one in storm.ids.items() if rows[one]["state"] == "closed"}
    gone = people & {one for key in wanted for one in storm.asked[key]}
    left = json.loads((current / NETWORK).read_text())
    assert sorted(left) == sorted(people - gone), "the published model is not the one without those who asked"
    served = [one for job in published for one in served_by(storm.desk.folder / "models" / model["id"], job)]
    assert len(set(served)) == len(served), "somebody was removed twice"
    return counted + Counter(jobs=len(jobs), published=len(published))


def check_marks(folder: Path, jobs: dict[str, Row]) -> Counter[str]:
    """No job was worked on by two at a time, and none once more after it was done."""
    seen = marks(folder)
    assert [one for one in seen if one["what"] == "beside"] == [], "two were at work on one job"
    assert {one["job"] for one in seen} <= jobs.keys()
    done: set[str] = set()
    for one in seen:
        assert one["job"] not in done, "work was done again"
        if one["what"] == "done":
            done.add(one["job"])
    return Counter(one["what"] for one in seen)


def served_by(folder: Path, job: str) -> list[str]:
    """Whom a job removed, by its mark; nobody where the process was killed between the work and the mark."""
    return [name for one in marks(folder) if one["what"] == "done" and one["job"] == job for name in one["ids"]]
