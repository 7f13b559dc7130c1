"""Opening the database of a ledger by its address: a URL, or simply the path of an SQLite file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, inspect, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, OperationalError

from spotlessnet.core.errors import DataError, ResourceError, SettingError
from spotlessnet.proof import ledger, tables

WAIT = 30
"""Seconds for which a writer waits for another one on SQLite."""


def engine_of(address: str) -> Engine:
    """An engine for `sqlite:///file.db`, `postgresql+psycopg://…` or the path of an SQLite file."""
    try:
        url = make_url(address if "://" in address else f"sqlite:///{address}")
        if url.drivername == "postgresql":
            # The driver of this extra; SQLAlchemy would look for an older one.
            url = url.set(drivername="postgresql+psycopg")
        if url.get_backend_name() not in ("sqlite", "postgresql"):
            raise SettingError(
                f"A ledger lies in SQLite or PostgreSQL, but the address is of {url.get_backend_name()!r}."
            )
        return create_engine(url, connect_args={"timeout": WAIT} if url.get_backend_name() == "sqlite" else {})
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as e:
        # Not the address itself: it may hold a password.
        raise SettingError(
            "The address of a ledger must be such as sqlite:///ledger.db or postgresql://host/name, with its driver "
            f"installed ({type(e).__name__})."
        ) from e


@contextmanager
def reading(address: str) -> Iterator[Connection]:
    """A connection to a ledger that is there already; nothing is made."""
    engine = engine_of(address)
    shown = engine.url.render_as_string(hide_password=True)
    place = engine.url.database
    if engine.dialect.name == "sqlite" and not (place and Path(place).is_file()):
        raise DataError(f"There is no ledger at {shown}: the file is not there. Check the path.")
    with _told(shown), engine.connect() as connection:
        # All that is read is of one moment, whoever appends meanwhile.
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN")
        else:
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        there = inspect(connection)
        missing = [table.name for table in tables.METADATA.sorted_tables if not there.has_table(table.name)]
        if len(missing) == len(tables.METADATA.tables):
            raise DataError(f"The database {shown} holds no ledger. Check the address.")
        yield connection
    engine.dispose()


@contextmanager
def writing(address: str) -> Iterator[Connection]:
    """A transaction on a ledger that may append; tables and log are made where there are none."""
    engine = engine_of(address)
    with _told(engine.url.render_as_string(hide_password=True)), ledger.writing(engine) as connection:
        ledger.create(connection)
        yield connection
    engine.dispose()


@contextmanager
def _told(shown: str) -> Iterator[None]:
    try:
        yield
    except OperationalError as e:
        why = str(e.orig).splitlines()[0] if e.orig is not None else "no reason given"
        raise ResourceError(f"The database {shown} cannot be used ({why[:200]}). Check that it runs.") from e
    except DatabaseError as e:
        raise DataError(f"The database {shown} is no ledger, or not one that can be read ({type(e).__name__}).") from e
