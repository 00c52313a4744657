"""Whether the times of a run may block.  Those of older runs did."""

import sqlalchemy as sa
from alembic import op

revision = "0004_provisional"
down_revision = "0003_imported"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The default is for a program of the version before, which may go on during an upgrade.
    op.add_column("runs", sa.Column("provisional", sa.Boolean(), nullable=False, server_default=sa.false()))
