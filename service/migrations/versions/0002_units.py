"""What was measured is no longer always a time: the unit is the case's, and not in the names of columns."""

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


def downgrade() -> None:
    for table, before, now in RENAMED:
        op.alter_column(table, now, new_column_name=before)
