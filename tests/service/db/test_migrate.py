"""A database is brought to the schema of the models, by any number of processes, on SQLite and on PostgreSQL."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import JSON, URL, Connection, MetaData, Table, inspect, make_url, text
from sqlalchemy.engine.interfaces import ReflectedIndex

from service.db import migrate, schema
from service.db.engine import make_engine
from service.db.models import Base
from service.errors import BadInput


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

    assert migrate.current(url) == schema.newest()


def test_a_file_is_named_after_its_migration() -> None:
    """So that a worker knows the newest without Alembic."""
    scripts = ScriptDirectory.from_config(migrate.configuration())
    assert schema.newest() == scripts.get_current_head()
    assert all(schema.is_known(script.revision) for script in scripts.walk_revisions())


def test_several_processes_may_start_at_once(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrate.upgrade, [url] * 4))

    migrate.upgrade(url)
    assert migrate.current(url) == schema.newest()


def test_a_database_of_another_version_is_refused_and_stays(url: str) -> None:
    migrate.upgrade(url)
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999_later'"))
    engine.dispose()
    before = described(url)

    with pytest.raises(BadInput, match="at migration 9999_later, which this version does not know"):
        migrate.upgrade(url)

    assert (migrate.current(url), described(url)) == ("9999_later", before)


def test_what_waits_gets_turns_and_workers_get_plans(url: str) -> None:
    """Of a database of the version before: targets take turns at once, and ten runs go before the next priority."""
    migrate.upgrade(url, "0006_retention")
    engine = make_engine(url)
    with engine.begin() as connection:
        for name in ("large", "small"):
            _insert(connection, "targets", name=name, kind="git")
        for target in (1, 2):
            _insert(connection, "recipes", target_id=target, digest="0")
            _insert(connection, "revisions", target_id=target, sha="a")
            _insert(connection, "series", target_id=target, device="h200", metric="kernel")
        _insert(connection, "workers", name="one", device="h200")
        _insert(connection, "workers", name="two", device="b200")
        for number, (target, priority, state) in enumerate(
            [(1, 10, "queued"), (1, 10, "queued"), (1, 20, "queued"), (2, 10, "queued"), (1, 10, "done")]
        ):
            of = {"target_id": target, "revision_id": target, "recipe_id": target, "device": "h200", "purpose": "watch"}
            _insert(connection, "runs", **of, priority=priority, state=state, dedupe=str(number))
    migrate.upgrade(url)
    with engine.begin() as connection:
        turns = connection.scalars(text("SELECT turn FROM runs ORDER BY id")).all()
        pairs = connection.execute(text("SELECT target_id, worker FROM calibration_plans ORDER BY target_id")).all()
    engine.dispose()
    assert turns == [1.0, 2.0, 10.0, 1.0, 0.0]
    assert pairs == [(1, "one"), (2, "one")]


def _insert(connection: Connection, table_name: str, **values: object) -> None:
    """Add a row to a table of an older version; what is not named, and may not be null, is zero or empty."""
    table = Table(table_name, MetaData(), autoload_with=connection)
    for column in table.columns:
        if not (column.nullable or column.server_default or column.primary_key or column.name in values):
            values[column.name] = {} if isinstance(column.type, JSON) else column.type.python_type()
    connection.execute(table.insert().values(values))


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
