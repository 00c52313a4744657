"""The whole log of each run's build."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "build_logs",
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id"), primary_key=True, autoincrement=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.Column("characters", sa.Integer(), nullable=False),
        sa.Column("made_at", sa.Float(53), nullable=False),
    )
    op.create_index("ix_build_logs_made_at", "build_logs", ["made_at"])


def downgrade() -> None:
    op.drop_index("ix_build_logs_made_at", table_name="build_logs")
    op.drop_table("build_logs")
