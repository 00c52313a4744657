"""What changed a configuration: nothing, as all that were noted until here, or a commit or another stack."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

OF_RUN = ["run_id", "series_id"]
UNIQUE = "configuration_drifts_run_id_series_id_key"  # as PostgreSQL names it; in SQLite it has no name
MOVES = "configuration_drifts_run_id_series_id_moved_by_key"
NAMED = {"uq": UNIQUE}


def upgrade() -> None:
    with op.batch_alter_table("configuration_drifts", naming_convention=NAMED) as table:
        table.add_column(sa.Column("moved_by", sa.String(32), nullable=False, server_default="nothing"))
        table.drop_constraint(UNIQUE, type_="unique")
        table.create_unique_constraint(MOVES, [*OF_RUN, "moved_by"])


def downgrade() -> None:
    op.execute("DELETE FROM configuration_drifts WHERE moved_by <> 'nothing'")
    with op.batch_alter_table("configuration_drifts", naming_convention=NAMED) as table:
        table.drop_constraint(MOVES, type_="unique")
        table.create_unique_constraint(UNIQUE, OF_RUN)
        table.drop_column("moved_by")
