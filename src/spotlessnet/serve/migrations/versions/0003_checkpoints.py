"""Who wrote an event, and which entry of the ledger holds its digest."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Beside the columns that are there; the events of before get their checkpoint in the next round."""
    op.add_column("events", sa.Column("code", sa.LargeBinary(length=32), nullable=True))
    op.add_column("events", sa.Column("checkpoint", sa.Integer(), nullable=True))
    open_ones = sa.text("checkpoint IS NULL")
    op.create_index(
        "events_to_check", "events", ["number"], unique=False, postgresql_where=open_ones, sqlite_where=open_ones
    )


def downgrade() -> None:
    """Back would lose what the ledger says of the trail: restore a backup instead."""
    raise NotImplementedError("There is no way back. Restore a backup.")
