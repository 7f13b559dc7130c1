"""Bringing a database to the tables of this version; Alembic's scripts lie in `migrations`."""

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

SCRIPTS = Path(__file__).parent / "migrations"


def config_for(connection: sa.Connection) -> Config:
    """Alembic's settings, with an open connection: no file of settings is needed."""
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.attributes["connection"] = connection
    return config


def migrate(engine: sa.Engine) -> None:
    """Run the migrations that a database has not seen, in one transaction."""
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            # Several workers may start at once: the second waits, and finds nothing to do.
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(7309117220621250)"))
        command.upgrade(config_for(connection), "head")
