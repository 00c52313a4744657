"""Measurements made elsewhere, in tables of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "ingest_batches",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("tool", sa.String(120), nullable=False),
        sa.Column("machine", sa.String(120), nullable=False),
        sa.Column("measured_at", sa.Float(53)),
        sa.Column("stack", sa.JSON(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("sent_by", sa.String(120), nullable=False),
        sa.Column("received_at", sa.Float(53), nullable=False),
        sa.Column("measurements", sa.Integer(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
    )
    op.create_index("ix_ingest_batches_target", "ingest_batches", ["target_id", "id"])
    op.create_table(
        "ingested_measurements",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("batch_id", KEY, sa.ForeignKey("ingest_batches.id"), nullable=False),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("provider", sa.String(80), nullable=False),
        sa.Column("case", sa.String(120), nullable=False),
        sa.Column("revision", sa.String(64), nullable=False),
        sa.Column("median", sa.Float(53), nullable=False),
        sa.Column("samples", sa.Text(), nullable=False),
    )
    op.create_index("ix_ingested_measurements_batch_id", "ingested_measurements", ["batch_id"])
    series = ["target_id", "device", "provider", "case", "id"]
    op.create_index("ix_ingested_measurements_series", "ingested_measurements", series)


def downgrade() -> None:
    op.drop_table("ingested_measurements")
    op.drop_table("ingest_batches")
