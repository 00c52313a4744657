"""Targets and deliveries know their forge; until now it was GitHub."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("targets", sa.Column("forge_kind", sa.String(32)))
    op.execute("UPDATE targets SET forge_kind = 'github' WHERE forge IS NOT NULL")
    op.add_column("deliveries", sa.Column("forge_kind", sa.String(32), nullable=False, server_default="github"))


def downgrade() -> None:
    op.drop_column("deliveries", "forge_kind")
    op.drop_column("targets", "forge_kind")
