"""The durable part, run by DBOS: a step that ended is not run again after a crash, and one that did not is.

Two workflows for a job, with a person's or a rule's approval between them: `make` (plan, scrub, audit) and `finish`
(publish, destroy, close); `withdraw` where a person sent the result back. Every step looks at the database first, so
that running it twice changes nothing.
"""

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from dbos import DBOS, DBOSConfig, SetWorkflowID

from spotlessnet.core.errors import DataError, IntegrityError, SpotlessError
from spotlessnet.serve import replaying
from spotlessnet.serve.access import policy_of
from spotlessnet.serve.database import EVENTS, ID_COPIES, JOBS, MODELS, REQUESTS, TARGETS, reading, row_of
from spotlessnet.serve.desk import WORKFLOWS, Desk
from spotlessnet.serve.engine import Work, WorkError
from spotlessnet.serve.matching import check_method, gone_from, held_of
from spotlessnet.serve.planning import hand_back, reach, requests_of
from spotlessnet.serve.publishing import check_made, destroyed, finished, job_row, point, publish, version_of
from spotlessnet.serve.registry import files_to_log
from spotlessnet.serve.trail import StateError, note

QUEUE = "desk"
RECOVERIES = 1000
"""How often a workflow is taken up again after a crash before a person is asked."""

STEPS_VERSION = "1"
"""DBOS takes up only what the same version began. Every step looks at the database first, so a newer package may go on
with an older one's work; change this only where it may not."""

AT_WORK = ("PENDING", "ENQUEUED", "DELAYED")
"""What DBOS calls a workflow that has not ended."""

SENT_BACK = "sent back"

_RUN_HERE: set[str] = set()
"""Workflows that threads of this process run."""

_MISSED: set[str] = set()
"""Those that should be among them, and were not when somebody last looked."""

_AT_WORK: list[Desk] = []
"""The desk of this process: DBOS is one for a process, and calls functions by their names."""


def launch(desk: Desk, *, worker: str = "local", at_once: int = 2) -> None:
    """Start DBOS beside a desk's database, and take up what was interrupted."""
    address = desk.database.url.render_as_string(hide_password=False)
    if desk.database.dialect.name == "sqlite":
        address = f"sqlite:///{desk.folder / 'workflows.sqlite'}"
    config: DBOSConfig = {
        "name": "spotlessnet-desk",
        "system_database_url": address,
        "application_version": STEPS_VERSION,
        "executor_id": worker,
        "log_level": "ERROR",
    }
    _AT_WORK[:] = [desk]
    _MISSED.clear()
    DBOS(config=config)
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=at_once, polling_interval_sec=0.2)


def stop() -> None:
    """Stop DBOS; what is at work goes on at the next start."""
    DBOS.destroy(workflow_completion_timeout_sec=0)
    _AT_WORK.clear()


def enqueue(name: str, job: str, attempt: int) -> None:
    """Start a workflow, unless it was started before: its id says which job and attempt it is."""
    with SetWorkflowID(f"{name}-{job}-{attempt}"):
        DBOS.enqueue_workflow(QUEUE, {"make": make, "finish": finish, "withdraw": withdraw}[name], job)


def look_after(name: str, job: str, attempt: int) -> None:
    """Go on with a workflow that nobody runs any more; where it ended and moved nothing, leave its job to a person.

    On a full disk DBOS can note neither that a step failed nor that a workflow ended; and a restored database may lie
    before workflows that have ended since, which are not begun again under the same id.
    """
    own = f"{name}-{job}-{attempt}"
    found = DBOS.get_workflow_status(own)
    if found is None:
        return
    is_lost = found.status == "PENDING" and found.executor_id == DBOS.executor_id and own not in _RUN_HERE
    if found.status not in AT_WORK:
        fail(job, "The work ended, and nobody noted how. Look at disk and database, then try again.", name, attempt)
    elif is_lost and own in _MISSED:  # twice in a row: it is not just about to begin, or to be noted
        DBOS.resume_workflow(own, queue_name=QUEUE)
        is_lost = False
    (_MISSED.add if is_lost else _MISSED.discard)(own)


@DBOS.workflow(name="make", max_recovery_attempts=RECOVERIES)
def make(job: str) -> None:
    """Plan, scrub and audit; whatever goes wrong for good is left to a person."""
    _run(job, (("plan", plan), ("scrub", scrub), ("judge", judge)))


