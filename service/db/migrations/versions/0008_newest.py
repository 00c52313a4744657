"""Indexes for the newest runs of a state and of a target, and for the newest regressions and bisections."""

from alembic import op

revision = "0008_newest"
down_revision = "0007_turns"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_runs_lease", "runs")
    op.create_index("ix_runs_state", "runs", ["state", "id"])
    op.create_index("ix_runs_of_target", "runs", ["target_id", "id"])
    op.create_index("ix_regressions_opened", "regressions", ["opened_at"])
    op.drop_index("ix_bisections_target", "bisections")
    op.create_index("ix_bisections_target", "bisections", ["target_id", "created_at"])
