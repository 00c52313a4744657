"""What was measured is no longer always a time, so no column is named for a unit; a verdict keeps its control."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

RENAMED = (
    ("measurements", "median_us", "median"),
    ("gaps", "own_us", "own"),
    ("gaps", "sota_us", "sota"),
)


def upgrade() -> None:
    for table, before, now in RENAMED:
        op.alter_column(table, before, new_column_name=now)
    op.add_column("verdicts", sa.Column("control", sa.Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("verdicts", "control")
    for table, before, now in RENAMED:
        op.alter_column(table, now, new_column_name=before)
