"""The start: targets, revisions, runs, what was measured, what was decided and what is to be said."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # only INTEGER counts up by itself in SQLite
DOUBLE = sa.Float(53)


def upgrade() -> None:
    op.create_table(
        "deliveries",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("guid", sa.String(80), nullable=False),
        sa.Column("event", sa.String(40), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("received_at", DOUBLE, nullable=False),
        sa.Column("understood_at", DOUBLE),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.Text()),
        sa.UniqueConstraint("guid"),
    )
    op.create_table(
        "stacks",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "targets",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("package", sa.Text()),
        sa.Column("branch", sa.Text()),
        sa.Column("forge", sa.Text()),
        sa.Column("trusted", sa.Boolean(), nullable=False),
        sa.Column("allow_unsandboxed", sa.Boolean(), nullable=False),
        sa.Column("recipe_from_branch", sa.Boolean(), nullable=False),
        sa.Column("recipe_id", KEY),
        sa.Column("created_at", DOUBLE, nullable=False),
        sa.Column("poll_at", DOUBLE, nullable=False),
        sa.Column("poll_failures", sa.Integer(), nullable=False),
        sa.Column("poll_error", sa.Text()),
        sa.ForeignKeyConstraint(["recipe_id"], ["recipes.id"], use_alter=True),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "pushes",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("origin", sa.String(32), nullable=False),
        sa.Column("head", sa.String(64), nullable=False),
        sa.Column("pull", sa.Integer()),
        sa.Column("delivery_id", KEY, sa.ForeignKey("deliveries.id")),
        sa.Column("created_at", DOUBLE, nullable=False),
        sa.Column("closed_at", DOUBLE),
    )
    op.create_table(
        "recipes",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("adapters", sa.JSON(), nullable=False),
        sa.Column("created_at", DOUBLE, nullable=False),
        sa.UniqueConstraint("target_id", "digest"),
    )
    op.create_table(
        "revisions",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("sha", sa.String(64), nullable=False),
        sa.Column("parent", sa.String(64)),
        sa.Column("ordinal", sa.Integer()),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("committed_at", DOUBLE, nullable=False),
        sa.Column("paths", sa.JSON(), nullable=False),
        sa.UniqueConstraint("target_id", "sha"),
    )
    op.create_index("ix_revisions_mainline", "revisions", ["target_id", "ordinal"])
    op.create_table(
        "runs",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("dedupe", sa.String(200), nullable=False),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("revision_id", KEY, sa.ForeignKey("revisions.id"), nullable=False),
        sa.Column("baseline", sa.String(64)),
        sa.Column("recipe_id", KEY, sa.ForeignKey("recipes.id"), nullable=False),
        sa.Column("push_id", KEY, sa.ForeignKey("pushes.id")),
        sa.Column("pull", sa.Integer()),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("suite", sa.String(40), nullable=False),
        sa.Column("trusted", sa.Boolean(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(120)),
        sa.Column("lease_until", DOUBLE),
        sa.Column("not_before", DOUBLE, nullable=False),
        sa.Column("created_at", DOUBLE, nullable=False),
        sa.Column("started_at", DOUBLE),
        sa.Column("finished_at", DOUBLE),
        sa.Column("stage", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("log", sa.Text()),
        sa.Column("sandboxed", sa.Boolean()),
        sa.Column("stack_id", KEY, sa.ForeignKey("stacks.id")),
        sa.Column("telemetry", sa.JSON()),
        sa.Column("told", sa.String(32), nullable=False),
        sa.UniqueConstraint("dedupe"),
    )
    op.create_index("ix_runs_lease", "runs", ["state", "lease_until"])
    op.create_index("ix_runs_queue", "runs", ["device", "state", "priority", "id"])
    op.create_index("ix_runs_revision", "runs", ["revision_id", "device"])
    untold = sa.text("told <> state")
    op.create_index("ix_runs_untold", "runs", ["id"], sqlite_where=untold, postgresql_where=untold)
    op.create_table(
        "attempts",
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(120), nullable=False),
        sa.Column("started_at", DOUBLE, nullable=False),
        sa.Column("finished_at", DOUBLE),
        sa.Column("outcome", sa.Text()),
        sa.PrimaryKeyConstraint("run_id", "attempt"),
    )
    op.create_table(
        "effects",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("remote_id", sa.String(80)),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", DOUBLE, nullable=False),
        sa.Column("error", sa.Text()),
        sa.UniqueConstraint("key"),
    )
    op.create_table(
        "gaps",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("provider", sa.String(80), nullable=False),
        sa.Column("case", sa.String(120), nullable=False),
        sa.Column("behind", sa.Boolean(), nullable=False),
        sa.Column("since_run_id", KEY, sa.ForeignKey("runs.id")),
        sa.Column("last_run_id", KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("ratio_then", DOUBLE),
        sa.Column("ratio_now", DOUBLE, nullable=False),
        sa.Column("own_us", DOUBLE, nullable=False),
        sa.Column("sota_us", DOUBLE, nullable=False),
        sa.Column("stack_id", KEY, sa.ForeignKey("stacks.id")),
        sa.UniqueConstraint("target_id", "device", "provider", "case"),
    )
    op.create_table(
        "measurements",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("contender", sa.String(120), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("provider", sa.String(80), nullable=False),
        sa.Column("case", sa.String(120), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("median_us", DOUBLE),
        sa.Column("gb_s", DOUBLE),
        sa.Column("launches", sa.Integer(), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("samples", sa.LargeBinary()),
        sa.UniqueConstraint("run_id", "contender", "case"),
    )
    op.create_index("ix_measurements_series", "measurements", ["case", "provider", "role", "run_id"])
    op.create_table(
        "regressions",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("provider", sa.String(80), nullable=False),
        sa.Column("case", sa.String(120), nullable=False),
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("ratio", DOUBLE, nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("opened_at", DOUBLE, nullable=False),
        sa.Column("fixed_at", DOUBLE),
        sa.Column("fixed_by", KEY, sa.ForeignKey("runs.id")),
    )
    op.create_index("ix_regressions_case", "regressions", ["target_id", "device", "provider", "case", "state"])
    op.create_table(
        "verdicts",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("provider", sa.String(80), nullable=False),
        sa.Column("case", sa.String(120), nullable=False),
        sa.Column("against", sa.String(16), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("ratio", DOUBLE),
        sa.Column("low", DOUBLE),
        sa.Column("high", DOUBLE),
        sa.Column("launches", sa.Integer(), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("confirmed", sa.Boolean(), nullable=False),
        sa.Column("behind", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.UniqueConstraint("run_id", "provider", "case", "against"),
    )
    op.create_table(
        "workers",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("name", sa.String(120), nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("sandbox", sa.Text()),
        sa.Column("started_at", DOUBLE, nullable=False),
        sa.Column("seen_at", DOUBLE, nullable=False),
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id")),
        sa.UniqueConstraint("name"),
    )

    # Targets and recipes point at each other: SQLite took this with the table, PostgreSQL wants it afterwards.
    if op.get_bind().dialect.supports_alter:
        op.create_foreign_key(None, "targets", "recipes", ["recipe_id"], ["id"])


def downgrade() -> None:
    """There is nothing before the start: restore a copy of the database instead."""
    raise NotImplementedError(downgrade.__doc__)
