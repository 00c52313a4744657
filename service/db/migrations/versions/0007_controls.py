"""Which verdicts equal code leaves in doubt, runs that were measured twice for it, and what calibrations compare."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

COMPARISON = ["run_id", "provider", "case"]
UNIQUE = "calibrations_run_id_provider_case_key"  # as PostgreSQL names it; in SQLite it has no name
NAMED = {"uq": UNIQUE}


def upgrade() -> None:
    op.add_column("verdicts", sa.Column("doubt", sa.String(16)))
    op.add_column("runs", sa.Column("repeated", sa.Boolean(), nullable=False, server_default=sa.false()))
    # Until here all comparisons were of two processes of one build.
    with op.batch_alter_table("calibrations", naming_convention=NAMED) as table:
        table.add_column(sa.Column("kind", sa.String(32), nullable=False, server_default="copy"))
        table.drop_constraint(UNIQUE, type_="unique")
        table.create_unique_constraint("uq_calibrations_comparison", [*COMPARISON, "kind"])


def downgrade() -> None:
    op.execute("DELETE FROM calibrations WHERE kind <> 'copy'")
    with op.batch_alter_table("calibrations", naming_convention=NAMED) as table:
        table.drop_constraint("uq_calibrations_comparison", type_="unique")
        table.create_unique_constraint(UNIQUE, COMPARISON)
        table.drop_column("kind")
    with op.batch_alter_table("runs") as table:
        table.drop_column("repeated")
    with op.batch_alter_table("verdicts") as table:
        table.drop_column("doubt")
