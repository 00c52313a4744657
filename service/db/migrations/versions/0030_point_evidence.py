"""The evidence of a change point: how many revisions were compared, the course of a leak, why it was closed.

Scans that did not find a point count no more, only scans that contradict it: unexplained points begin at 0.
"""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("change_points") as table:
        table.add_column(sa.Column("revisions", sa.Integer(), nullable=True))
        table.add_column(sa.Column("course", sa.JSON(), nullable=True))
        table.add_column(sa.Column("reason_code", sa.String(32), nullable=True))
        table.add_column(sa.Column("reason_args", sa.JSON(), nullable=True))
        table.add_column(sa.Column("followed_by", sa.Integer(), nullable=True))
        table.alter_column("missed_scans", new_column_name="refuted_scans")
    op.execute(
        "UPDATE change_points"
        " SET reason_code = CASE WHEN bisection_id IS NULL THEN 'contradicted' ELSE 'not_repeated' END"
        " WHERE state = 'closed' AND refuted_scans > 0"
    )
    op.execute("UPDATE change_points SET refuted_scans = 0 WHERE state IN ('open', 'checking')")


def downgrade() -> None:
    with op.batch_alter_table("change_points") as table:
        table.alter_column("refuted_scans", new_column_name="missed_scans")
        table.drop_column("followed_by")
        table.drop_column("reason_args")
        table.drop_column("reason_code")
        table.drop_column("course")
        table.drop_column("revisions")
