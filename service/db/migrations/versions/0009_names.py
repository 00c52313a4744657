"""Columns, tables and stored keys take the names of the glossary; no value changes its meaning."""

import re
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

COLUMNS = (
    ("deliveries", "understood_at", "processed_at"),
    ("runs", "told", "notified_state"),
    ("runs", "good", "last_good"),
    ("runs", "slow", "pinned"),
    ("runs", "history_at", "scanned_at"),
    ("measurements", "launches", "trials"),
    ("verdicts", "against", "baseline_kind"),
    ("verdicts", "behind", "behind_sota"),
    ("verdicts", "smallest", "smallest_change"),
    ("verdicts", "launches", "trials"),
    ("verdicts", "cause", "cause_kind"),
    ("verdicts", "why", "cause_text"),
    ("incidents", "cause", "cause_kind"),
    ("incidents", "why", "cause_text"),
    ("regressions", "cause", "cause_kind"),
    ("regressions", "why", "cause_text"),
    ("change_points", "missed", "missed_scans"),
    ("bisections", "most_runs", "max_runs"),
    ("calibrations", "launches", "trials"),
    ("gaps", "behind", "behind_sota"),
)
INDEXES = (("runs", "ix_runs_untold", "ix_runs_unnotified"), ("runs", "ix_runs_unlooked", "ix_runs_unscanned"))
TABLES = (("effects", "outbox_messages"),)
CONSTRAINTS = (  # as PostgreSQL names them by itself; in SQLite they have no names
    ("outbox_messages", "effects_key_key", "outbox_messages_key_key"),
    ("verdicts", "verdicts_run_id_provider_case_against_key", "verdicts_run_id_provider_case_baseline_kind_key"),
)
VALUES = (
    ("verdicts", "baseline_kind", "good", "last_good"),
    ("verdicts", "baseline_kind", "slow", "pinned"),
    ("measurements", "role", "good", "last_good"),
    ("measurements", "role", "slow", "pinned"),
    ("regressions", "found_by", "slow", "pinned"),
    ("runs", "suite", "lanes", "metrics"),
    ("bisections", "suite", "lanes", "metrics"),
)
SUITES = {"lanes": "metrics"}
CONTENDERS = (("good:", "last_good:"), ("slow:", "pinned:"))
POLICY_KEYS = {
    "suspicion": "alpha",
    "false_alarms": "fdr",
    "missed": "beta",
    "looks": "screening",
    "confirms": "confirmation",
    "behind": "behind_sota",
    "behind_false": "behind_sota_fdr",
    "lanes": "metrics",
    "smallest_ns": "smallest_change_ns",
    "most_runs": "max_runs",
    "most_a_day": "max_runs_per_day",
    "least": "min_comparisons",
}
# Stored documents: where they are, and their keys.
DOCUMENTS = (
    ("runs", "summary", {"lane": "metric", "launches": "trials"}),
    ("runs", "telemetry", {"launches": "trials"}),
    ("measurements", "facts", {"launch": "trial"}),
)
RECIPE_KEYS = {**POLICY_KEYS, "slow": "pinned"}


def upgrade() -> None:
    for table, old, new in COLUMNS:
        op.execute(f'ALTER TABLE {table} RENAME COLUMN "{old}" TO "{new}"')
    _indexes(INDEXES, "notified_state", "scanned_at")
    for old, new in TABLES:
        op.rename_table(old, new)
    _constraints(CONSTRAINTS)
    for table, column, old, new in VALUES:
        op.execute(f"UPDATE {table} SET {column} = '{new}' WHERE {column} = '{old}'")  # noqa: S608
    for old, new in CONTENDERS:
        _contenders(old, new)
    _documents("policies", "values", POLICY_KEYS)
    for table, column, keys in DOCUMENTS:
        _documents(table, column, keys)
    _recipes(RECIPE_KEYS, SUITES)


