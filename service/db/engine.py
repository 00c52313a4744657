"""The one door to the database: an engine per process, one transaction at a time, and what to do about an error."""

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

from pydantic_core import from_json
from sqlalchemy import URL, ColumnElement, Connection, Engine, Select, create_engine, event, func, make_url, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from service.settings import settings

# A cut network left psycopg hanging for 90 s; with these it errors within 9 s.
_POSTGRES = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 8000,
    "connect_timeout": 10,
}


_creating = threading.Lock()  # `cache` alone calls its function once per thread that asks before it has an answer
_PRIMARY_CODE = 0xFF  # of an extended result code of SQLite
_DAMAGED = (
    "The file is damaged. Stop kernelwatch, keep a copy of the file, and restore a backup; an empty database starts "
    "from nothing (move the file away, then `kernelwatch db upgrade`)."
)
_SQLITE = {
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_FULL: "Free space on its disk; nothing has to be restarted.",
    sqlite3.SQLITE_IOERR: "Check its disk, and that it has space left.",
    # A process that opened the file as read-only keeps it so.
    sqlite3.SQLITE_READONLY: "Make file and folder writable for the user that runs kernelwatch, then restart it.",
    sqlite3.SQLITE_CANTOPEN: "Make its folder exist, and writable for the user that runs kernelwatch.",
    sqlite3.SQLITE_BUSY: "Another process holds its lock; repeat the command.",
}
_SCHEMA = "Start kernelwatch once (`kernelwatch up`), or migrate the database with `kernelwatch db upgrade`."


def engine() -> Engine:
    """The engine of this process, for `settings().database`."""
    with _creating:
        return _engine()


@cache
def _engine() -> Engine:
    # As many connections as threads ask at once: what limits those, such as the places of control, is the one limit.
    return make_engine(settings().database, pool_size=0)


def disconnect(*, forked: bool = False) -> None:
    """Close the idle connections of this process; the next call of `engine` reads the settings again.

    A forked process leaves the connections open: they belong to its parent.
    """
    with _creating:
        if _engine.cache_info().currsize:
            _engine().dispose(close=not forked)
            _engine.cache_clear()


def make_engine(url: str | URL, **options: Any) -> Engine:
    """An engine for SQLite (write-ahead log, immediate transactions) or PostgreSQL (keepalives)."""
    parsed = make_url(url)
    options["json_deserializer"] = _decoded
    if parsed.get_backend_name() == "postgresql":
        postgres = parsed.set(drivername="postgresql+psycopg")
        created = create_engine(postgres, pool_pre_ping=True, connect_args=_POSTGRES, **options)
        event.listen(created, "connect", _prepare_postgres)
        return created
    created = create_engine(parsed, connect_args={"timeout": 30}, **options)
    event.listen(created, "connect", _prepare_sqlite)
    event.listen(created, "begin", _begin_sqlite)
    return created


def _decoded(text: str | bytes) -> Any:
    """JSON as it is stored: in half the time that the standard library takes, where that is not needed."""
    try:
        return from_json(text, cache_strings="keys")
    except ValueError:  # nested more than 200 deep
        return json.loads(text)


