"""A database is brought to the schema of the models, by any number of processes, on SQLite and on PostgreSQL."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import URL, Engine, inspect, make_url, select, text
from sqlalchemy.engine.interfaces import ReflectedIndex
from sqlalchemy.orm import Session

from service.db import migrate
from service.db.engine import make_engine
from service.db.models import Base, Bisection, Gap, Measurement, VerdictRow
from service.domain.attribution.causes import Kind
from service.reports.rows import CauseWords
from service.reports.words import cause_of, of_verdict


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'new' / 'folder' / 'kernelwatch.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def filled(url: str, revision: str, rows: Sequence[str]) -> Engine:
    """A database of an older version in which these statements have inserted rows."""
    migrate.upgrade(url, revision)
    engine = make_engine(url)
    with engine.begin() as connection:
        for row in rows:
            connection.execute(text(row))
    return engine


def test_the_migrations_make_what_the_models_say(url: str) -> None:
    migrate.upgrade(url)

    engine = make_engine(url)
    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_every_constraint_and_index_is_as_if_the_models_had_made_it(url: str) -> None:
    """What the comparison above does not look at: keys, nullability, foreign keys, unique constraints."""
    migrate.upgrade(url)

    by_migration = described(url)
    _empty(url)
    engine = make_engine(url)
    Base.metadata.create_all(engine)
    engine.dispose()
    assert by_migration == described(url)


def test_it_knows_where_a_database_stands(url: str) -> None:
    assert migrate.current(url) is None

    migrate.upgrade(url)

    assert migrate.current(url) == migrate.newest()


def test_several_processes_may_start_at_once(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrate.upgrade, [url] * 4))

    migrate.upgrade(url)
    assert migrate.current(url) == migrate.newest()


# One measurement and one gap, with the columns that a database had when every measurement was a time.
IN_MICROSECONDS = (
    "INSERT INTO targets (id, name, kind, location, trusted, allow_unsandboxed, recipe_from_branch, created_at,"
    " poll_at, poll_failures) VALUES (1, 'norms', 'git', '/srv/norms', true, false, false, 1.0, 1.0, 0)",
    "INSERT INTO recipes (id, target_id, digest, text, adapters, created_at) VALUES (1, 1, 'a', '', '{}', 1.0)",
    "INSERT INTO revisions (id, target_id, sha, subject, author, committed_at, paths)"
    " VALUES (1, 1, 'b', '', '', 1.0, '[]')",
    "INSERT INTO runs (id, dedupe, target_id, revision_id, recipe_id, device, suite, trusted, priority, state, attempt,"
    " max_attempts, not_before, created_at, told) VALUES (1, 'c', 1, 1, 1, 'h200', 'smoke', true, 10, 'done', 1, 3, 0,"
    " 1.0, '')",
    'INSERT INTO measurements (id, run_id, contender, role, provider, "case", state, median_us, gb_s, launches, rounds,'
    " facts) VALUES (1, 1, 'head:norms', 'head', 'norms', 'rmsnorm.fwd.4096x1024.bf16', 'measured', 7.31, 2295.5, 3,"
    " 60, '{}')",
    'INSERT INTO gaps (id, target_id, device, provider, "case", behind, last_run_id, ratio_now, own_us, sota_us)'
    " VALUES (1, 1, 'h200', 'norms', 'rmsnorm.fwd.4096x1024.bf16', true, 1, 1.2, 7.31, 6.1)",
)


def test_an_older_database_keeps_its_rows_under_names_without_a_unit(url: str) -> None:
    engine = filled(url, "0001", IN_MICROSECONDS)

    migrate.upgrade(url)

    with Session(engine) as session:
        [measured] = session.scalars(select(Measurement))
        [gap] = session.scalars(select(Gap))
    engine.dispose()
    assert (measured.median, measured.unit, measured.gb_s) == (7.31, "us", 2295.5)
    assert (gap.own, gap.sota, gap.ratio_now) == (7.31, 6.1, 1.2)


OF_THE_LANES = (
    IN_MICROSECONDS[0],
    "INSERT INTO recipes (id, target_id, digest, text, adapters, created_at) VALUES (1, 1, 'a',"
    " 'suite = {default = \"smoke\", h200 = \"lanes\"}\n[policy.lanes]\ncall = 0.1\n', '{}', 1.0)",
    *IN_MICROSECONDS[2:4],
    "UPDATE runs SET suite = 'lanes'",
)


def test_a_recipe_keeps_its_suite_and_its_limits_by_metric(url: str) -> None:
    engine = filled(url, "0001", OF_THE_LANES)

    migrate.upgrade(url)

    with engine.connect() as connection:
        recipe = connection.execute(text("SELECT text FROM recipes")).scalar_one()
        suite = connection.execute(text("SELECT suite FROM runs")).scalar_one()
    engine.dispose()
    assert recipe == 'suite = {default = "smoke", h200 = "metrics"}\n[policy.metrics]\ncall = 0.1\n'
    assert suite == "metrics"


# Verdicts, a quarantine and searches as they were when decisions were made from their texts.
VERDICTS = (
    ("a", "invalid", "already so before this revision: y is wrong"),
    ("b", "failed", "it says: quarantined: nothing"),
    ("c", "inconclusive", "quarantined: it lies"),
    ("d", "inconclusive", "quarantined: too small"),
    ("e", "regression", "12.0% slower than its baseline"),
)
CAUSES = (("slower, perhaps because the kernel spills", "d"), ("probably the machine: a clock", "e"))
SEARCHES = (
    ("searching", "waits for tomorrow's budget (5 steps a day); 3 of 7 revisions left"),
    ("stopped", "waits for tomorrow's budget (5 steps a day); 3 of 7 revisions left"),
    ("searching", "3 of 7 revisions left"),
)
A_VERDICT = text(
    'INSERT INTO verdicts (run_id, provider, "case", baseline_kind, outcome, trials, rounds, confirmed, behind_sota,'
    " suspected, reason) VALUES (1, 'norms', :case, 'parent', :outcome, 0, 0, false, false, false, :reason)"
)
A_CAUSE = text("UPDATE verdicts SET cause_kind = 'code', cause_text = :cause WHERE \"case\" = :case")
A_QUARANTINE = text(
    'INSERT INTO quarantines (target_id, device, provider, "case", since, "by", reason)'
    " VALUES (1, 'h200', 'norms', 'c', 0.0, 'ada', 'it lies')"
)
A_SEARCH = text(
    "INSERT INTO bisections (target_id, device, suite, cases, good, bad, line, state, asked_by, max_runs, reason,"
    " created_at) VALUES (1, 'h200', 'smoke', '[]', 'g', 'b', '[]', :state, 'ada', 9, :reason, 1.0)"
)


def test_what_was_decided_from_texts_gets_codes_once(url: str) -> None:
    engine = filled(url, "0001", IN_MICROSECONDS)
    migrate.upgrade(url, "0009")
    with engine.begin() as connection:
        for case, outcome, reason in VERDICTS:
            connection.execute(A_VERDICT, {"case": case, "outcome": outcome, "reason": reason})
        for cause, case in CAUSES:
            connection.execute(A_CAUSE, {"cause": cause, "case": case})
        connection.execute(A_QUARANTINE)
        for state, reason in SEARCHES:
            connection.execute(A_SEARCH, {"state": state, "reason": reason})

    migrate.upgrade(url)

    with Session(engine) as session:
        rows = session.scalars(select(VerdictRow).order_by(VerdictRow.id)).all()
        waits = session.scalars(select(Bisection.waits_for_budget).order_by(Bisection.id)).all()
    engine.dispose()
    assert [(row.reason_code, row.reason_args, row.known_before, row.quarantined_by) for row in rows] == [
        ("invalid", {"said": "y is wrong"}, True, None),
        (None, None, False, None),
        ("quarantined", {"why": "it lies"}, False, "ada"),
        ("quarantined", {"why": "too small"}, False, "recipe"),
        (None, None, False, None),
    ]
    assert [of_verdict(row) for row in rows[-2:]] == ["quarantined: too small", "12.0% slower than its baseline"]
    assert [cause_of(row) for row in rows[-3:]] == [
        None,
        CauseWords(Kind.CODE, CAUSES[0][0], False, ", perhaps because the kernel spills"),
        CauseWords(Kind.CODE, CAUSES[1][0], False),
    ]
    assert waits == [True, False, False]


WAITED = (
    "INSERT INTO subscriptions (id, channel, severity, created_at, created_by, owner_kind)"
    " VALUES (1, 'chat', 'fail', 0.0, 'ada', 'local')",
    *(
        "INSERT INTO notice_messages (id, subscription_id, channel, document, state, attempts, next_at, created_at)"
        f" VALUES ({number}, 1, 'chat', '{{}}', '{state}', 6, 0.0, 0.0)"
        for number, state in enumerate(("waiting", "sent"))
    ),
)


def test_attempts_of_an_outage_are_no_refusals_and_the_indexes_go_and_come(url: str) -> None:
    engine = filled(url, "0031", WAITED)
    before = described(url)

    migrate.upgrade(url, "0032")

    with engine.connect() as connection:
        attempts = connection.execute(text("SELECT attempts FROM notice_messages ORDER BY id")).scalars().all()
    assert attempts == [0, 6]
    assert described(url) != before
    downgrade(engine, "0031")
    engine.dispose()
    assert described(url) == before
    migrate.upgrade(url)


def downgrade(engine: Engine, to: str) -> None:
    with engine.begin() as connection:
        config = migrate.configuration()
        config.attributes["connection"] = connection
        command.downgrade(config, to)


def described(url: str) -> dict[str, object]:
    engine = make_engine(url)
    found = inspect(engine)
    tables = [name for name in found.get_table_names() if name != "alembic_version"]
    described: dict[str, object] = {
        name: (
            {column["name"]: (str(column["type"]), column["nullable"]) for column in found.get_columns(name)},
            found.get_pk_constraint(name)["constrained_columns"],
            sorted((key["constrained_columns"], key["referred_table"]) for key in found.get_foreign_keys(name)),
            sorted(unique["column_names"] for unique in found.get_unique_constraints(name)),
            sorted((str(one["name"]), one["column_names"], _condition(one)) for one in found.get_indexes(name)),
        )
        for name in tables
    }
    engine.dispose()
    return described


def _condition(index: ReflectedIndex) -> str:
    """Which rows the index has; empty for all."""
    options = index.get("dialect_options", {})
    return str(options.get("sqlite_where", options.get("postgresql_where", "")))


def _empty(url: str) -> None:
    parsed: URL = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        folder = Path(str(parsed.database)).parent
        for file in folder.iterdir():
            file.unlink()
        return
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
