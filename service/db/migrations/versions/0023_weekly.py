"""When cases fell behind SOTA and caught up, and indexes for what happened in a week.

The gaps that are open now get the event of their beginning; those that closed before are not known.
"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_CHANGED = sa.text("outcome IN ('regression', 'improvement') AND baseline_kind = 'parent'")
_INDEXES = (
    ("ix_runs_finished", "runs", ["finished_at"]),
    ("ix_regression_events_at", "regression_events", ["at"]),
    ("ix_calibrations_alarms", "calibrations", ["run_id", "alarmed"]),
    ("ix_gap_events_at", "gap_events", ["at"]),
)


def upgrade() -> None:
    op.create_table(
        "gap_events",
        sa.Column("id", _KEY, primary_key=True),
        sa.Column("run_id", _KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("behind_sota", sa.Boolean, nullable=False),
        sa.Column("ratio", sa.Float(53), nullable=False),
        sa.Column("ratio_before", sa.Float(53)),
        sa.Column("own", sa.Float(53), nullable=False),
        sa.Column("sota", sa.Float(53), nullable=False),
        sa.Column("series_id", _KEY, sa.ForeignKey("series.id"), nullable=False),
    )
    for name, table, columns in _INDEXES:
        op.create_index(name, table, columns)
    op.create_index("ix_verdicts_changed", "verdicts", ["run_id"], sqlite_where=_CHANGED, postgresql_where=_CHANGED)
    op.execute(
        "INSERT INTO gap_events (run_id, at, behind_sota, ratio, own, sota, series_id)"
        " SELECT gaps.since_run_id, COALESCE(runs.finished_at, runs.created_at), gaps.behind_sota,"
        " COALESCE(gaps.ratio_then, gaps.ratio_now), gaps.own, gaps.sota, gaps.series_id"
        " FROM gaps JOIN runs ON runs.id = gaps.since_run_id WHERE gaps.behind_sota"
    )


def downgrade() -> None:
    op.drop_index("ix_verdicts_changed", "verdicts")
    for name, table, _ in reversed(_INDEXES):
        op.drop_index(name, table)
    op.drop_table("gap_events")
