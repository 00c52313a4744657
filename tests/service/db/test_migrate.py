"""A database is brought to the schema of the models, by any number of processes, on SQLite and on PostgreSQL."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import URL, inspect, make_url, select, text
from sqlalchemy.orm import Session

from service.db import migrate
from service.db.engine import make_engine
from service.db.models import Base, Gap, Measurement


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'new' / 'folder' / 'kernelwatch.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


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
    migrate.upgrade(url, "0001")
    engine = make_engine(url)
    with engine.begin() as connection:
        for row in IN_MICROSECONDS:
            connection.execute(text(row))

    migrate.upgrade(url)

    with Session(engine) as session:
        [measured] = session.scalars(select(Measurement))
        [gap] = session.scalars(select(Gap))
    engine.dispose()
    assert (measured.median, measured.unit, measured.gb_s) == (7.31, "us", 2295.5)
    assert (gap.own, gap.sota, gap.ratio_now) == (7.31, 6.1, 1.2)


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
            sorted((str(index["name"]), index["column_names"]) for index in found.get_indexes(name)),
        )
        for name in tables
    }
    engine.dispose()
    return described


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
