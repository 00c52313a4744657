"""Configurations that changed without a commit.  Nothing is known of those of earlier sessions."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

_KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "configuration_drifts",
        sa.Column("id", _KEY, primary_key=True),
        sa.Column("run_id", _KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("earlier_run_id", _KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("before", sa.Text, nullable=False),
        sa.Column("now", sa.Text, nullable=False),
        sa.Column("series_id", _KEY, sa.ForeignKey("series.id"), nullable=False),
        sa.UniqueConstraint("run_id", "series_id"),
    )
    op.create_index("ix_configuration_drifts_at", "configuration_drifts", ["at"])


def downgrade() -> None:
    op.drop_table("configuration_drifts")
