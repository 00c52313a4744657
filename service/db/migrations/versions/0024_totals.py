"""What each measured run came to, in numbers, and indexes for what is open, waits or ended lately."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
OUTCOMES = ("regression", "improvement", "steady", "inconclusive", "invalid", "failed", "new", "removed")
OPEN = "state IN ('open', 'acknowledged', 'bisecting', 'blamed')"
OTHER_METRICS = (".call", ".block", ".compile", ".memory")
INDEXES: tuple[tuple[str, str, list[str], str | None], ...] = (
    ("ix_runs_ended", "runs", ["state", "finished_at"], None),
    ("ix_incidents_opened", "incidents", ["opened_at"], None),
    ("ix_regressions_open", "regressions", ["incident_id", "id"], OPEN),
    ("ix_regressions_fixed", "regressions", ["fixed_at"], None),
    ("ix_outbox_messages_state", "outbox_messages", ["state", "next_at"], None),
    ("ix_deliveries_waiting", "deliveries", ["received_at"], "processed_at IS NULL"),
    ("ix_run_totals_at", "run_totals", ["at"], None),
    ("ix_run_totals_series", "run_totals", ["target_id", "device", "at"], None),
    ("ix_calibration_totals_at", "calibration_totals", ["at"], None),
)


def upgrade() -> None:
    of_run = ("run_id", KEY, sa.ForeignKey("runs.id"))
    of_target = ("target_id", KEY, sa.ForeignKey("targets.id"))
    totals = op.create_table(
        "run_totals",
        sa.Column(*of_run, primary_key=True, autoincrement=False),
        sa.Column(*of_target, nullable=False),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("stack_id", KEY, sa.ForeignKey("stacks.id")),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("took_s", sa.Float(53)),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in OUTCOMES),
        sa.Column("newly_broken", sa.Integer(), nullable=False),
        sa.Column("behind", sa.Integer(), nullable=False),
        sa.Column("sota", sa.String(80)),
        sa.Column("sota_cases", sa.Integer(), nullable=False),
        sa.Column("sota_log", sa.Float(53), nullable=False),
        sa.Column("sota_digest", sa.String(16)),
    )
    equal_code = op.create_table(
        "calibration_totals",
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id"), primary_key=True, autoincrement=False),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("comparisons", sa.Integer(), nullable=False),
        sa.Column("alarmed", sa.Integer(), nullable=False),
        sa.Column("squares", sa.Float(53), nullable=False),
    )
    connection = op.get_bind()
    for table, rows in ((totals, _run_totals(connection)), (equal_code, _calibration_totals(connection))):
        if found := list(rows):
            op.bulk_insert(table, found)
    op.drop_index("ix_runs_revision", "runs")
    op.create_index("ix_runs_revision", "runs", ["revision_id", "device", "pull", "purpose", "state"])
    for name, of, columns, condition in INDEXES:
        where = sa.text(condition) if condition else None
        op.create_index(name, of, columns, sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    for name, table, _, _ in reversed(INDEXES):
        op.drop_index(name, table)
    op.drop_index("ix_runs_revision", "runs")
    op.create_index("ix_runs_revision", "runs", ["revision_id", "device"])
    op.drop_table("calibration_totals")
    op.drop_table("run_totals")


def _run_totals(connection: sa.Connection) -> Iterator[dict[str, Any]]:
    statement = sa.text(
        "SELECT runs.id, runs.target_id, runs.device, runs.purpose, runs.stack_id,"
        " coalesce(runs.finished_at, runs.created_at),"
        " CASE WHEN runs.attempt = 1 THEN runs.finished_at - runs.started_at END,"
        ' v.baseline_kind, v.outcome, v.known_before, v.behind_sota, v.provider, v."case", v.baseline, v.ratio'
        " FROM runs JOIN verdicts v ON v.run_id = runs.id"
        " WHERE runs.state = 'done' AND v.baseline_kind IN ('parent', 'sota') AND v.quarantined_by IS NULL"
        " ORDER BY runs.id"
    )
    rows = connection.execute(statement, execution_options={"yield_per": 5000})
    names = ("run_id", "target_id", "device", "purpose", "stack_id", "at", "took_s")
    for run, verdicts in groupby(rows, key=lambda row: tuple(row[: len(names)])):
        yield dict(zip(names, run, strict=True)) | _totals([tuple(row[len(names) :]) for row in verdicts])


def _totals(verdicts: list[tuple[Any, ...]]) -> dict[str, Any]:
    parent = [(outcome, known) for kind, outcome, known, *_ in verdicts if kind == "parent"]
    sota = [(behind, *rest) for kind, _, _, behind, *rest in verdicts if kind == "sota"]
    counts = Counter(outcome for outcome, _ in parent)
    ratios = {
        (provider, case): ratio
        for _, provider, case, _, ratio in sota
        if ratio is not None and ratio > 0 and not case.endswith(OTHER_METRICS)
    }
    named = Counter(baseline for _, _, _, baseline, _ in sota if baseline).most_common(1)
    digest = hashlib.sha256("\n".join("\t".join(name) for name in sorted(ratios)).encode()).hexdigest()[:16]
    return {
        **{outcome: counts[outcome] for outcome in OUTCOMES},
        "newly_broken": sum(outcome in ("invalid", "failed") and not known for outcome, known in parent),
        "behind": sum(bool(behind) for behind, *_ in sota),
        "sota": named[0][0] if named else None,
        "sota_cases": len(ratios),
        "sota_log": math.fsum(map(math.log, ratios.values())),
        "sota_digest": digest if ratios else None,
    }


def _calibration_totals(connection: sa.Connection) -> Iterator[dict[str, Any]]:
    statement = sa.text(
        "SELECT c.run_id, runs.target_id, c.at, c.ratio, c.alarmed FROM calibrations c"
        " JOIN runs ON runs.id = c.run_id ORDER BY c.run_id"
    )
    rows = connection.execute(statement, execution_options={"yield_per": 5000})
    for (run_id, target_id), compared in groupby(rows, key=lambda row: tuple(row[:2])):
        found = [(at, ratio, alarmed) for _, _, at, ratio, alarmed in compared]
        yield {
            "run_id": run_id,
            "target_id": target_id,
            "at": max(at for at, _, _ in found),
            "comparisons": len(found),
            "alarmed": sum(bool(alarmed) for _, _, alarmed in found),
            "squares": math.fsum(math.log(ratio) ** 2 for _, ratio, _ in found if ratio > 0),
        }
