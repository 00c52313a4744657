"""An index for the next message of each target, from which senders claim."""

import sqlalchemy as sa
from alembic import op

revision = "0009_claims"
down_revision = "0008_newest"
branch_labels = None
depends_on = None


def upgrade() -> None:
    name, columns, waiting = "ix_outbox_messages_waiting", ["target_id", "next_at", "id"], sa.text("state = 'waiting'")
    op.create_index(name, "outbox_messages", columns, sqlite_where=waiting, postgresql_where=waiting)
