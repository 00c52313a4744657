"""Whether the measurements of a run still have their samples and facts, which are deleted after a period."""

import sqlalchemy as sa
from alembic import op

revision = "0006_retention"
down_revision = "0005_second"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("has_samples", "has_facts"):
        op.add_column("runs", sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.true()))
        kept = sa.text(name)
        index = f"ix_runs_{name.removeprefix('has_')}"
        op.create_index(index, "runs", ["finished_at"], sqlite_where=kept, postgresql_where=kept)
