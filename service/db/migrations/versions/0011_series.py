"""A series is a row: target, device, provider, case and metric are stored once, and other tables point at them."""

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TABLES = ("regressions", "change_points", "quarantines", "gaps", "calibrations")
UNIQUE = {  # what was unique with the four columns, and is with the series: its name, what goes before and after them
    "change_points": ("change_points_{}_revision_id_key", [], ["revision_id"]),
    "gaps": ("gaps_{}_key", [], []),
    "calibrations": ("uq_calibrations_comparison", ["run_id"], ["kind"]),
}
NAMED = ["target_id", "device", "provider", "case"]
UNRELEASED = sa.text("released_at IS NULL")
METRICS = ("call", "block", "compile", "memory")  # of the kernel metric a printed case has no suffix
IS_METRIC = {metric: f'substr("case", length("case") - {len(metric)}) = \'.{metric}\'' for metric in METRICS}
METRIC = "CASE" + "".join(f" WHEN {ends} THEN '{metric}'" for metric, ends in IS_METRIC.items()) + " ELSE 'kernel' END"
CASE = (
    "CASE"
    + "".join(
        f' WHEN {ends} THEN substr("case", 1, length("case") - {len(metric) + 1})' for metric, ends in IS_METRIC.items()
    )
    + ' ELSE "case" END'
)
PRINTED = "series.\"case\" || CASE series.metric WHEN 'kernel' THEN '' ELSE '.' || series.metric END"


def upgrade() -> None:
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
    # UNION keeps one of each.
    rows = " UNION ".join(f"SELECT target_id, device, provider, {CASE}, {METRIC} FROM {table}" for table in TABLES)  # noqa: S608
    op.execute(f'INSERT INTO series (target_id, device, provider, "case", metric) {rows}')
    for table in TABLES:
        op.add_column(table, sa.Column("series_id", KEY, sa.ForeignKey("series.id")), inline_references=True)
        op.execute(
            f"UPDATE {table} SET series_id = (SELECT series.id FROM series WHERE"  # noqa: S608
            f" series.target_id = {table}.target_id AND series.device = {table}.device"
            f' AND series.provider = {table}.provider AND series."case" = {_of(table, CASE)}'
            f" AND series.metric = {_of(table, METRIC)})"
        )
    for name, table in _OLD_INDEXES:
        op.drop_index(name, table)
    with _without_references():
        for table in TABLES:
            with op.batch_alter_table(table) as batch:
                batch.alter_column("series_id", existing_type=KEY, nullable=False)
                for column in NAMED:  # takes the unique constraints over it along
                    batch.drop_column(column)
                if table in UNIQUE:
                    name, before, after = UNIQUE[table]
                    batch.create_unique_constraint(name.format("series_id"), [*before, "series_id", *after])
    op.create_index("ix_regressions_series", "regressions", ["series_id", "state"])
    op.create_index("ix_change_points_state", "change_points", ["state"])
    op.create_index("ix_calibrations_series", "calibrations", ["series_id", "id"])
    op.create_index("ix_quarantines_series", "quarantines", ["series_id"])
    _create_index_of_open_quarantines("ix_quarantines_open", ["series_id"])


_OLD_INDEXES = (
    ("ix_regressions_case", "regressions"),
    ("ix_change_points_state", "change_points"),
    ("ix_calibrations_case", "calibrations"),
    ("ix_quarantines", "quarantines"),
    ("ix_quarantines_standing", "quarantines"),
)


def downgrade() -> None:
    for name, table in (
        ("ix_regressions_series", "regressions"),
        ("ix_change_points_state", "change_points"),
        ("ix_calibrations_series", "calibrations"),
        ("ix_quarantines_series", "quarantines"),
        ("ix_quarantines_open", "quarantines"),
    ):
        op.drop_index(name, table)
    for table in TABLES:
        for column in _named_columns():
            op.add_column(table, column, inline_references=True)
        for name, value in (*((name, f"series.{name}") for name in NAMED[:3]), ("case", PRINTED)):
            op.execute(
                f'UPDATE {table} SET "{name}" ='  # noqa: S608
                f" (SELECT {value} FROM series WHERE series.id = {table}.series_id)"
            )
    with _without_references():
        for table in TABLES:
            with op.batch_alter_table(table) as batch:
                for column in _named_columns():
                    batch.alter_column(column.name, existing_type=column.type, nullable=False)
                batch.drop_column("series_id")
                if table in UNIQUE:
                    name, before, after = UNIQUE[table]
                    columns = NAMED if table != "calibrations" else ["provider", "case"]
                    batch.create_unique_constraint(name.format("_".join(NAMED)), [*before, *columns, *after])
    op.create_index("ix_regressions_case", "regressions", [*NAMED, "state"])
    op.create_index("ix_change_points_state", "change_points", ["target_id", "state"])
    op.create_index("ix_calibrations_case", "calibrations", [*NAMED, "id"])
    op.create_index("ix_quarantines", "quarantines", ["target_id", "device", "released_at"])
    _create_index_of_open_quarantines("ix_quarantines_standing", NAMED)
    op.drop_table("series")


def _named_columns() -> tuple[sa.Column[object], ...]:
    return (
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id")),
        sa.Column("device", sa.String(40)),
        sa.Column("provider", sa.String(80)),
        sa.Column("case", sa.String(120)),
    )


def _of(table: str, expression: str) -> str:
    return expression.replace('"case"', f'{table}."case"')


def _create_index_of_open_quarantines(name: str, columns: list[str]) -> None:
    op.create_index(name, "quarantines", columns, unique=True, sqlite_where=UNRELEASED, postgresql_where=UNRELEASED)


@contextmanager
def _without_references() -> Iterator[None]:
    """Set aside what refers to regressions: SQLite replaces a table to alter it, but none that rows refer to."""
    if op.get_bind().dialect.name != "sqlite":
        yield
        return
    op.execute("CREATE TEMPORARY TABLE kept_regression_events AS SELECT * FROM regression_events")
    op.execute("CREATE TEMPORARY TABLE kept_change_points AS SELECT id, regression_id FROM change_points")
    op.execute("DELETE FROM regression_events")
    op.execute("UPDATE change_points SET regression_id = NULL")
    yield
    op.execute("INSERT INTO regression_events SELECT * FROM kept_regression_events")
    op.execute(
        "UPDATE change_points SET regression_id ="
        " (SELECT kept.regression_id FROM kept_change_points AS kept WHERE kept.id = change_points.id)"
    )
    op.execute("DROP TABLE kept_regression_events")
    op.execute("DROP TABLE kept_change_points")
