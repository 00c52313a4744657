"""Whether a cause is certain, and what of the code it rests on, in columns of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("verdicts") as table:
        table.add_column(sa.Column("cause_certain", sa.Boolean(), nullable=True))
        table.add_column(sa.Column("cause_by", sa.String(16), nullable=True))
    verdicts = sa.table(
        "verdicts", sa.column("cause", sa.String), sa.column("why", sa.String), sa.column("cause_certain", sa.Boolean)
    )
    # Until here a cause was uncertain when its sentence said so.
    hedged = [verdicts.c.why.like(f"%{word}%") for word in ("probably", "perhaps", "not certain")]
    certain = sa.and_(verdicts.c.cause != "unknown", sa.not_(sa.or_(*hedged)))
    known = verdicts.c.why.is_not(None)
    op.execute(verdicts.update().where(known, certain).values(cause_certain=sa.true()))
    op.execute(verdicts.update().where(known, sa.not_(certain)).values(cause_certain=sa.false()))


def downgrade() -> None:
    with op.batch_alter_table("verdicts") as table:
        table.drop_column("cause_by")
        table.drop_column("cause_certain")
