"""Indexes of foreign keys: without one, each deleted row has the whole table searched that refers to it.

References to what is never deleted have none: accounts, keys, deliveries, policies and stacks.
"""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

# The second columns are for SQLite, which takes these indexes for other queries as well.
INDEXES = (
    ("ix_pushes_target", "pushes", ["target_id"]),
    ("ix_runs_recipe", "runs", ["recipe_id", "revision_id"]),
    ("ix_facts_checks_target", "facts_checks", ["target_id"]),
    ("ix_facts_checks_recipe", "facts_checks", ["recipe_id"]),
    ("ix_incidents_revision", "incidents", ["revision_id"]),
    ("ix_change_points_revision", "change_points", ["revision_id"]),
    ("ix_change_points_before", "change_points", ["before_id"]),
    ("ix_bisections_target", "bisections", ["target_id"]),
    ("ix_calibration_totals_target", "calibration_totals", ["target_id"]),
    ("ix_gaps_last_run", "gaps", ["last_run_id"]),
    ("ix_gap_events_run", "gap_events", ["run_id"]),
    ("ix_gap_events_series", "gap_events", ["series_id", "at"]),
    ("ix_configuration_drifts_earlier_run", "configuration_drifts", ["earlier_run_id"]),
    ("ix_configuration_drifts_series", "configuration_drifts", ["series_id", "at"]),
    ("ix_outbox_messages_target", "outbox_messages", ["target_id"]),
    ("ix_roles_target", "roles", ["target_id"]),
)
OF_SOME = (  # whose column may be null
    ("ix_targets_recipe", "targets", "recipe_id"),
    ("ix_runs_push", "runs", "push_id"),
    ("ix_regression_events_run", "regression_events", "run_id"),
    ("ix_change_points_bisection", "change_points", "bisection_id"),
    ("ix_change_points_regression", "change_points", "regression_id"),
    ("ix_bisections_incident", "bisections", "incident_id"),
    ("ix_gaps_since_run", "gaps", "since_run_id"),
    ("ix_subscriptions_target", "subscriptions", "target_id"),
    ("ix_notices_target", "notices", "target_id"),
    ("ix_notices_message", "notices", "message_id"),
    ("ix_workers_run", "workers", "run_id"),
    ("ix_key_grants_target", "key_grants", "target_id"),
)


def upgrade() -> None:
    for name, table, columns in INDEXES:
        op.create_index(name, table, columns)
    for name, table, column in OF_SOME:
        there = sa.text(f"{column} IS NOT NULL")
        op.create_index(name, table, [column], sqlite_where=there, postgresql_where=there)
    # Attempts that failed because the channel was away counted as refusals.
    op.execute("UPDATE notice_messages SET attempts = 0 WHERE state = 'waiting'")


def downgrade() -> None:
    for name, table, _ in (*OF_SOME, *INDEXES):
        op.drop_index(name, table)
