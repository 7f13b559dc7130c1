"""What webhooks still have to be told, and how their endpoints fare."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Beside the tables that are there."""
    op.add_column("webhooks", sa.Column("failures", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("webhooks", sa.Column("next", sa.DateTime(timezone=True), nullable=True))
    op.add_column("webhooks", sa.Column("answer", sa.String(length=120), nullable=True))
    op.create_index("webhooks_by_tenant", "webhooks", ["tenant"], unique=False)
    op.create_table(
        "deliveries",
        sa.Column("number", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("webhook", sa.String(length=36), nullable=False),
        sa.Column("event", sa.Integer(), nullable=False),
        sa.Column("request", sa.String(length=36), nullable=False),
        sa.Column("what", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("given_up", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["webhook"], ["webhooks.id"]),
        sa.ForeignKeyConstraint(["request"], ["requests.id"]),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index("deliveries_by_webhook", "deliveries", ["webhook", "given_up", "number"], unique=False)


def downgrade() -> None:
    """Back would lose what is still to be told: restore a backup instead."""
    raise NotImplementedError("There is no way back. Restore a backup.")
