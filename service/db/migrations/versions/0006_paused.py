"""A target can be paused."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("targets", sa.Column("paused_at", sa.Float(53)))


def downgrade() -> None:
    op.drop_column("targets", "paused_at")
