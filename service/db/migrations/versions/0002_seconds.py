"""Seconds by phase of measured runs.  Older runs have none here: what reads them looks at the last day."""

import sqlalchemy as sa
from alembic import op

revision = "0002_seconds"
down_revision = "0001_release"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run_totals", sa.Column("seconds", sa.JSON()))