@DBOS.workflow(name="finish", max_recovery_attempts=RECOVERIES)
def finish(job: str) -> None:
    """Publish, destroy what was replaced, close the requests."""
    _run(job, (("publish", put_out), ("destroy", clear_away), ("close", close)))


@DBOS.workflow(name="withdraw", max_recovery_attempts=RECOVERIES)
def withdraw(job: str) -> None:
    """Destroy what was sent back."""
    _run(job, (("withdraw", take_back),))


def _run(job: str, steps: tuple[tuple[str, Callable[[str], None]], ...]) -> None:
    own = DBOS.workflow_id or ""
    _RUN_HERE.add(own)
    try:
        for name, step in steps:
            DBOS.run_step(_patience(name), step, job)
    except Exception as error:
        # Of a step that was tried too often, the last failure is the reason.
        last = (getattr(error, "errors", None) or [error])[-1]
        # Only what this package says on purpose is shown: it has no id in it.
        text = str(last) if isinstance(last, SpotlessError) else type(last.__cause__ or last).__name__
        DBOS.run_step({"name": "fail"}, fail, job, text, *told_by(own))
    finally:
        _RUN_HERE.discard(own)


def _patience(name: str) -> Any:
    return {
        "name": name,
        "retries_allowed": True,
        "max_attempts": 3,
        "interval_seconds": 1.0,
        "should_retry": lambda error: not isinstance(error, SpotlessError) or getattr(error, "may_pass", False),
    }


def _desk() -> Desk:
    if not _AT_WORK:
        raise WorkError("The desk is stopping.", 4)
    return _AT_WORK[0]


def told_by(workflow: str) -> tuple[str, int]:
    """Which workflow it is and the attempt, by its id."""
    return workflow.partition("-")[0], int(workflow.rpartition("-")[2])


def fail(job: str, text: str, workflow: str, attempt: int) -> None:
    """Leave a job to a person, who retries it or gives its requests back.

    **Arguments:**

    - `workflow`: the one that failed. Where the job has left the states that it is for, it had done its work.
    - `attempt`: the one that failed. Where a person has begun the next one, this was told before: a process that is
      killed between telling it and noting that it did so would tell it again, and let a third one begin beside it.
    """
    with _desk().database.begin() as connection:
        row = job_row(connection, job)
        if row["attempt"] == attempt and WORKFLOWS.get(row["state"]) == workflow:
            connection.execute(JOBS.update().where(JOBS.c.id == job).values(state="failed", message=text[:2000]))
            note(connection, row["tenant"], "failed", job=job, at=row["state"], text=text[:500])


def work_of(desk: Desk, job: str) -> tuple[dict[str, Any], Work]:
    """A job and what a worker must be told: its ids are opened here, and nowhere else."""
    with reading(desk.database) as connection:
        row = row_of(connection, sa.select(JOBS).where(JOBS.c.id == job))
        if row is None:
            raise DataError("There is no such job.")
        model = row_of(connection, sa.select(MODELS).where(MODELS.c.id == row["model"]))
        assert model is not None
        base = version_of(connection, model["id"], row["base"])
        wanted = held_of(connection, model["id"], job)
        copies = sa.select(ID_COPIES.c.sealed).where(ID_COPIES.c.request.in_(requests_of(connection, job)))
        tenant = row["tenant"]
        opened = {one for sealed in connection.execute(copies).scalars() for one in desk.keys.open_ids(tenant, sealed)}
        policy = policy_of(connection, tenant)
        by_digest = {desk.keys.id_digest(tenant, one): one for one in opened}
        if row["state"] == "planned" and not wanted <= by_digest.keys():
            raise IntegrityError(
                "Every id that a job must remove needs its encrypted copy, but one lacks it: rows were removed from "
                "the database. `spotless verify --ledger` says more."
            )
        work = Work(
            kind=model["kind"],
            settings=model["settings"],
            base=base["folder"],
            out=str(desk.out_of(row)),
            ids=sorted(one for digest, one in by_digest.items() if digest in wanted),
            key=desk.keys.ids_key(tenant).hex(),
            gone=[one.hex() for one in gone_from(connection, tenant, model["id"])],
            method=row["method"],
            seeds=policy.audit_seeds,
        )
        return row, work


