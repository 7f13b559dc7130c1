"""The first tables of a desk, those of the ledger among them."""

import sqlalchemy as sa
from alembic import op

from spotlessnet.proof import tables

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From an empty database."""
    tables.METADATA.create_all(op.get_bind())
    tenants()
    tokens()
    webhooks()
    suppressions()
    models()
    versions()
    model_ids()
    requests()
    request_ids()
    id_copies()
    jobs()
    targets()
    events()


def tenants() -> None:
    """Tenants and their rules."""
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("policy", sa.JSON(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )


def tokens() -> None:
    """Tokens, as digests."""
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("scopes", sa.String(length=80), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant"],
            ["tenants.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )


def webhooks() -> None:
    """Whom a tenant wants told."""
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant", sa.String(length=36), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant"],
            ["tenants.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )


def suppressions() -> None:
    """Who must not be trained on again."""
    op.create_table(
        "suppressions",
        sa.Column("tenant", sa.String(length=36), nullable=False),
        sa.Column("id", sa.LargeBinary(length=32), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant"],
            ["tenants.id"],
        ),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )


def models() -> None:
    """The registry of trainings."""
    op.create_table(
        "models",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("job", sa.String(length=36), nullable=True),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant"],
            ["tenants.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "name"),
    )


def versions() -> None:
    """Versions of models."""
    op.create_table(
        "versions",
        sa.Column("model", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("network", sa.String(length=64), nullable=False),
        sa.Column("job", sa.String(length=36), nullable=True),
        sa.Column("verdict", sa.String(length=40), nullable=True),
        sa.Column("published", sa.DateTime(timezone=True), nullable=True),
        sa.Column("destroyed", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["model"],
            ["models.id"],
        ),
        sa.PrimaryKeyConstraint("model", "number"),
    )


def model_ids() -> None:
    """Who is in which model."""
    op.create_table(
        "model_ids",
        sa.Column("model", sa.String(length=36), nullable=False),
        sa.Column("id", sa.LargeBinary(length=32), nullable=False),
        sa.Column("examples", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["model"],
            ["models.id"],
        ),
        sa.PrimaryKeyConstraint("model", "id"),
    )
    op.create_index("model_ids_by_id", "model_ids", ["id"], unique=False)


def requests() -> None:
    """Requests."""
    op.create_table(
        "requests",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant", sa.String(length=36), nullable=False),
        sa.Column("key", sa.LargeBinary(length=32), nullable=False),
        sa.Column("content", sa.LargeBinary(length=32), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("submitter", sa.String(length=36), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("received", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due", sa.DateTime(timezone=True), nullable=False),
        sa.Column("warned", sa.DateTime(timezone=True), nullable=True),
        sa.Column("closed", sa.DateTime(timezone=True), nullable=True),
        sa.Column("entry", sa.Integer(), nullable=True),
        sa.Column("outcome", sa.String(length=80), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant"],
            ["tenants.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "key"),
    )
    op.create_index("requests_by_due", "requests", ["tenant", "due", "id"], unique=False)
    op.create_index("requests_by_state", "requests", ["tenant", "state", "due"], unique=False)


def request_ids() -> None:
    """Whom they ask for, as keyed digests."""
    op.create_table(
        "request_ids",
        sa.Column("request", sa.String(length=36), nullable=False),
        sa.Column("id", sa.LargeBinary(length=32), nullable=False),
        sa.ForeignKeyConstraint(
            ["request"],
            ["requests.id"],
        ),
        sa.PrimaryKeyConstraint("request", "id"),
    )


def id_copies() -> None:
    """The encrypted copies of ids."""
    op.create_table(
        "id_copies",
        sa.Column("request", sa.String(length=36), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["request"],
            ["requests.id"],
        ),
        sa.PrimaryKeyConstraint("request"),
    )


def jobs() -> None:
    """The work that serves requests."""
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant", sa.String(length=36), nullable=False),
        sa.Column("model", sa.String(length=36), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("base", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(length=80), nullable=True),
        sa.Column("plan", sa.JSON(), nullable=True),
        sa.Column("verdict", sa.String(length=40), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("network", sa.String(length=64), nullable=True),
        sa.Column("receipt", sa.String(length=64), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("decided_by", sa.String(length=36), nullable=True),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["model"],
            ["models.id"],
        ),
        sa.ForeignKeyConstraint(
            ["tenant"],
            ["tenants.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("jobs_by_state", "jobs", ["state"], unique=False)


def targets() -> None:
    """Which request concerns which model."""
    op.create_table(
        "targets",
        sa.Column("request", sa.String(length=36), nullable=False),
        sa.Column("model", sa.String(length=36), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("job", sa.String(length=36), nullable=True),
        sa.ForeignKeyConstraint(
            ["model"],
            ["models.id"],
        ),
        sa.ForeignKeyConstraint(
            ["request"],
            ["requests.id"],
        ),
        sa.PrimaryKeyConstraint("request", "model"),
    )
    op.create_index("targets_by_job", "targets", ["job"], unique=False)
    op.create_index("targets_by_model", "targets", ["model", "state"], unique=False)


def events() -> None:
    """The trail."""
    op.create_table(
        "events",
        sa.Column("number", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(length=36), nullable=False),
        sa.Column("request", sa.String(length=36), nullable=True),
        sa.Column("job", sa.String(length=36), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=80), nullable=False),
        sa.Column("what", sa.String(length=40), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant"],
            ["tenants.id"],
        ),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index("events_by_job", "events", ["job"], unique=False)
    op.create_index("events_by_request", "events", ["request"], unique=False)


def downgrade() -> None:
    """Back to an empty database would lose every request: restore a backup instead."""
    raise NotImplementedError("There is nothing before the first tables. Restore a backup.")
