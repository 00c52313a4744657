"""The turns of queued runs and of messages, and the times at which workers calibrate targets."""

import sqlalchemy as sa
from alembic import op

revision = "0007_turns"
down_revision = "0006_retention"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("turn", sa.Float(53), nullable=False, server_default="0"))
    op.execute(
        "UPDATE runs SET turn = share.place * share.step FROM ("
        "SELECT id, row_number() OVER (PARTITION BY device, target_id, priority, only_worker ORDER BY id) AS place,"
        " CASE priority WHEN 10 THEN 1 WHEN 20 THEN 10 WHEN 30 THEN 100 WHEN 40 THEN 1000 ELSE 10000 END AS step"
        " FROM runs WHERE state = 'queued') AS share WHERE runs.id = share.id"
    )
    op.drop_index("ix_runs_queue", "runs")
    op.create_index("ix_runs_queue", "runs", ["device", "state", "only_worker", "turn", "priority", "id"])
    share = ["target_id", "device", "priority", "only_worker", "turn"]
    unfinished, second = sa.text("state IN ('queued', 'leased')"), sa.text("awaits_second")
    op.create_index("ix_runs_share", "runs", share, sqlite_where=unfinished, postgresql_where=unfinished)
    op.create_index("ix_runs_second", "runs", ["finished_at"], sqlite_where=second, postgresql_where=second)
    op.create_index("ix_targets_poll", "targets", ["poll_at"])
    op.add_column("outbox_messages", sa.Column("claimed_at", sa.Float(53), nullable=False, server_default="0"))
    op.drop_index("ix_outbox_messages_target", "outbox_messages")
    op.create_index("ix_outbox_messages_target", "outbox_messages", ["target_id", "claimed_at"])
    op.create_table(
        "calibration_plans",
        sa.Column("target_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("worker", sa.String(120), nullable=False),
        sa.Column("due_at", sa.Float(53), nullable=False),
        sa.Column("planned_at", sa.Float(53), nullable=False),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"]),
        sa.PrimaryKeyConstraint("target_id", "worker"),
    )
    op.create_index("ix_calibration_plans_due", "calibration_plans", ["worker", "due_at"])
    op.create_index("ix_calibration_plans_planned", "calibration_plans", ["worker", "planned_at"])
    op.execute(
        "INSERT INTO calibration_plans (target_id, worker, due_at, planned_at)"
        " SELECT DISTINCT series.target_id, workers.name, 0, 0 FROM series"
        " JOIN workers ON workers.device = series.device"
    )
