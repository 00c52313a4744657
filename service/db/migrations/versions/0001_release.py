"""The schema of the first release.

Made from the tables of `service.db.models` and frozen: what changes after it is a migration of its own.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001_release"
down_revision = None
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # only INTEGER counts automatically in SQLite
DOUBLE = sa.Float(53)


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("issuer", sa.String(200), nullable=False),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("login", sa.String(120), nullable=False),
        sa.Column("admin", sa.Boolean(), nullable=False),
        sa.Column("created_at", DOUBLE, nullable=False),
        sa.Column("signed_in_at", DOUBLE, nullable=False),
        sa.Column("disabled_at", DOUBLE),
        sa.UniqueConstraint("issuer", "subject"),
    )
    op.create_table(
        "audit_entries",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("at", DOUBLE, nullable=False),
        sa.Column("actor_kind", sa.String(16), nullable=False),
        sa.Column("actor", sa.String(120), nullable=False),
        sa.Column("actor_id", sa.BigInteger()),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("target", sa.String(80)),
        sa.Column("object", sa.String(120)),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("address", sa.String(60)),
    )
    _index("ix_audit_entries_target", "audit_entries", ["target", "id"])
    op.create_table(
        "channel_health",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("channel", sa.String(80), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("failing_since", DOUBLE),
        sa.Column("paused_until", DOUBLE, nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("sent_at", DOUBLE),
        sa.UniqueConstraint("channel"),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("guid", sa.String(80), nullable=False),
        sa.Column("event", sa.String(40), nullable=False),
        sa.Column("forge_kind", sa.String(32), server_default="github", nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("received_at", DOUBLE, nullable=False),
        sa.Column("processed_at", DOUBLE),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.Text()),
        sa.UniqueConstraint("guid"),
    )
    _index("ix_deliveries_waiting", "deliveries", ["received_at"], where="processed_at IS NULL")
    op.create_table(
        "policies",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("values", sa.JSON(), nullable=False),
        sa.Column("created_at", DOUBLE, nullable=False),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "repeatable_requests",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("owner", sa.String(40), nullable=False),
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("begun_at", DOUBLE, nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("body", sa.Text()),
        sa.UniqueConstraint("owner", "key"),
    )
    _index("ix_repeatable_requests_begun", "repeatable_requests", ["begun_at"])
    op.create_table(
        "stacks",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "study_sessions",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("study", sa.String(40), nullable=False),
        sa.Column("began", sa.String(40), nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("quick", sa.Boolean(), nullable=False),
        sa.Column("machine", sa.JSON(), nullable=False),
        sa.Column("code", sa.JSON(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("added_at", DOUBLE, nullable=False),
        sa.Column("updated_at", DOUBLE, nullable=False),
        sa.UniqueConstraint("study", "began", "device"),
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
        sa.Column("forge_kind", sa.String(32)),
        sa.Column("trusted", sa.Boolean(), nullable=False),
        sa.Column("allow_unsandboxed", sa.Boolean(), nullable=False),
        sa.Column("recipe_from_branch", sa.Boolean(), nullable=False),
        sa.Column("recipe_id", KEY),
        sa.Column("created_at", DOUBLE, nullable=False),
        sa.Column("poll_at", DOUBLE, nullable=False),
        sa.Column("poll_failures", sa.Integer(), nullable=False),
        sa.Column("poll_error", sa.Text()),
        sa.Column("paused_at", DOUBLE),
        sa.Column("forge_paused_until", DOUBLE, nullable=False),
        sa.Column("forge_error", sa.Text()),
        sa.Column("mirror_bytes", sa.BigInteger()),
        sa.Column("private", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["recipe_id"], ["recipes.id"], use_alter=True),
        sa.UniqueConstraint("name"),
    )
    _index("ix_targets_recipe", "targets", ["recipe_id"], where="recipe_id IS NOT NULL")
    op.create_table(
        "write_probes",
        sa.Column("id", sa.Integer(), autoincrement=False, primary_key=True),
        sa.Column("written_at", DOUBLE, nullable=False),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("account_id", KEY, sa.ForeignKey("accounts.id")),
        sa.Column("rotated_from", KEY, sa.ForeignKey("api_keys.id")),
        sa.Column("created_at", DOUBLE, nullable=False),
        sa.Column("created_by", sa.String(120), nullable=False),
        sa.Column("expires_at", DOUBLE),
        sa.Column("used_at", DOUBLE),
        sa.Column("revoked_at", DOUBLE),
        sa.Column("revoked_by", sa.String(120)),
        sa.UniqueConstraint("prefix"),
    )
    op.create_table(
        "code_texts",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.UniqueConstraint("target_id", "sha256"),
    )
    op.create_table(
        "ingest_batches",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("tool", sa.String(120), nullable=False),
        sa.Column("machine", sa.String(120), nullable=False),
        sa.Column("measured_at", DOUBLE),
        sa.Column("stack", sa.JSON(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("sent_by", sa.String(120), nullable=False),
        sa.Column("received_at", DOUBLE, nullable=False),
        sa.Column("measurements", sa.Integer(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
    )
    _index("ix_ingest_batches_target", "ingest_batches", ["target_id", "id"])
    op.create_table(
        "pulls",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("head", sa.String(64)),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("updated_at", DOUBLE),
        sa.Column("closed_at", DOUBLE),
        sa.Column("merged_as", sa.String(64)),
        sa.Column("accepted_head", sa.String(64)),
        sa.Column("accepted_by", sa.String(80)),
        sa.Column("accepted_why", sa.Text()),
        sa.UniqueConstraint("target_id", "number"),
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
    )
    _index("ix_pushes_target", "pushes", ["target_id"])
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
    _index("ix_revisions_aside", "revisions", ["target_id", "id"], where="ordinal IS NULL")
    _index("ix_revisions_committed", "revisions", ["target_id", "committed_at", "id"])
    _index("ix_revisions_mainline", "revisions", ["target_id", "ordinal"])
    _index("ix_revisions_sha", "revisions", ["sha"])
    op.create_table(
        "roles",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("account_id", KEY, sa.ForeignKey("accounts.id"), nullable=False),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("permission", sa.String(16), nullable=False),
        sa.Column("checked_at", DOUBLE, nullable=False),
        sa.UniqueConstraint("account_id", "target_id"),
    )
    _index("ix_roles_target", "roles", ["target_id"])
    op.create_table(
        "series",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("provider", sa.String(80), nullable=False),
        sa.Column("case", sa.String(120), nullable=False),
        sa.Column("metric", sa.String(32), nullable=False),
        sa.UniqueConstraint("target_id", "device", "provider", "case", "metric"),
    )
    op.create_table(
        "sign_ins",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("account_id", KEY, sa.ForeignKey("accounts.id"), nullable=False),
        sa.Column("created_at", DOUBLE, nullable=False),
        sa.Column("expires_at", DOUBLE, nullable=False),
        sa.Column("ended_at", DOUBLE),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "study_records",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("session_id", KEY, sa.ForeignKey("study_sessions.id"), nullable=False),
        sa.Column("step", sa.String(80), nullable=False),
        sa.Column("trial", sa.Integer(), nullable=False),
        sa.Column("case", sa.String(200), nullable=False),
        sa.Column("arm", sa.String(80), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("unit", sa.String(16), nullable=False),
        sa.Column("samples", sa.LargeBinary(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.UniqueConstraint("session_id", "step", "trial", "case", "arm"),
    )
    op.create_table(
        "subscriptions",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("channel", sa.String(80), nullable=False),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id")),
        sa.Column("device", sa.String(80)),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("kinds", sa.JSON()),
        sa.Column("created_at", DOUBLE, nullable=False),
        sa.Column("created_by", sa.String(120), nullable=False),
        sa.Column("owner_kind", sa.String(16), nullable=False),
        sa.Column("owner_id", sa.BigInteger()),
    )
    _index("ix_subscriptions_target", "subscriptions", ["target_id"], where="target_id IS NOT NULL")
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
    _index("ix_facts_checks_queue", "facts_checks", ["state", "id"])
    _index("ix_facts_checks_recipe", "facts_checks", ["recipe_id"])
    _index("ix_facts_checks_target", "facts_checks", ["target_id"])
    op.create_table(
        "incidents",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("revision_id", KEY, sa.ForeignKey("revisions.id"), nullable=False),
        sa.Column("opened_at", DOUBLE, nullable=False),
        sa.Column("closed_at", DOUBLE),
        sa.Column("cause_kind", sa.String(16)),
        sa.Column("cause_text", sa.Text()),
    )
    _index("ix_incidents_opened", "incidents", ["opened_at"])
    _index("ix_incidents_revision", "incidents", ["revision_id"])
    _index("ix_incidents_target", "incidents", ["target_id", "device", "closed_at"])
    op.create_table(
        "ingested_measurements",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("batch_id", KEY, sa.ForeignKey("ingest_batches.id"), nullable=False),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("provider", sa.String(80), nullable=False),
        sa.Column("case", sa.String(120), nullable=False),
        sa.Column("revision", sa.String(64), nullable=False),
        sa.Column("median", DOUBLE, nullable=False),
        sa.Column("samples", sa.Text(), nullable=False),
    )
    _index("ix_ingested_measurements_batch_id", "ingested_measurements", ["batch_id"])
    _index(
        "ix_ingested_measurements_series", "ingested_measurements", ["target_id", "device", "provider", "case", "id"]
    )
    op.create_table(
        "key_grants",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("key_id", KEY, sa.ForeignKey("api_keys.id"), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id")),
        sa.UniqueConstraint("key_id", "scope", "target_id"),
    )
    _index("ix_key_grants_target", "key_grants", ["target_id"], where="target_id IS NOT NULL")
    op.create_table(
        "notice_messages",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("subscription_id", KEY, sa.ForeignKey("subscriptions.id"), nullable=False),
        sa.Column("channel", sa.String(80), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", DOUBLE, nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("created_at", DOUBLE, nullable=False),
        sa.Column("sent_at", DOUBLE),
    )
    _index("ix_notice_messages_state", "notice_messages", ["state", "next_at"])
    _index("ix_notice_messages_subscription", "notice_messages", ["subscription_id", "created_at"])
    op.create_table(
        "quarantines",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("since", DOUBLE, nullable=False),
        sa.Column("by", sa.String(80), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("released_at", DOUBLE),
        sa.Column("released_by", sa.String(80)),
        sa.Column("released_why", sa.Text()),
        sa.Column("series_id", KEY, sa.ForeignKey("series.id"), nullable=False),
    )
    _index("ix_quarantines_open", "quarantines", ["series_id"], where="released_at IS NULL", unique=True)
    _index("ix_quarantines_series", "quarantines", ["series_id"])
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
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("only_cases", sa.JSON()),
        sa.Column("only_worker", sa.String(120)),
        sa.Column("bisection_id", KEY),
        sa.Column("trusted", sa.Boolean(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(120)),
        sa.Column("lease_until", DOUBLE),
        sa.Column("losses", sa.Integer(), nullable=False),
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
        sa.Column("last_good", sa.String(64)),
        sa.Column("pinned", sa.String(64)),
        sa.Column("summary", sa.JSON()),
        sa.Column("notified_state", sa.String(32), nullable=False),
        sa.Column("repeated", sa.Boolean(), nullable=False),
        sa.Column("scanned_at", DOUBLE),
        sa.ForeignKeyConstraint(["bisection_id"], ["bisections.id"], use_alter=True),
        sa.UniqueConstraint("dedupe"),
    )
    _index("ix_runs_bisection", "runs", ["bisection_id"], where="bisection_id IS NOT NULL")
    _index("ix_runs_calibrations", "runs", ["only_worker", "target_id", "created_at"])
    _index("ix_runs_ended", "runs", ["state", "finished_at"])
    _index("ix_runs_finished", "runs", ["finished_at"])
    _index("ix_runs_lease", "runs", ["state", "lease_until"])
    _index("ix_runs_pull", "runs", ["target_id", "pull", "id"], where="pull IS NOT NULL")
    _index("ix_runs_pulls", "runs", ["target_id", "id"], where="pull IS NOT NULL")
    _index("ix_runs_push", "runs", ["push_id"], where="push_id IS NOT NULL")
    _index("ix_runs_queue", "runs", ["device", "state", "priority", "id"])
    _index("ix_runs_recipe", "runs", ["recipe_id", "revision_id"])
    _index("ix_runs_revision", "runs", ["revision_id", "device", "pull", "purpose", "state"])
    _index("ix_runs_target", "runs", ["target_id", "device", "purpose", "state", "id"])
    _index("ix_runs_unnotified", "runs", ["id"], where="notified_state <> state")
    _index(
        "ix_runs_unscanned",
        "runs",
        ["state", "purpose"],
        where="scanned_at IS NULL AND state = 'done' AND purpose = 'watch' AND pull IS NULL",
    )
    _index("ix_runs_worker", "runs", ["worker", "finished_at"])
    op.create_table(
        "attempts",
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(120), nullable=False),
        sa.Column("started_at", DOUBLE, nullable=False),
        sa.Column("finished_at", DOUBLE),
        sa.Column("outcome", sa.Text()),
        sa.Column("lost", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "attempt"),
    )
    op.create_table(
        "bisections",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("suite", sa.String(40), nullable=False),
        sa.Column("cases", sa.JSON(), nullable=False),
        sa.Column("good", sa.String(64), nullable=False),
        sa.Column("bad", sa.String(64), nullable=False),
        sa.Column("line", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("asked_by", sa.String(80), nullable=False),
        sa.Column("incident_id", KEY, sa.ForeignKey("incidents.id")),
        sa.Column("max_runs", sa.Integer(), nullable=False),
        sa.Column("culprit", sa.String(64)),
        sa.Column("reason", sa.Text()),
        sa.Column("waits_for_budget", sa.Boolean(), nullable=False),
        sa.Column("created_at", DOUBLE, nullable=False),
        sa.Column("finished_at", DOUBLE),
    )
    _index("ix_bisections_incident", "bisections", ["incident_id"], where="incident_id IS NOT NULL")
    _index("ix_bisections_state", "bisections", ["state"])
    _index("ix_bisections_target", "bisections", ["target_id"])
    op.create_table(
        "build_logs",
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id"), autoincrement=False, primary_key=True),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.Column("characters", sa.Integer(), nullable=False),
        sa.Column("made_at", DOUBLE, nullable=False),
    )
    _index("ix_build_logs_made_at", "build_logs", ["made_at"])
    op.create_table(
        "calibration_totals",
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id"), autoincrement=False, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("at", DOUBLE, nullable=False),
        sa.Column("comparisons", sa.Integer(), nullable=False),
        sa.Column("alarmed", sa.Integer(), nullable=False),
        sa.Column("squares", DOUBLE, nullable=False),
    )
    _index("ix_calibration_totals_at", "calibration_totals", ["at"])
    _index("ix_calibration_totals_target", "calibration_totals", ["target_id"])
    op.create_table(
        "calibrations",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("worker", sa.String(120)),
        sa.Column("ratio", DOUBLE, nullable=False),
        sa.Column("p", DOUBLE, nullable=False),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("alarmed", sa.Boolean(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("at", DOUBLE, nullable=False),
        sa.Column("series_id", KEY, sa.ForeignKey("series.id"), nullable=False),
        sa.UniqueConstraint("run_id", "series_id", "kind", name="uq_calibrations_comparison"),
    )
    _index("ix_calibrations_alarms", "calibrations", ["run_id", "alarmed"])
    _index("ix_calibrations_series", "calibrations", ["series_id", "id"])
    op.create_table(
        "configuration_drifts",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("earlier_run_id", KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("moved_by", sa.String(32), nullable=False),
        sa.Column("at", DOUBLE, nullable=False),
        sa.Column("before", sa.Text(), nullable=False),
        sa.Column("now", sa.Text(), nullable=False),
        sa.Column("series_id", KEY, sa.ForeignKey("series.id"), nullable=False),
        sa.UniqueConstraint("run_id", "series_id", "moved_by"),
    )
    _index("ix_configuration_drifts_at", "configuration_drifts", ["at"])
    _index("ix_configuration_drifts_earlier_run", "configuration_drifts", ["earlier_run_id"])
    _index("ix_configuration_drifts_series", "configuration_drifts", ["series_id", "at"])
    op.create_table(
        "gap_events",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("at", DOUBLE, nullable=False),
        sa.Column("behind_sota", sa.Boolean(), nullable=False),
        sa.Column("ratio", DOUBLE, nullable=False),
        sa.Column("ratio_before", DOUBLE),
        sa.Column("own", DOUBLE, nullable=False),
        sa.Column("sota", DOUBLE, nullable=False),
        sa.Column("series_id", KEY, sa.ForeignKey("series.id"), nullable=False),
    )
    _index("ix_gap_events_at", "gap_events", ["at"])
    _index("ix_gap_events_run", "gap_events", ["run_id"])
    _index("ix_gap_events_series", "gap_events", ["series_id", "at"])
    op.create_table(
        "gaps",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("behind_sota", sa.Boolean(), nullable=False),
        sa.Column("since_run_id", KEY, sa.ForeignKey("runs.id")),
        sa.Column("last_run_id", KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("ratio_then", DOUBLE),
        sa.Column("ratio_now", DOUBLE, nullable=False),
        sa.Column("own", DOUBLE, nullable=False),
        sa.Column("sota", DOUBLE, nullable=False),
        sa.Column("stack_id", KEY, sa.ForeignKey("stacks.id")),
        sa.Column("series_id", KEY, sa.ForeignKey("series.id"), nullable=False),
        sa.UniqueConstraint("series_id"),
    )
    _index("ix_gaps_last_run", "gaps", ["last_run_id"])
    _index("ix_gaps_since_run", "gaps", ["since_run_id"], where="since_run_id IS NOT NULL")
    op.create_table(
        "kernel_texts",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id")),
        sa.Column("check_id", KEY, sa.ForeignKey("facts_checks.id")),
        sa.Column("text_id", KEY, sa.ForeignKey("code_texts.id"), nullable=False),
        sa.Column("contender", sa.String(120), nullable=False),
        sa.Column("case", sa.String(120), nullable=False),
        sa.Column("arch", sa.String(16), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kernel", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("made_at", DOUBLE, nullable=False),
    )
    _index("ix_kernel_texts_check", "kernel_texts", ["check_id", "case"])
    _index("ix_kernel_texts_made_at", "kernel_texts", ["made_at"])
    _index("ix_kernel_texts_run", "kernel_texts", ["run_id", "case"])
    _index("ix_kernel_texts_text", "kernel_texts", ["text_id"])
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
        sa.Column("median", DOUBLE),
        sa.Column("gb_s", DOUBLE),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("samples", sa.LargeBinary()),
        sa.UniqueConstraint("run_id", "contender", "case"),
    )
    _index("ix_measurements_history", "measurements", ["run_id", "role", "state", "provider", "case", "median"])
    _index("ix_measurements_series", "measurements", ["case", "provider", "role", "run_id", "state", "median", "gb_s"])
    op.create_table(
        "notices",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("subscription_id", KEY, sa.ForeignKey("subscriptions.id"), nullable=False),
        sa.Column("key", sa.String(240), nullable=False),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id")),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("series", sa.String(200), nullable=False),
        sa.Column("event", sa.JSON(), nullable=False),
        sa.Column("at", DOUBLE, nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("message_id", KEY, sa.ForeignKey("notice_messages.id")),
        sa.UniqueConstraint("subscription_id", "key"),
    )
    _index("ix_notices_message", "notices", ["message_id"], where="message_id IS NOT NULL")
    _index("ix_notices_state", "notices", ["state", "subscription_id"])
    _index("ix_notices_target", "notices", ["target_id"], where="target_id IS NOT NULL")
    op.create_table(
        "outbox_messages",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id")),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("remote_id", sa.String(80)),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", DOUBLE, nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("created_at", DOUBLE, nullable=False),
        sa.UniqueConstraint("key"),
    )
    _index("ix_outbox_messages_run", "outbox_messages", ["run_id"])
    _index("ix_outbox_messages_state", "outbox_messages", ["state", "next_at"])
    _index("ix_outbox_messages_target", "outbox_messages", ["target_id"])
    op.create_table(
        "regressions",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("incident_id", KEY, sa.ForeignKey("incidents.id")),
        sa.Column("found_by", sa.String(32), nullable=False),
        sa.Column("ratio", DOUBLE, nullable=False),
        sa.Column("low", DOUBLE),
        sa.Column("high", DOUBLE),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("opened_at", DOUBLE, nullable=False),
        sa.Column("fixed_at", DOUBLE),
        sa.Column("fixed_by", KEY, sa.ForeignKey("runs.id")),
        sa.Column("good", sa.String(64)),
        sa.Column("culprit", sa.String(64)),
        sa.Column("cause_kind", sa.String(16)),
        sa.Column("cause_text", sa.Text()),
        sa.Column("assignee", sa.String(80)),
        sa.Column("due_at", DOUBLE),
        sa.Column("reason", sa.Text()),
        sa.Column("until", DOUBLE),
        sa.Column("series_id", KEY, sa.ForeignKey("series.id"), nullable=False),
    )
    _index("ix_regressions_fixed", "regressions", ["fixed_at"])
    _index("ix_regressions_fixed_by", "regressions", ["fixed_by"])
    _index("ix_regressions_incident", "regressions", ["incident_id"])
    _index(
        "ix_regressions_open",
        "regressions",
        ["incident_id", "id"],
        where="state IN ('open', 'acknowledged', 'bisecting', 'blamed')",
    )
    _index("ix_regressions_run", "regressions", ["run_id"])
    _index("ix_regressions_series", "regressions", ["series_id", "state"])
    _index("ix_regressions_state", "regressions", ["state", "id"])
    op.create_table(
        "run_totals",
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id"), autoincrement=False, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("stack_id", KEY, sa.ForeignKey("stacks.id")),
        sa.Column("at", DOUBLE, nullable=False),
        sa.Column("took_s", DOUBLE),
        sa.Column("regression", sa.Integer(), nullable=False),
        sa.Column("improvement", sa.Integer(), nullable=False),
        sa.Column("steady", sa.Integer(), nullable=False),
        sa.Column("inconclusive", sa.Integer(), nullable=False),
        sa.Column("invalid", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("new", sa.Integer(), nullable=False),
        sa.Column("removed", sa.Integer(), nullable=False),
        sa.Column("newly_broken", sa.Integer(), nullable=False),
        sa.Column("slower_than_wrong", sa.Integer(), server_default="0", nullable=False),
        sa.Column("behind", sa.Integer(), nullable=False),
        sa.Column("sota", sa.String(80)),
        sa.Column("sota_cases", sa.Integer(), nullable=False),
        sa.Column("sota_log", DOUBLE, nullable=False),
        sa.Column("sota_digest", sa.String(16)),
        sa.Column("copy_gb_s", DOUBLE),
    )
    _index("ix_run_totals_at", "run_totals", ["at"])
    _index("ix_run_totals_series", "run_totals", ["target_id", "device", "at"])
    op.create_table(
        "verdicts",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("provider", sa.String(80), nullable=False),
        sa.Column("case", sa.String(120), nullable=False),
        sa.Column("baseline_kind", sa.String(16), nullable=False),
        sa.Column("baseline", sa.String(80)),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("ratio", DOUBLE),
        sa.Column("low", DOUBLE),
        sa.Column("high", DOUBLE),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("confirmed", sa.Boolean(), nullable=False),
        sa.Column("behind_sota", sa.Boolean(), nullable=False),
        sa.Column("control", DOUBLE),
        sa.Column("suspected", sa.Boolean(), nullable=False),
        sa.Column("p", DOUBLE),
        sa.Column("q", DOUBLE),
        sa.Column("smallest_change", DOUBLE),
        sa.Column("doubt", sa.String(16)),
        sa.Column("cause_kind", sa.String(16)),
        sa.Column("cause_code", sa.String(32)),
        sa.Column("cause_args", sa.JSON()),
        sa.Column("cause_text", sa.Text()),
        sa.Column("cause_certain", sa.Boolean()),
        sa.Column("cause_by", sa.String(16)),
        sa.Column("policy_id", KEY, sa.ForeignKey("policies.id")),
        sa.Column("reason_code", sa.String(32)),
        sa.Column("reason_args", sa.JSON()),
        sa.Column("reason", sa.Text()),
        sa.Column("known_before", sa.Boolean(), nullable=False),
        sa.Column("quarantined_by", sa.String(80)),
        sa.UniqueConstraint("run_id", "provider", "case", "baseline_kind"),
    )
    _index(
        "ix_verdicts_changed",
        "verdicts",
        ["run_id"],
        where="outcome IN ('regression', 'improvement') AND baseline_kind = 'parent'",
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
        sa.Column("paused_at", DOUBLE),
        sa.Column("paused_by", sa.String(120)),
        sa.Column("lost_at", DOUBLE),
        sa.UniqueConstraint("name"),
    )
    _index("ix_workers_run", "workers", ["run_id"], where="run_id IS NOT NULL")
    op.create_table(
        "change_points",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("revision_id", KEY, sa.ForeignKey("revisions.id"), nullable=False),
        sa.Column("before_id", KEY, sa.ForeignKey("revisions.id"), nullable=False),
        sa.Column("ratio", DOUBLE, nullable=False),
        sa.Column("low", DOUBLE, nullable=False),
        sa.Column("high", DOUBLE, nullable=False),
        sa.Column("p", DOUBLE, nullable=False),
        sa.Column("revisions", sa.Integer()),
        sa.Column("course", sa.JSON()),
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("reason_code", sa.String(32)),
        sa.Column("reason_args", sa.JSON()),
        sa.Column("refuted_scans", sa.Integer(), nullable=False),
        sa.Column("found_at", DOUBLE, nullable=False),
        sa.Column("followed_by", sa.Integer()),
        sa.Column("bisection_id", KEY, sa.ForeignKey("bisections.id")),
        sa.Column("regression_id", KEY, sa.ForeignKey("regressions.id")),
        sa.Column("series_id", KEY, sa.ForeignKey("series.id"), nullable=False),
        sa.UniqueConstraint("series_id", "revision_id"),
    )
    _index("ix_change_points_before", "change_points", ["before_id"])
    _index("ix_change_points_bisection", "change_points", ["bisection_id"], where="bisection_id IS NOT NULL")
    _index("ix_change_points_regression", "change_points", ["regression_id"], where="regression_id IS NOT NULL")
    _index("ix_change_points_revision", "change_points", ["revision_id"])
    _index("ix_change_points_state", "change_points", ["state"])
    op.create_table(
        "regression_events",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("regression_id", KEY, sa.ForeignKey("regressions.id"), nullable=False),
        sa.Column("at", DOUBLE, nullable=False),
        sa.Column("who", sa.String(80), nullable=False),
        sa.Column("what", sa.String(32), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("words", sa.Text()),
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id")),
    )
    _index("ix_regression_events", "regression_events", ["regression_id", "id"])
    _index("ix_regression_events_at", "regression_events", ["at"])
    _index("ix_regression_events_run", "regression_events", ["run_id"], where="run_id IS NOT NULL")
    if op.get_bind().dialect.supports_alter:  # the tables refer to each other in a circle
        op.create_foreign_key(None, "targets", "recipes", ["recipe_id"], ["id"])
        op.create_foreign_key(None, "runs", "bisections", ["bisection_id"], ["id"])


def _index(name: str, table: str, columns: Sequence[str], *, where: str = "", unique: bool = False) -> None:
    only: dict[str, Any] = {f"{kind}_where": sa.text(where) for kind in ("sqlite", "postgresql") if where}
    op.create_index(name, table, columns, unique=unique, **only)
