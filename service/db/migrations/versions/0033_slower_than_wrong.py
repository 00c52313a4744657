"""How many cases of a run are slower than a parent whose results were wrong: the lists showed such a run as steady."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The limit of an undecided case is in JSON, which the two databases read differently: 2 % for all of them.
    op.add_column("run_totals", sa.Column("slower_than_wrong", sa.Integer(), nullable=False, server_default="0"))
    op.execute(
        "UPDATE run_totals SET slower_than_wrong = (SELECT count(*) FROM verdicts AS times JOIN verdicts AS own"
        ' ON own.run_id = times.run_id AND own.provider = times.provider AND own."case" = times."case"'
        " AND own.baseline_kind = 'parent' AND own.quarantined_by IS NULL"
        " JOIN measurements AS parent ON parent.run_id = times.run_id AND parent.provider = times.provider"
        " AND parent.\"case\" = times.\"case\" AND parent.role = 'parent' AND parent.state = 'invalid'"
        " WHERE times.run_id = run_totals.run_id AND times.baseline_kind = 'wrong_parent'"
        " AND (times.outcome = 'regression' OR (times.outcome = 'inconclusive' AND times.ratio > 1.02)))"
    )


def downgrade() -> None:
    op.drop_column("run_totals", "slower_than_wrong")
