"""Sessions of studies, and what was measured in them."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "study_sessions",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("study", sa.String(40), nullable=False),
        sa.Column("began", sa.String(40), nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("quick", sa.Boolean(), nullable=False),
        sa.Column("machine", sa.JSON(), nullable=False),
        sa.Column("code", sa.JSON(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("added_at", sa.Float(53), nullable=False),
        sa.Column("updated_at", sa.Float(53), nullable=False),
        sa.UniqueConstraint("study", "began", "device"),
    )
    op.create_table(
        "study_records",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("session_id", KEY, sa.ForeignKey("study_sessions.id"), nullable=False),
        sa.Column("step", sa.String(80), nullable=False),
        sa.Column("trial", sa.Integer(), nullable=False),
        sa.Column("case", sa.String(200), nullable=False),
        sa.Column("arm", sa.String(80), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("unit", sa.String(16), nullable=False),
        sa.Column("samples", sa.LargeBinary(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.UniqueConstraint("session_id", "step", "trial", "case", "arm"),
    )


def downgrade() -> None:
    op.drop_table("study_records")
    op.drop_table("study_sessions")
