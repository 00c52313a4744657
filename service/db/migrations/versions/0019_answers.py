"""Answers to commands are messages of no run, and know when they were made."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    with op.batch_alter_table("outbox_messages") as table:
        table.alter_column("run_id", existing_type=KEY, nullable=True)
        table.add_column(sa.Column("created_at", sa.Float(53), nullable=False, server_default="0"))


def downgrade() -> None:
    op.execute("DELETE FROM outbox_messages WHERE run_id IS NULL")
    with op.batch_alter_table("outbox_messages") as table:
        table.drop_column("created_at")
        table.alter_column("run_id", existing_type=KEY, nullable=False)
