"""Until when a forge accepts no requests, and which attempts of a run did not count."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("targets", sa.Column("forge_paused_until", sa.Float(53), nullable=False, server_default="0"))
    op.add_column("targets", sa.Column("forge_error", sa.Text()))
    op.add_column("attempts", sa.Column("lost", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("runs", sa.Column("losses", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("runs", "losses")
    op.drop_column("attempts", "lost")
    op.drop_column("targets", "forge_error")
    op.drop_column("targets", "forge_paused_until")
