"""Migrations make the very tables that the code speaks of, and can be run again; addresses are checked."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from spotlessnet.core.errors import ResourceError, SettingError
from spotlessnet.proof import tables
from spotlessnet.serve.database import METADATA, address_of, opened
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.migrating import migrate


def test_migrations_make_the_tables_of_the_code_and_run_twice(tmp_path):
    engine = opened(f"sqlite:///{tmp_path / 'desk.sqlite'}")
    migrate(engine)
    migrate(engine)
    both = sa.MetaData()
    for table in (*METADATA.tables.values(), *tables.METADATA.tables.values()):
        table.to_metadata(both)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"target_metadata": both, "compare_type": False})
        assert compare_metadata(context, both) == []
        assert connection.exec_driver_sql("PRAGMA secure_delete").scalar() == 1
    engine.dispose()


def test_an_address_is_a_file_or_postgresql():
    assert address_of(Path("/desk"), None) == "sqlite:////desk/desk.sqlite"
    assert address_of(Path("/desk"), "postgresql://u@h/d") == "postgresql+psycopg://u@h/d"
    with pytest.raises(SettingError, match="--database must be postgresql://… or sqlite:///…"):
        address_of(Path("/desk"), "mysql://h")


def test_a_database_that_does_not_answer_is_told_in_words_and_without_its_password(tmp_path):
    with pytest.raises(ResourceError, match="does not answer") as told:
        Desk.at(tmp_path / "desk", database="postgresql://desk:geheim@127.0.0.1:1/desk")
    assert "geheim" not in str(told.value)
    # The keys stay: another worker may have begun with them meanwhile.
    assert (tmp_path / "desk" / "desk.key").exists()