def plan(job: str) -> None:
    """What the work will cost beside retraining."""
    desk = _desk()
    row, work = work_of(desk, job)
    if row["state"] != "planned" or row["plan"] is not None:
        return
    found = desk.engine.plan(work)
    with desk.database.begin() as connection:
        connection.execute(JOBS.update().where(JOBS.c.id == job).values(plan=found))
        note(connection, row["tenant"], "cost", job=job, **found)


def scrub(job: str) -> None:
    """Make the new version, and audit it."""
    desk = _desk()
    row, work = work_of(desk, job)
    if row["state"] != "planned":
        return

    def say(line: str) -> None:
        with desk.database.begin() as connection:
            note(connection, row["tenant"], "progress", job=job, line=line[:300])

    done = desk.engine.forget(work, say)
    with desk.database.begin() as connection:
        if job_row(connection, job)["state"] != "planned":
            return
        values = {name: done[name] for name in ("verdict", "reason", "method", "network", "receipt")}
        connection.execute(JOBS.update().where(JOBS.c.id == job).values(**values))
        reach(connection, job, "scrubbed")
        # With the verdict: until it is judged, which a replay may put off for hours, nothing else would tell it.
        told = {name: done[name] for name in ("method", "network", "receipt", "verdict", "reason")}
        note(connection, row["tenant"], "scrubbed", job=job, **told)


def judge(job: str) -> None:
    """Do it again where it was drawn for that; then let the verdict through by rule, or wait for a person."""
    desk = _desk()
    row, work = work_of(desk, job)
    replaying.replay(desk, row, work)
    _check_made(desk, row, "scrubbed")
    with desk.database.begin() as connection:
        row = job_row(connection, job)
        if row["state"] != "scrubbed":
            return
        reach(connection, job, "audited")
        told = {"verdict": row["verdict"] or "not audited", "reason": row["reason"]}
        note(connection, row["tenant"], "audited", job=job, **told)
        is_doubtful = replaying.came_out_otherwise(connection, job)
        if policy_of(connection, row["tenant"]).approves(row["verdict"]) and not is_doubtful:
            reach(connection, job, "approved")
            note(connection, row["tenant"], "approved", job=job, by="rule")


def _check_made(desk: Desk, row: dict[str, Any] | None, state: str) -> None:
    """Raise where a job in this state has another network than was made; outside of transactions, for it takes time."""
    if row is not None and row["state"] == state:
        check_made(desk.out_of(row), row["network"])


def put_out(job: str) -> None:
    """Switch the published version, then the link to it."""
    desk = _desk()
    with reading(desk.database) as connection:
        approved = row_of(connection, sa.select(JOBS).where(JOBS.c.id == job))
    _check_made(desk, approved, "approved")
    with desk.database.begin() as connection:
        folder = desk.out_of(job_row(connection, job))
        model = publish(connection, job, folder)
        current = version_of(connection, model["id"], model["version"])
    point(desk.folder, model["tenant"], model["name"], desk.folder / current["folder"])
    if desk.registry is not None:
        told = {"version": str(current["number"]), "verdict": current["verdict"] or "not audited"}
        files = files_to_log(desk.folder / current["folder"])
        desk.registry.publish(model["tenant"], model["name"], current["network"], files, told)


def clear_away(job: str) -> None:
    """Destroy the version that was replaced, and what opens the commitments of the new one."""
    desk = _desk()
    with reading(desk.database) as connection:
        row = row_of(connection, sa.select(JOBS).where(JOBS.c.id == job))
        assert row is not None
        private = policy_of(connection, row["tenant"]).destroy_private
        name = connection.execute(sa.select(MODELS.c.name).where(MODELS.c.id == row["model"])).scalar_one()
        base = version_of(connection, row["model"], row["base"])
    if row["state"] != "published":
        return
    if desk.registry is not None:
        desk.registry.retire(row["tenant"], name, row["network"])
    files = desk.engine.destroy(desk.folder / base["folder"], desk.out_of(row), private=private)
    with desk.database.begin() as connection:
        destroyed(connection, job, files)


def close(job: str) -> None:
    """Close the requests that are done, each with its receipt, and free the model."""
    desk = _desk()
    desk.close_all()
    with desk.database.begin() as connection:
        finished(connection, job)


