"""Alembic runs this: migrations go over the connection that `migrating.migrate` opened."""

from alembic import context

from spotlessnet.proof import tables
from spotlessnet.serve.database import METADATA

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=[METADATA, tables.METADATA],
    render_as_batch=connection.dialect.name == "sqlite",
    transactional_ddl=False,  # the caller's transaction holds it all
)
context.run_migrations()
