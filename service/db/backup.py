"""Back up the database to one file, and restore it from there.

A backup is an SQLite database compressed by gzip, also that of a PostgreSQL database: no tool of a matching version is
needed, and a backup of either can be restored into the other.  The checksum of gzip finds changed bytes.
"""

import gzip
import os
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    BindParameter,
    ColumnElement,
    Connection,
    Engine,
    MetaData,
    Text,
    cast,
    create_engine,
    event,
    func,
    insert,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import AddConstraint, DropConstraint
from sqlalchemy.types import UserDefinedType

from service.db import migrate, schema
from service.db.check import Checked, check, row_counts
from service.db.engine import make_engine, remedy_of_sqlite
from service.errors import BadInput, Conflict
from service.settings import settings

_AT_A_TIME = 200  # rows: a log of a build may have a megabyte
_LEVEL = 3  # of compression; the samples, most of the bytes, are compressed already
_VERSION_TABLE = "alembic_version"


def backup(file: Path) -> Checked:
    """Write a consistent copy of the database to a new file, while others write to it.

    Raises Conflict if the file exists, and BadInput if the copy is damaged, which means that the database is.
    """
    if file.exists():
        raise Conflict(f"{file} exists; name a new file.")
    if not file.parent.is_dir():
        raise BadInput(f"{file.parent} is not a folder.")
    with _temporary(file.parent) as copy, _temporary(file.parent) as packed:
        url = settings().database
        if live := migrate.file_of(url):
            _copy_file(live, copy)
        else:
            _copy_to_file(url, copy)
        checked = check_file(copy)
        _require_undamaged(checked, "The database")
        with copy.open("rb") as source, gzip.open(packed, "wb", compresslevel=_LEVEL) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        _replace(packed, file)
    return checked


def check_backup(file: Path) -> Checked:
    """Check a backup: that it is whole, and what `check` checks.  Raises BadInput if it is none."""
    with _temporary(Path(tempfile.gettempdir())) as unpacked:
        _unpack(file, unpacked)
        return check_file(unpacked)


def restore(file: Path, *, force: bool = False) -> Checked:
    """Replace the database by a backup, brought to the schema of this version.

    Raises:
        BadInput: `file` is not a whole backup, or one of a newer version.
        Conflict: a process uses the database, or the database is not empty and `force` is not set.
    """
    url = settings().database
    live = migrate.file_of(url)
    if live is not None:
        live.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(live.parent if live else Path(tempfile.gettempdir())) as unpacked:
        _unpack(file, unpacked)
        _require_backup(check_file(unpacked), file)
        migrate.upgrade(f"sqlite:///{unpacked}")
        _single_file(unpacked)
        checked = check_file(unpacked)
        if live is not None:
            _replace_file(live, unpacked, force=force)
        else:
            _load(url, unpacked, checked, force=force)
    return checked


@contextmanager
def opened(file: Path) -> Iterator[Connection]:
    """Read a backup of this version or an older one, brought to the schema of this version, without restoring it."""
    with _temporary(Path(tempfile.gettempdir())) as unpacked:
        _unpack(file, unpacked)
        url = f"sqlite:///{unpacked}"
        migrate.upgrade(url)
        with _opened(url) as engine, engine.execution_options(reading=True).connect() as connection:
            yield connection


def check_file(file: Path) -> Checked:
    """Check an SQLite file, which need not be a database."""
    engine = create_engine(
        "sqlite://",
        creator=lambda: sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True),
        poolclass=NullPool,
    )
    with engine.connect() as connection:
        return check(connection)


# -- files


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """A file that only this user may read, removed in the end together with SQLite's files next to it."""
    handle, name = tempfile.mkstemp(prefix=".kernelwatch-", suffix=".tmp", dir=folder)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(name + suffix).unlink(missing_ok=True)