def decide(
    desk: Desk, tenant: str, job: str, actor: str, *, approve: bool, why: str = "", method: str | None = None
) -> None:
    """A person's decision on an audited job: publish it, or make it again, with another method where one is named."""
    check_method(method)
    if approve:
        with reading(desk.database) as connection:
            audited = row_of(connection, sa.select(JOBS).where(JOBS.c.id == job, JOBS.c.tenant == tenant))
        _check_made(desk, audited, "audited")
    with desk.database.begin() as connection:
        row = job_row(connection, job, tenant)
        if row["state"] not in (("audited",) if approve else ("audited", "failed")):
            raise StateError(f"A job can be decided on once it was audited, but this one is {row['state']}.")
        connection.execute(JOBS.update().where(JOBS.c.id == job).values(decided_by=actor))
        if approve:
            check_other_person(connection, row, actor)
            reach(connection, job, "approved")
            note(connection, tenant, "approved", job=job, actor=actor, by="person")
            return
        if _requests_state(connection, job) not in ("planned", "scrubbed", "audited", "approved"):
            raise StateError("What was published cannot be sent back. Try the job again.")
        if row["state"] == "failed" and _failed_at(connection, job) == SENT_BACK:
            raise StateError("It was sent back, and what was made could not be destroyed. Try the job again.")
        # From here the result can no longer be published; a workflow destroys it.
        connection.execute(JOBS.update().where(JOBS.c.id == job).values(state=SENT_BACK))
        if method is not None:
            model = sa.select(MODELS.c.settings).where(MODELS.c.id == row["model"])
            settings = {**connection.execute(model).scalar_one(), "next_method": method}
            connection.execute(MODELS.update().where(MODELS.c.id == row["model"]).values(settings=settings))
        note(connection, tenant, SENT_BACK, job=job, actor=actor, why=why[:500], method=method)


def take_back(job: str) -> None:
    """Destroy a result that was sent back, and let its requests wait for the next job."""
    desk = _desk()
    with reading(desk.database) as connection:
        row = row_of(connection, sa.select(JOBS).where(JOBS.c.id == job))
        assert row is not None
        base = version_of(connection, row["model"], row["base"])
    if row["state"] != SENT_BACK:
        return
    desk.engine.withdraw(desk.folder / base["folder"], desk.out_of(row))
    with desk.database.begin() as connection:
        if job_row(connection, job)["state"] == SENT_BACK:
            hand_back(connection, row, "withdrawn")


def retry(desk: Desk, tenant: str, job: str, actor: str) -> None:
    """Try a failed job again, from the step that failed."""
    with desk.database.begin() as connection:
        row = job_row(connection, job, tenant)
        if row["state"] != "failed":
            raise StateError(f"Only a failed job can be tried again, but this one is {row['state']}.")
        # What was sent back may be half destroyed: it is never shown to anybody for approval again.
        is_back = _failed_at(connection, job) == SENT_BACK
        state = SENT_BACK if is_back else _requests_state(connection, job)
        values = {"state": state, "attempt": row["attempt"] + 1, "message": None}
        connection.execute(JOBS.update().where(JOBS.c.id == job).values(**values))
        note(connection, tenant, "tried again", job=job, actor=actor)


def _failed_at(connection: sa.Connection, job: str) -> str:
    """The state in which a job failed last."""
    failures = sa.select(EVENTS.c.detail).where(EVENTS.c.job == job, EVENTS.c.what == "failed")
    return str(connection.execute(failures.order_by(EVENTS.c.number.desc()).limit(1)).scalar_one()["at"])


def _requests_state(connection: sa.Connection, job: str) -> str:
    return str(connection.execute(sa.select(TARGETS.c.state).where(TARGETS.c.job == job).limit(1)).scalar_one())


def check_other_person(connection: sa.Connection, job: dict[str, Any], actor: str) -> None:
    """Raise where whoever submitted a request of the job would approve it, and the policy forbids that."""
    if not policy_of(connection, job["tenant"]).approver_differs:
        return
    submitters = sa.select(REQUESTS.c.submitter).where(REQUESTS.c.id.in_(requests_of(connection, job["id"])))
    if actor in set(connection.execute(submitters).scalars()):
        raise StateError("Whoever submitted a request may not approve its result here. Ask another person.")
