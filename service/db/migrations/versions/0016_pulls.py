"""A pull request is a row: its head, whether it is closed, and a version by which writers notice each other."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NEWEST = "SELECT max(id) FROM pushes WHERE pull IS NOT NULL GROUP BY target_id, pull"


def upgrade() -> None:
    op.create_table(
        "pulls",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("head", sa.String(64)),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.Float(53)),
        sa.Column("closed_at", sa.Float(53)),
        sa.UniqueConstraint("target_id", "number"),
    )
    op.execute(
        "INSERT INTO pulls (target_id, number, head, version, closed_at)"  # noqa: S608
        f" SELECT target_id, pull, head, 1, closed_at FROM pushes WHERE id IN ({NEWEST})"
    )
    op.drop_column("pushes", "closed_at")
    op.add_column("targets", sa.Column("mirror_bytes", sa.BigInteger()))


def downgrade() -> None:
    op.drop_column("targets", "mirror_bytes")
    op.add_column("pushes", sa.Column("closed_at", sa.Float(53)))
    op.execute(
        "UPDATE pushes SET closed_at = (SELECT pulls.closed_at FROM pulls"  # noqa: S608
        f" WHERE pulls.target_id = pushes.target_id AND pulls.number = pushes.pull) WHERE id IN ({NEWEST})"
    )
    op.drop_table("pulls")
