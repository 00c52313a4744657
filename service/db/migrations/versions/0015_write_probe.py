"""A row that /readyz updates, to see whether the database accepts writes."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "write_probes",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("written_at", sa.Float(53), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("write_probes")
