"""Measurements from elsewhere in any unit, and those that have no number.  Older rows have the unit of their case."""

import sqlalchemy as sa
from alembic import op

revision = "0003_imported"
down_revision = "0002_seconds"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("ingested_measurements") as table:
        table.alter_column("median", existing_type=sa.Float(53), nullable=True)
        table.add_column(sa.Column("unit", sa.String(20)))
        table.add_column(sa.Column("better", sa.String(32)))
        table.add_column(sa.Column("missing", sa.String(32)))
    op.create_index("ix_ingested_measurements_revision", "ingested_measurements", ["target_id", "revision"])
