"""The tables of a deletion desk, and how they are opened: SQLite in one file, or PostgreSQL for many workers.

No id of a person stands in them. An id is a keyed digest (`sealing.py`) wherever it must be compared, and an encrypted
copy, destroyed at the end, where a training must be asked for it.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from spotlessnet.core.errors import SettingError

METADATA = MetaData()

T = TypeVar("T")
FEW = 500
"""Values in one statement."""

ID = String(36)
DIGEST = LargeBinary(32)


class Moment(sa.TypeDecorator[datetime]):
    """A time in UTC; SQLite keeps no zone, so it is taken off and put on again."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


TIME = Moment()


def _tenant() -> Column[Any]:
    return Column("tenant", ID, ForeignKey("tenants.id"), nullable=False)


TENANTS = Table(
    "tenants",
    METADATA,
    Column("id", ID, primary_key=True),
    Column("name", String(80), nullable=False, unique=True),
    Column("policy", JSON, nullable=False),
    Column("created", TIME, nullable=False),
)

TOKENS = Table(
    "tokens",
    METADATA,
    Column("id", ID, primary_key=True),
    _tenant(),
    Column("name", String(80), nullable=False),
    Column("digest", DIGEST, nullable=False, unique=True),
    Column("scopes", String(80), nullable=False),
    Column("created", TIME, nullable=False),
    Column("expires", TIME),
    Column("revoked", TIME),
)

