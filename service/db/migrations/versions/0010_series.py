"""An index that holds the verdicts of a series against the parent, run by run."""

import sqlalchemy as sa
from alembic import op

revision = "0010_series"
down_revision = "0009_claims"
branch_labels = None
depends_on = None


def upgrade() -> None:
    columns, where = (
        ["case", "provider", "run_id", "outcome", "ratio", "low", "high"],
        sa.text("baseline_kind = 'parent'"),
    )
    op.create_index("ix_verdicts_series", "verdicts", columns, sqlite_where=where, postgresql_where=where)
