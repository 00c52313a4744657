"""Which head of a pull request somebody accepted although it is slower, and the commit that it was merged as."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("pulls", sa.Column("accepted_head", sa.String(64)))
    op.add_column("pulls", sa.Column("accepted_by", sa.String(80)))
    op.add_column("pulls", sa.Column("accepted_why", sa.Text()))
    op.add_column("pulls", sa.Column("merged_as", sa.String(64)))


def downgrade() -> None:
    for column in ("merged_as", "accepted_why", "accepted_by", "accepted_head"):
        op.drop_column("pulls", column)
