"""Keys, accounts, sign-ins, the audit log, repeatable requests, private targets and paused workers."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.Float(53)


def upgrade() -> None:
    op.add_column("targets", sa.Column("private", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("workers", sa.Column("paused_at", TIME))
    op.add_column("workers", sa.Column("paused_by", sa.String(120)))
    op.create_table(
        "accounts",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("issuer", sa.String(200), nullable=False),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("login", sa.String(120), nullable=False),
        sa.Column("admin", sa.Boolean(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("signed_in_at", TIME, nullable=False),
        sa.Column("disabled_at", TIME),
        sa.UniqueConstraint("issuer", "subject"),
    )
    op.create_table(
        "roles",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("account_id", KEY, sa.ForeignKey("accounts.id"), nullable=False),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("permission", sa.String(16), nullable=False),
        sa.Column("checked_at", TIME, nullable=False),
        sa.UniqueConstraint("account_id", "target_id"),
    )
    op.create_table(
        "sign_ins",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("account_id", KEY, sa.ForeignKey("accounts.id"), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("ended_at", TIME),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False, unique=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("account_id", KEY, sa.ForeignKey("accounts.id")),
        sa.Column("rotated_from", KEY, sa.ForeignKey("api_keys.id")),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("created_by", sa.String(120), nullable=False),
        sa.Column("expires_at", TIME),
        sa.Column("used_at", TIME),
        sa.Column("revoked_at", TIME),
        sa.Column("revoked_by", sa.String(120)),
    )
    op.create_table(
        "key_grants",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("key_id", KEY, sa.ForeignKey("api_keys.id"), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id")),
        sa.UniqueConstraint("key_id", "scope", "target_id"),
    )
    op.create_table(
        "audit_entries",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("at", TIME, nullable=False),
        sa.Column("actor_kind", sa.String(16), nullable=False),
        sa.Column("actor", sa.String(120), nullable=False),
        sa.Column("actor_id", sa.BigInteger()),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("target", sa.String(80)),
        sa.Column("object", sa.String(120)),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("address", sa.String(60)),
    )
    op.create_index("ix_audit_entries_target", "audit_entries", ["target", "id"])
    op.create_table(
        "repeatable_requests",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("owner", sa.String(40), nullable=False),
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("begun_at", TIME, nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("body", sa.Text()),
        sa.UniqueConstraint("owner", "key"),
    )
    op.create_index("ix_repeatable_requests_begun", "repeatable_requests", ["begun_at"])


def downgrade() -> None:
    for table in ("repeatable_requests", "audit_entries", "key_grants", "api_keys", "sign_ins", "roles", "accounts"):
        op.drop_table(table)
    op.drop_column("workers", "paused_by")
    op.drop_column("workers", "paused_at")
    op.drop_column("targets", "private")
