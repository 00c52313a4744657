"""Second sessions of runs that offsets of earlier sessions left open."""

import sqlalchemy as sa
from alembic import op

revision = "0005_second"
down_revision = "0004_provisional"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("awaits_second", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("runs", sa.Column("second_of", sa.BigInteger().with_variant(sa.Integer, "sqlite")))
