"""Deciding: what verdicts are made of, regressions and incidents with a life, history, bisections and calibrations."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # only INTEGER counts up by itself in SQLite
DOUBLE = sa.Float(53)
HISTORY = ["run_id", "role", "state", "provider", "case", "median"]
STEP = sa.text("bisection_id IS NOT NULL")
UNLOOKED = sa.text("history_at IS NULL AND state = 'done' AND purpose = 'watch' AND pull IS NULL")

MADE = (
    "policies",
    "quarantines",
    "incidents",
    "bisections",
    "calibrations",
    "change_points",
    "regression_events",
)


def upgrade() -> None:
    op.create_table(
        "policies",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("values", sa.JSON(), nullable=False),
        sa.Column("created_at", DOUBLE, nullable=False),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "quarantines",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("provider", sa.String(80), nullable=False),
        sa.Column("case", sa.String(120), nullable=False),
        sa.Column("since", DOUBLE, nullable=False),
        sa.Column("by", sa.String(80), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("released_at", DOUBLE),
        sa.Column("released_by", sa.String(80)),
        sa.Column("released_why", sa.Text()),
    )
    op.create_index("ix_quarantines", "quarantines", ["target_id", "device", "released_at"])
    unreleased = sa.text("released_at IS NULL")
    op.create_index(
        "ix_quarantines_standing",
        "quarantines",
        ["target_id", "device", "provider", "case"],
        unique=True,
        sqlite_where=unreleased,
        postgresql_where=unreleased,
    )
    op.create_table(
        "incidents",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("revision_id", KEY, sa.ForeignKey("revisions.id"), nullable=False),
        sa.Column("opened_at", DOUBLE, nullable=False),
        sa.Column("closed_at", DOUBLE),
        sa.Column("cause", sa.String(16)),
        sa.Column("why", sa.Text()),
    )
    op.create_index("ix_incidents_target", "incidents", ["target_id", "device", "closed_at"])
    op.create_table(
        "bisections",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("suite", sa.String(40), nullable=False),
        sa.Column("cases", sa.JSON(), nullable=False),
        sa.Column("good", sa.String(64), nullable=False),
        sa.Column("bad", sa.String(64), nullable=False),
        sa.Column("line", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("asked_by", sa.String(80), nullable=False),
        sa.Column("incident_id", KEY, sa.ForeignKey("incidents.id")),
        sa.Column("most_runs", sa.Integer(), nullable=False),
        sa.Column("culprit", sa.String(64)),
        sa.Column("reason", sa.Text()),
        sa.Column("created_at", DOUBLE, nullable=False),
        sa.Column("finished_at", DOUBLE),
    )
    op.create_index("ix_bisections_state", "bisections", ["state"])
    op.create_table(
        "calibrations",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("worker", sa.String(120)),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("provider", sa.String(80), nullable=False),
        sa.Column("case", sa.String(120), nullable=False),
        sa.Column("ratio", DOUBLE, nullable=False),
        sa.Column("p", DOUBLE, nullable=False),
        sa.Column("launches", sa.Integer(), nullable=False),
        sa.Column("alarmed", sa.Boolean(), nullable=False),
        sa.Column("at", DOUBLE, nullable=False),
        sa.UniqueConstraint("run_id", "provider", "case"),
    )
    op.create_index("ix_calibrations_case", "calibrations", ["target_id", "device", "provider", "case", "id"])
    op.create_table(
        "change_points",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("provider", sa.String(80), nullable=False),
        sa.Column("case", sa.String(120), nullable=False),
        sa.Column("revision_id", KEY, sa.ForeignKey("revisions.id"), nullable=False),
        sa.Column("before_id", KEY, sa.ForeignKey("revisions.id"), nullable=False),
        sa.Column("ratio", DOUBLE, nullable=False),
        sa.Column("low", DOUBLE, nullable=False),
        sa.Column("high", DOUBLE, nullable=False),
        sa.Column("p", DOUBLE, nullable=False),
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("missed", sa.Integer(), nullable=False),
        sa.Column("found_at", DOUBLE, nullable=False),
        sa.Column("bisection_id", KEY, sa.ForeignKey("bisections.id")),
        sa.Column("regression_id", KEY, sa.ForeignKey("regressions.id")),
        sa.UniqueConstraint("target_id", "device", "provider", "case", "revision_id"),
    )
    op.create_index("ix_change_points_state", "change_points", ["target_id", "state"])
    op.create_table(
        "regression_events",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("regression_id", KEY, sa.ForeignKey("regressions.id"), nullable=False),
        sa.Column("at", DOUBLE, nullable=False),
        sa.Column("who", sa.String(80), nullable=False),
        sa.Column("what", sa.String(32), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("words", sa.Text()),
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id")),
    )
    op.create_index("ix_regression_events", "regression_events", ["regression_id", "id"])
    for table, columns in _added().items():
        for column in columns:
            op.add_column(table, column, inline_references=True)
    op.create_index("ix_measurements_history", "measurements", HISTORY)
    op.create_index("ix_runs_calibrations", "runs", ["only_worker", "target_id", "created_at"])
    op.create_index("ix_runs_worker", "runs", ["worker", "finished_at"])
    op.create_index("ix_runs_bisection", "runs", ["bisection_id"], sqlite_where=STEP, postgresql_where=STEP)
    op.create_index("ix_runs_unlooked", "runs", ["state", "purpose"], sqlite_where=UNLOOKED, postgresql_where=UNLOOKED)


def downgrade() -> None:
    op.drop_index("ix_runs_unlooked", "runs")
    op.drop_index("ix_runs_bisection", "runs")
    op.drop_index("ix_runs_worker", "runs")
    op.drop_index("ix_measurements_history", "measurements")
    op.drop_index("ix_runs_calibrations", "runs")
    # A column with a key of its own can only be dropped with the table copied, which SQLite then does.
    for table, columns in _added().items():
        with op.batch_alter_table(table) as batch:
            for column in columns:
                batch.drop_column(column.name)
    for table in reversed(MADE):
        op.drop_table(table)


def _added() -> dict[str, tuple[sa.Column[object], ...]]:
    """The columns that are new in old tables.  What a row had before there was a choice is its default."""
    return {
        "regressions": (
            sa.Column("incident_id", KEY, sa.ForeignKey("incidents.id")),
            sa.Column("found_by", sa.String(32), nullable=False, server_default="pair"),
            sa.Column("low", DOUBLE),
            sa.Column("high", DOUBLE),
            sa.Column("good", sa.String(64)),
            sa.Column("culprit", sa.String(64)),
            sa.Column("cause", sa.String(16)),
            sa.Column("why", sa.Text()),
            sa.Column("assignee", sa.String(80)),
            sa.Column("due_at", DOUBLE),
            sa.Column("reason", sa.Text()),
            sa.Column("until", DOUBLE),
        ),
        "runs": (
            sa.Column("purpose", sa.String(32), nullable=False, server_default="watch"),
            sa.Column("only_cases", sa.JSON()),
            sa.Column("only_worker", sa.String(120)),
            sa.Column("bisection_id", KEY, sa.ForeignKey("bisections.id")),
            sa.Column("good", sa.String(64)),
            sa.Column("slow", sa.String(64)),
            sa.Column("summary", sa.JSON()),
            sa.Column("history_at", DOUBLE),
        ),
        "verdicts": (
            sa.Column("baseline", sa.String(80)),
            sa.Column("suspected", sa.Boolean(), nullable=False, server_default=sa.false()),
            sa.Column("p", DOUBLE),
            sa.Column("q", DOUBLE),
            sa.Column("smallest", DOUBLE),
            sa.Column("cause", sa.String(16)),
            sa.Column("why", sa.Text()),
            sa.Column("policy_id", KEY, sa.ForeignKey("policies.id")),
        ),
    }