def _prepare_postgres(connection: object, _record: object) -> None:
    """Let the planner follow indexes, as on a disk without moving parts.

    With the costs that are PostgreSQL's defaults it reads whole tables of runs and revisions for the few rows of a page
    until they are many times larger, compiles statements for longer than they take, and starts processes, in 8 ms, for
    what one reads in less than 1.
    """
    cursor = connection.cursor()  # type: ignore[attr-defined]
    for setting in ("random_page_cost = 1.1", "jit = off", "max_parallel_workers_per_gather = 0"):
        cursor.execute(f"SET {setting}")
    cursor.close()
    connection.commit()  # type: ignore[attr-defined]


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that starts with a read is refused at its first write, so writers take the lock at the start.
    reading = connection.get_execution_options().get("reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _prepare_sqlite(connection: object, _record: object) -> None:
    connection.isolation_level = None  # type: ignore[attr-defined]  # the begin listener owns BEGIN
    cursor = connection.cursor()  # type: ignore[attr-defined]
    for pragma in ("synchronous=FULL", "busy_timeout=30000", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    _write_ahead(cursor)
    cursor.close()


def _write_ahead(cursor: sqlite3.Cursor) -> None:
    """Switch to WAL; if several processes open a new database at once, one succeeds and the others must retry."""
    for _ in range(100):
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            time.sleep(0.05)
    cursor.execute("PRAGMA journal_mode=WAL")


@contextmanager
def transaction() -> Iterator[Session]:
    """One transaction: committed when the block ends, rolled back when it raises.  Nothing else commits.

    Wake-ups requested inside (`wake`) are sent only after the commit, so that no worker polls too early.
    """
    with Session(engine(), expire_on_commit=False) as session, session.begin():
        yield session
    from service.db.wakeups import send

    for queue in session.info.pop("wake", ()):
        send(queue)


@contextmanager
def reading() -> Iterator[Session]:
    """A transaction that only reads: on SQLite it waits for no writer and holds up none."""
    with Session(_reading_only(engine()), expire_on_commit=False) as session, session.begin():
        yield session


@lru_cache(1)
def _reading_only(every: Engine) -> Engine:
    return every.execution_options(reading=True)


@contextmanager
def snapshot() -> Iterator[Session]:
    """A transaction that only reads, and all of whose statements see the database as the first of them saw it.

    It may last: its connection is not one of those that requests wait for.
    """
    with Session(_of_snapshots(engine()), expire_on_commit=False) as session, session.begin():
        yield session


@lru_cache(1)
def _of_snapshots(every: Engine) -> Engine:
    own = make_engine(every.url, poolclass=NullPool)
    isolated = {"isolation_level": "REPEATABLE READ"} if every.dialect.name == "postgresql" else {}
    return own.execution_options(reading=True, **isolated)


def analyze() -> None:
    """Let SQLite know how many rows its tables have, without which it takes the wrong index of several.

    PostgreSQL does that by itself.
    """
    if engine().dialect.name == "sqlite":
        with engine().begin() as connection:
            connection.exec_driver_sql("PRAGMA analysis_limit = 1000")  # rows that are read of an index
            connection.exec_driver_sql("ANALYZE")


def insert_rows(session: Session, table: type[Any], columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows of values that every database takes, without what SQLAlchemy does for each: half of the time.

    Raises DBAPIError, as any statement does.
    """
    connection = session.connection()
    names = ", ".join(f'"{name}"' for name in columns)
    into = f"{table.__tablename__} ({names})"  # of the models
    if connection.dialect.name == "postgresql":
        statement, driver = f"COPY {into} FROM STDIN", connection.dialect.loaded_dbapi
        try:
            with connection.connection.cursor() as cursor, cursor.copy(statement) as copy:  # type: ignore[attr-defined]
                for row in rows:
                    copy.write_row(row)
        except driver.Error as error:
            raise DBAPIError.instance(statement, None, error, driver.Error, dialect=connection.dialect) from error
    else:
        values = ", ".join("?" * len(columns))
        connection.exec_driver_sql(f"INSERT INTO {into} VALUES ({values})", list(rows))  # noqa: S608


def wake(session: Session, queue: str) -> None:
    """Wake the workers of `queue` after this transaction is committed."""
    session.info.setdefault("wake", set()).add(queue)


def database_now(session: Session) -> ColumnElement[Any]:
    """The database's clock in seconds since the epoch, so that leases need no agreement between hosts."""
    return _now_of(session.get_bind().dialect.name)


def _now_of(dialect: str) -> ColumnElement[Any]:
    if dialect == "postgresql":
        return func.extract("epoch", func.clock_timestamp())
    return (func.julianday("now") - 2440587.5) * 86400.0


def clock(session: Session) -> float:
    """Seconds since the epoch by the database's clock."""
    now: float = session.execute(_select_now(session.get_bind().dialect.name)).scalar_one()
    return float(now)


@cache
def _select_now(dialect: str) -> Select[Any]:
    return select(_now_of(dialect))


def remedy(error: DBAPIError) -> str:
    """The step that fixes the error."""
    if isinstance(error.orig, sqlite3.Error):
        return remedy_of_sqlite(error.orig)
    match (getattr(error.orig, "sqlstate", None) or "")[:2]:  # the class of an answer; empty without one
        case "42":  # a table or column that is not there
            return _SCHEMA
        case "53":  # insufficient resources
            return "Give the server more disk space, memory or connections."
        case _:
            return "Check that the server runs, and KERNELWATCH_DATABASE_URL."


def remedy_of_sqlite(error: sqlite3.Error) -> str:
    """The same for an error of the driver."""
    return _SQLITE.get(getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE, _SCHEMA)


def describe(error: DBAPIError) -> str:
    """The database, the error and its remedy in one line, without the password."""
    where = make_url(settings().database).render_as_string(hide_password=True)
    what = str(error.orig).strip().partition("\n")[0]  # libpq adds questions, and servers the statement
    return f"The database {where} reports an error: {what}. {remedy(error)}"