def downgrade() -> None:
    _recipes(_back(RECIPE_KEYS), _back(SUITES))
    for table, column, keys in DOCUMENTS:
        _documents(table, column, _back(keys))
    _documents("policies", "values", _back(POLICY_KEYS))
    for old, new in CONTENDERS:
        _contenders(new, old)
    for table, column, old, new in VALUES:
        op.execute(f"UPDATE {table} SET {column} = '{old}' WHERE {column} = '{new}'")  # noqa: S608
    _constraints([(table, new, old) for table, old, new in CONSTRAINTS])
    for old, new in TABLES:
        op.rename_table(new, old)
    for table, old, new in reversed(COLUMNS):
        op.execute(f'ALTER TABLE {table} RENAME COLUMN "{new}" TO "{old}"')
    _indexes([(table, new, old) for table, old, new in INDEXES], "told", "history_at")


def _indexes(names: Any, notified: str, scanned: str) -> None:
    conditions = (
        (["id"], f"{notified} <> state"),
        (["state", "purpose"], f"{scanned} IS NULL AND state = 'done' AND purpose = 'watch' AND pull IS NULL"),
    )
    for (table, old, new), (columns, condition) in zip(names, conditions, strict=True):
        op.drop_index(old, table)
        where = sa.text(condition)
        op.create_index(new, table, columns, sqlite_where=where, postgresql_where=where)


def _constraints(names: Any) -> None:
    if op.get_bind().dialect.name == "postgresql":
        for table, old, new in names:
            op.execute(f"ALTER TABLE {table} RENAME CONSTRAINT {old} TO {new}")


def _contenders(old: str, new: str) -> None:
    op.execute(
        f"UPDATE measurements SET contender = '{new}' || substr(contender, {len(old) + 1})"  # noqa: S608
        f" WHERE substr(contender, 1, {len(old)}) = '{old}'"
    )


def _back(keys: dict[str, str]) -> dict[str, str]:
    return {new: old for old, new in keys.items()}


def _documents(table: str, column: str, keys: dict[str, str]) -> None:
    """Rename keys of a stored document.  The digest of a policy stays: it names the row, and rows point at it."""
    rows = sa.table(table, sa.column("id", sa.BigInteger), sa.column(column, sa.JSON))
    bind = op.get_bind()
    for key, document in bind.execute(sa.select(rows.c.id, rows.c[column]).where(rows.c[column].is_not(None))).all():
        renamed = _renamed(document, keys)
        if renamed != document:
            bind.execute(rows.update().where(rows.c.id == key).values({column: renamed}))


def _renamed(value: Any, keys: dict[str, str]) -> Any:
    """Keys at every depth; names of cases and of metrics have none of these names."""
    if isinstance(value, list):
        return [_renamed(inner, keys) for inner in value]
    if not isinstance(value, dict):
        return value
    return {keys.get(key, key): _renamed(inner, keys) for key, inner in value.items()}


def _recipes(keys: dict[str, str], suites: dict[str, str]) -> None:
    """A recipe stays as written except for these keys, at the start of a line or in an inline table, and suites."""
    recipes = sa.table("recipes", sa.column("id", sa.BigInteger), sa.column("text", sa.Text))
    bind = op.get_bind()
    for key, text in bind.execute(sa.select(recipes.c.id, recipes.c.text)).all():
        written = text
        for old, new in keys.items():
            written = re.sub(rf"(?m)(^[ \t]*|[{{,][ \t]*){old}([ \t]*=)", rf"\g<1>{new}\2", written)
            written = re.sub(rf"(?m)^([ \t]*\[[^\]\n\"]*\.){old}([\].])", rf"\g<1>{new}\2", written)
        for old, new in suites.items():
            written = re.sub(rf"([\"']){old}\1", rf"\g<1>{new}\1", written)
        if written != text:
            bind.execute(recipes.update().where(recipes.c.id == key).values(text=written))
