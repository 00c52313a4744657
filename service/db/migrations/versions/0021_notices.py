"""Subscriptions, what they are notified of, and which workers are lost."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "subscriptions",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("channel", sa.String(80), nullable=False),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id")),
        sa.Column("device", sa.String(80)),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("kinds", sa.JSON()),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("created_by", sa.String(120), nullable=False),
        sa.Column("owner_kind", sa.String(16), nullable=False),
        sa.Column("owner_id", sa.BigInteger()),
    )
    op.create_table(
        "notice_messages",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("subscription_id", KEY, sa.ForeignKey("subscriptions.id"), nullable=False),
        sa.Column("channel", sa.String(80), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.Float(53), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("sent_at", sa.Float(53)),
    )
    op.create_index("ix_notice_messages_state", "notice_messages", ["state", "next_at"])
    op.create_index("ix_notice_messages_subscription", "notice_messages", ["subscription_id", "created_at"])
    op.create_table(
        "notices",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("subscription_id", KEY, sa.ForeignKey("subscriptions.id"), nullable=False),
        sa.Column("key", sa.String(240), nullable=False),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id")),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("series", sa.String(200), nullable=False),
        sa.Column("event", sa.JSON(), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("message_id", KEY, sa.ForeignKey("notice_messages.id")),
        sa.UniqueConstraint("subscription_id", "key"),
    )
    op.create_index("ix_notices_state", "notices", ["state", "subscription_id"])
    op.create_table(
        "channel_health",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("channel", sa.String(80), nullable=False, unique=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("failing_since", sa.Float(53)),
        sa.Column("paused_until", sa.Float(53), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("sent_at", sa.Float(53)),
    )
    op.add_column("workers", sa.Column("lost_at", sa.Float(53)))


def downgrade() -> None:
    op.drop_column("workers", "lost_at")
    for table in ("channel_health", "notices", "notice_messages", "subscriptions"):
        op.drop_table(table)