MODELS = Table(
    "models",
    METADATA,
    Column("id", ID, primary_key=True),
    _tenant(),
    Column("name", String(80), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("settings", JSON, nullable=False),
    Column("version", Integer, nullable=False),
    Column("job", ID),  # the one job at work on it: each job goes on from the version before it
    Column("created", TIME, nullable=False),
    UniqueConstraint("tenant", "name"),
)

VERSIONS = Table(
    "versions",
    METADATA,
    Column("model", ID, ForeignKey("models.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("folder", Text, nullable=False),
    Column("network", String(64), nullable=False),
    Column("job", ID),
    Column("verdict", String(40)),
    Column("published", TIME),
    Column("destroyed", TIME),
)

MODEL_IDS = Table(
    "model_ids",
    METADATA,
    Column("model", ID, ForeignKey("models.id"), primary_key=True),
    Column("id", DIGEST, primary_key=True),
    Column("examples", Integer, nullable=False),
    Index("model_ids_by_id", "id"),
)

REQUESTS = Table(
    "requests",
    METADATA,
    Column("id", ID, primary_key=True),
    _tenant(),
    Column("key", DIGEST, nullable=False),
    Column("content", DIGEST, nullable=False),
    Column("state", String(20), nullable=False),
    Column("held", Boolean, nullable=False),
    Column("submitter", ID, nullable=False),
    Column("count", Integer, nullable=False),
    Column("received", TIME, nullable=False),
    Column("due", TIME, nullable=False),
    Column("warned", TIME),
    Column("closed", TIME),
    Column("entry", Integer),
    Column("outcome", String(80)),
    UniqueConstraint("tenant", "key"),
    Index("requests_by_state", "tenant", "state", "due"),
    Index("requests_by_due", "tenant", "due", "id"),
)

REQUEST_IDS = Table(
    "request_ids",
    METADATA,
    Column("request", ID, ForeignKey("requests.id"), primary_key=True),
    Column("id", DIGEST, primary_key=True),
)

ID_COPIES = Table(
    "id_copies",
    METADATA,
    Column("request", ID, ForeignKey("requests.id"), primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
)

TARGETS = Table(
    "targets",
    METADATA,
    Column("request", ID, ForeignKey("requests.id"), primary_key=True),
    Column("model", ID, ForeignKey("models.id"), primary_key=True),
    Column("state", String(20), nullable=False),
    Column("job", ID),
    Index("targets_by_model", "model", "state"),
    Index("targets_by_job", "job"),
)

JOBS = Table(
    "jobs",
    METADATA,
    Column("id", ID, primary_key=True),
    _tenant(),
    Column("model", ID, ForeignKey("models.id"), nullable=False),
    Column("state", String(20), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("base", Integer, nullable=False),
    Column("method", String(80)),
    Column("plan", JSON),
    Column("verdict", String(40)),
    Column("reason", Text),
    Column("network", String(64)),
    Column("receipt", String(64)),
    Column("message", Text),
    Column("decided_by", ID),
    Column("created", TIME, nullable=False),
    Index("jobs_by_state", "state"),
)

EVENTS = Table(
    "events",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    _tenant(),
    Column("request", ID),
    Column("job", ID),
    Column("at", TIME, nullable=False),
    Column("actor", String(80), nullable=False),
    Column("what", String(40), nullable=False),
    Column("detail", JSON, nullable=False),
    Column("code", DIGEST),  # made with the desk's key: an event that another hand wrote has none
    Column("checkpoint", Integer),  # the entry of the ledger that holds its digest
    Index("events_by_request", "request"),
    Index("events_by_job", "job"),
)
_TO_CHECK = EVENTS.c.checkpoint.is_(None)
Index("events_to_check", EVENTS.c.number, postgresql_where=_TO_CHECK, sqlite_where=_TO_CHECK)

SUPPRESSIONS = Table(
    "suppressions",
    METADATA,
    Column("tenant", ID, ForeignKey("tenants.id"), primary_key=True),
    Column("id", DIGEST, primary_key=True),
    Column("since", TIME, nullable=False),
)

WEBHOOKS = Table(
    "webhooks",
    METADATA,
    Column("id", ID, primary_key=True),
    _tenant(),
    Column("url", Text, nullable=False),
    Column("secret", LargeBinary, nullable=False),  # sealed
    Column("created", TIME, nullable=False),
    Column("last", Integer, nullable=False),  # number of the last event that was delivered
    Column("failures", Integer, nullable=False, server_default="0"),  # in a row
    Column("next", TIME),  # not before: somebody is at it, or it failed and is left alone for a while
    Column("answer", String(120)),  # to the last attempt
    Index("webhooks_by_tenant", "tenant"),
)

DELIVERIES = Table(
    "deliveries",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("webhook", ID, ForeignKey("webhooks.id"), nullable=False),
    Column("event", Integer, nullable=False),
    Column("request", ID, ForeignKey("requests.id"), nullable=False),
    Column("what", String(40), nullable=False),
    Column("state", String(20), nullable=False),  # of the request, when it happened
    Column("at", TIME, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("given_up", TIME),
    Index("deliveries_by_webhook", "webhook", "given_up", "number"),
)


def address_of(folder: Path, given: str | None) -> str:
    """The database's address: a file in the desk's folder unless one was given."""
    if given is None:
        return f"sqlite:///{folder / 'desk.sqlite'}"
    if given.startswith(("postgresql://", "postgres://")):
        return "postgresql+psycopg://" + given.partition("://")[2]
    if given.startswith(("sqlite:///", "postgresql+psycopg://")):
        return given
    raise SettingError(
        "--database must be postgresql://… or sqlite:///…, but begins otherwise. Leave it out for a file in the desk's "
        "folder."
    )


PRAGMAS = ["journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON", "busy_timeout=30000"]
"""How SQLite works here: what was answered is on the disk, and what was deleted is overwritten."""


IDLE = 5.0
"""Seconds after which a connection to PostgreSQL may have ended unnoticed."""


def opened(address: str) -> sa.Engine:
    """An engine; on SQLite each writer takes its lock at once, waits its turn, and overwrites what it deletes."""
    if not address.startswith("sqlite"):
        engine = sa.create_engine(address, pool_size=10, max_overflow=10, hide_parameters=True)
        sa.event.listen(engine, "checkin", _noted)
        sa.event.listen(engine, "checkout", partial(_alive, engine))
        return engine
    sizes = {"pool_size": 20, "max_overflow": 20}
    engine = sa.create_engine(address, connect_args={"timeout": 30}, hide_parameters=True, **sizes)
    sa.event.listen(engine, "connect", _prepare)
    sa.event.listen(engine, "begin", _begin)
    return engine


def _noted(_: Any, record: Any) -> None:
    record.info["used"] = time.monotonic()


def _alive(engine: sa.Engine, connection: Any, record: Any, _: Any) -> None:
    """Ask a connection that lay idle whether its server is still there; asking each time would double the messages."""
    if time.monotonic() - record.info.get("used", time.monotonic()) < IDLE:
        return
    try:
        engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error as e:
        raise sa.exc.DisconnectionError from e


def _prepare(connection: Any, _: Any) -> None:
    connection.isolation_level = None
    for line in PRAGMAS:
        connection.execute(f"PRAGMA {line}").close()


def _begin(connection: sa.Connection) -> None:
    # A transaction that began by reading could not write any more once another one has written.
    reads = connection.get_execution_options().get("reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


PATIENCE = 0.05
"""Seconds for which those who write wait at most while the log is emptied."""


def empty_log(engine: sa.Engine) -> bool:
    """Empty SQLite's log of writes: what was deleted lies there in clear bytes until it is. Whether it is empty now.

    Where somebody reads an older state at this moment, it stays, and the next look takes it.
    """
    file = engine.url.database
    log = Path(f"{file}-wal")
    if engine.dialect.name != "sqlite" or not file or not log.exists() or not log.stat().st_size:
        return True
    with closing(sqlite3.connect(file, timeout=PATIENCE)) as connection:
        return not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]


@contextmanager
def reading(engine: sa.Engine, *, at_one_moment: bool = False) -> Iterator[sa.Connection]:
    """A connection that only reads: it waits for nobody.

    **Arguments:**

    - `at_one_moment`: all statements see the same, whatever is written meanwhile. SQLite does so always; PostgreSQL is
      spared two messages for each reading where nobody asks for it.
    """
    options: dict[str, Any] = {"reads": True}
    if engine.dialect.name == "postgresql":
        options["isolation_level"] = "REPEATABLE READ" if at_one_moment else "AUTOCOMMIT"
    with engine.connect().execution_options(**options) as connection:
        yield connection


def in_state(*states: str) -> sa.ColumnElement[bool]:
    """Requests of all tenants in some states; the tenants are named, for the index begins with them."""
    return sa.and_(REQUESTS.c.tenant.in_(sa.select(TENANTS.c.id)), REQUESTS.c.state.in_(states))


def in_parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Values for one statement after another: SQLite takes a limited number in each."""
    for start in range(0, len(values), FEW):
        yield values[start : start + FEW]


def row_of(connection: sa.Connection, query: sa.Select[Any]) -> dict[str, Any] | None:
    """The one row of a query as a dictionary, or `None`."""
    found = connection.execute(query).mappings().one_or_none()
    return None if found is None else dict(found)


def rows_of(connection: sa.Connection, query: sa.Select[Any]) -> list[dict[str, Any]]:
    """All rows of a query as dictionaries."""
    return [dict(one) for one in connection.execute(query).mappings()]
