"""The facts lane: revisions that are compiled without a GPU, and what was found."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # only INTEGER counts up by itself in SQLite
DOUBLE = sa.Float(53)


def upgrade() -> None:
    op.create_table(
        "facts_checks",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("revision_id", KEY, sa.ForeignKey("revisions.id"), nullable=False),
        sa.Column("recipe_id", KEY, sa.ForeignKey("recipes.id"), nullable=False),
        sa.Column("base", sa.String(64), nullable=False),
        sa.Column("trusted", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lease_until", DOUBLE),
        sa.Column("not_before", DOUBLE, nullable=False),
        sa.Column("created_at", DOUBLE, nullable=False),
        sa.Column("finished_at", DOUBLE),
        sa.Column("reason", sa.Text()),
        sa.Column("findings", sa.JSON()),
        sa.UniqueConstraint("revision_id", "recipe_id", "base"),
    )
    op.create_index("ix_facts_checks_queue", "facts_checks", ["state", "id"])


def downgrade() -> None:
    op.drop_index("ix_facts_checks_queue", table_name="facts_checks")
    op.drop_table("facts_checks")