def _replace(source: Path, target: Path) -> None:
    """Move a file to its name, so that after a power cut the name has the old file or the whole new one."""
    with source.open("rb") as written:
        os.fsync(written.fileno())
    source.replace(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _unpack(file: Path, to: Path) -> None:
    try:
        with gzip.open(file) as source, to.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadInput(f"{file} is not a whole backup: {error}.") from None
    except OSError as error:
        raise BadInput(f"{file} cannot be unpacked: {error.strerror}.") from None


@contextmanager
def _opened(url: str) -> Iterator[Engine]:
    engine = make_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()


def _single_file(file: Path) -> None:
    """Leave the write-ahead log, so that the file alone is the database."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")


# -- out of a database


def _copy_file(live: Path, to: Path) -> None:
    if not live.exists():
        raise BadInput(f"There is no database {live}.")
    try:
        with closing(sqlite3.connect(live)) as source, closing(sqlite3.connect(to)) as target:
            source.backup(target)  # all pages in one step: writers of the write-ahead log need not wait for it
        _single_file(to)
    except sqlite3.DatabaseError as error:
        raise BadInput(f"{live} cannot be copied to {to.parent}: {error}. {remedy_of_sqlite(error)}") from None


def _copy_to_file(url: str, to: Path) -> None:
    with _opened(url) as engine, engine.connect().execution_options(isolation_level="REPEATABLE READ") as source:
        revision = migrate.revision_of(source)  # the first statement, which fixes the snapshot
        if revision is None or not schema.is_known(revision):
            raise BadInput(f"The database is at migration {revision}, which this version does not know.")
        migrate.upgrade(f"sqlite:///{to}", to=revision)
        with _opened(f"sqlite:///{to}") as file, file.begin() as target:
            target.exec_driver_sql("PRAGMA defer_foreign_keys=ON")  # to the commit: tables refer to each other
            _copy_rows(source, target)
    _single_file(to)


# -- into a database


def _require_backup(checked: Checked, file: Path) -> None:
    """Refuse damaged backups, other databases, and those of newer versions."""
    _require_undamaged(checked, str(file))
    if checked.revision is None:
        raise BadInput(f"{file} is not a backup of kernelwatch.")
    if not checked.known:
        raise BadInput(f"{file} was made by a newer version (migration {checked.revision}); install that version.")


def _require_undamaged(checked: Checked, what: str) -> None:
    if checked.damage:
        raise BadInput(f"{what} is damaged: {'; '.join(checked.damage)}.")


def _require_empty(rows: int, *, force: bool) -> None:
    if rows and not force:
        raise Conflict(f"The database has {rows} rows, which would be lost; use --force to replace it.")


def _in_use(by: str) -> Conflict:
    return Conflict(f"The database is in use by {by}. Stop every process of kernelwatch first.")


def _replace_file(live: Path, new: Path, *, force: bool) -> None:
    """Replace an SQLite database by another file."""
    if live.exists() and live.stat().st_size:
        with closing(sqlite3.connect(live, timeout=1, isolation_level=None)) as connection:
            _require_alone(connection, live, force=force)
            _take_place(live, new)
    else:
        _take_place(live, new)


def _require_alone(connection: sqlite3.Connection, live: Path, *, force: bool) -> None:
    """Take the database from all others.  A damaged one counts as not empty, and its users cannot be known."""
    rows = check_rows(live)
    _require_empty(rows, force=force)
    try:
        connection.execute("PRAGMA journal_mode=DELETE")  # refused while another connection is open
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError:
        raise _in_use("another process") from None
    except sqlite3.DatabaseError:
        pass


def _take_place(live: Path, new: Path) -> None:
    """Give the new database the owner and the mode of the old one, and its name."""
    model = live if live.exists() else live.parent
    if os.geteuid() == 0:  # the processes of the service may run as another user
        os.chown(new, model.stat().st_uid, model.stat().st_gid)
    if live.exists():
        new.chmod(live.stat().st_mode & 0o777)
    for suffix in ("-wal", "-shm"):  # SQLite would apply the old log to the new database
        live.with_name(live.name + suffix).unlink(missing_ok=True)
    _replace(new, live)


def check_rows(live: Path) -> int:
    """Count the rows of an SQLite database; one that cannot be read counts as a row."""
    try:
        with _opened(f"sqlite:///{live}") as engine, engine.execution_options(reading=True).connect() as connection:
            return _rows(connection)
    except (DBAPIError, sqlite3.DatabaseError):
        return 1


def _rows(connection: Connection) -> int:
    tables = MetaData()
    tables.reflect(connection)
    return sum(row_counts(connection, tables).values())


def _load(url: str, file: Path, checked: Checked, *, force: bool) -> None:
    """Replace the rows of a PostgreSQL database, which accepts no row without its parent, in one transaction."""
    if checked.faults:
        raise BadInput(f"The backup cannot be restored into PostgreSQL: {'; '.join(checked.faults)}.")
    with _opened(url) as engine:
        with engine.connect() as connection:
            others = connection.execute(text(_OTHERS)).scalar_one()
            if others:
                raise _in_use(f"{others} other connections")
            _require_empty(_rows(connection), force=force)
        migrate.upgrade(url)
        with engine.begin() as target, _opened(f"sqlite:///{file}") as source_engine:
            tables = _reflected(target)
            keys = [key for table in tables.tables.values() for key in table.foreign_key_constraints]
            for key in keys:  # tables refer to each other, so no order of them would do
                target.execute(DropConstraint(key))
            named = engine.dialect.identifier_preparer.format_table
            emptied = [named(table) for name, table in tables.tables.items() if name != _VERSION_TABLE]
            target.execute(text(f"TRUNCATE {', '.join(emptied)}"))
            with source_engine.execution_options(reading=True).connect() as source:
                _copy_rows(source, target)
            for key in keys:
                target.execute(AddConstraint(key))
            for table in tables.tables.values():
                if "id" in table.columns:
                    highest = select(func.max(table.c.id)).scalar_subquery()
                    sequence = func.pg_get_serial_sequence(table.name, "id")  # null where numbers are given
                    target.execute(
                        select(func.setval(sequence, func.coalesce(highest, 1), func.coalesce(highest, 0) > 0))
                    )


# Backends of other clients; an open transaction of ours is no reason to wait.
_OTHERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


# -- rows


class _JSONText(UserDefinedType[str]):
    """JSON as the text that it is: reading and writing it again could change it."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON"

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return cast(column, Text)

    def bind_expression(self, bindvalue: BindParameter[Any]) -> ColumnElement[Any]:
        return cast(bindvalue, JSON)


def _reflected(connection: Connection) -> MetaData:
    """The tables of a database, with JSON as text."""
    tables = MetaData()
    as_text = _JSONText() if connection.dialect.name == "postgresql" else Text()

    @event.listens_for(tables, "column_reflect")
    def keep_json(_inspector: object, _table: object, column: dict[str, Any]) -> None:
        if isinstance(column["type"], JSON):
            column["type"] = as_text

    tables.reflect(connection)
    return tables


def _copy_rows(source: Connection, target: Connection) -> None:
    """Copy the rows of all tables between two databases of the same migration."""
    here, there = _reflected(source), _reflected(target)
    for name, table in here.tables.items():
        if name == _VERSION_TABLE or name not in there.tables:
            continue
        with source.execute(select(table), execution_options={"yield_per": _AT_A_TIME}) as rows:
            for part in rows.mappings().partitions():
                target.execute(insert(there.tables[name]), [dict(row) for row in part])
