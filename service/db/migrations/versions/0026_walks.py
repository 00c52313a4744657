"""Indexes that lists walk backwards from the newest row, and the ceiling of a run's session in its totals."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

INDEXES: tuple[tuple[str, str, list[str], str | None], ...] = (
    ("ix_runs_target", "runs", ["target_id", "device", "purpose", "state", "id"], None),
    ("ix_runs_pull", "runs", ["target_id", "pull", "id"], "pull IS NOT NULL"),
    ("ix_runs_pulls", "runs", ["target_id", "id"], "pull IS NOT NULL"),
    ("ix_revisions_aside", "revisions", ["target_id", "id"], "ordinal IS NULL"),
    ("ix_revisions_committed", "revisions", ["target_id", "committed_at", "id"], None),
    ("ix_revisions_sha", "revisions", ["sha"], None),
    ("ix_regressions_run", "regressions", ["run_id"], None),
    ("ix_regressions_incident", "regressions", ["incident_id"], None),
    ("ix_regressions_state", "regressions", ["state", "id"], None),
    ("ix_regressions_fixed_by", "regressions", ["fixed_by"], None),
    ("ix_outbox_messages_run", "outbox_messages", ["run_id"], None),
)
SERIES = ["case", "provider", "role", "run_id"]
NUMBERS = ["state", "median", "gb_s"]  # so that a series is read from its index alone


def upgrade() -> None:
    for name, table, columns, condition in INDEXES:
        where = sa.text(condition) if condition else None
        op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)
    op.drop_index("ix_measurements_series", "measurements")
    op.create_index("ix_measurements_series", "measurements", SERIES + NUMBERS)
    op.add_column("run_totals", sa.Column("copy_gb_s", sa.Float(53)))
    connection = op.get_bind()
    totals = sa.table("run_totals", sa.column("run_id"), sa.column("copy_gb_s"))
    found = list(_ceilings(connection))
    if found:
        named = totals.c.run_id == sa.bindparam("run")
        connection.execute(sa.update(totals).where(named).values(copy_gb_s=sa.bindparam("ceiling")), found)


def downgrade() -> None:
    op.drop_column("run_totals", "copy_gb_s")
    op.drop_index("ix_measurements_series", "measurements")
    op.create_index("ix_measurements_series", "measurements", SERIES)
    for name, table, _, _ in reversed(INDEXES):
        op.drop_index(name, table)


def _ceilings(connection: sa.Connection) -> Any:
    statement = sa.text(
        "SELECT runs.id, runs.telemetry FROM runs JOIN run_totals ON run_totals.run_id = runs.id"
        " WHERE runs.telemetry IS NOT NULL"
    )
    for run_id, stored in connection.execute(statement, execution_options={"yield_per": 100}):
        telemetry = json.loads(stored) if isinstance(stored, str) else stored
        ceilings = telemetry.get("ceilings") if isinstance(telemetry, dict) else None
        value = ceilings.get("copy_gb_s") if isinstance(ceilings, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            yield {"run": run_id, "ceiling": float(value)}
