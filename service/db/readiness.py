"""Whether the database is ready, accepts a write, and what to do about its errors."""

import shutil
import sqlite3

import structlog
from sqlalchemy import make_url, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from service.db import migrate
from service.db.engine import clock, reading, transaction
from service.db.models import WriteProbe
from service.settings import MIB, settings

log = structlog.get_logger()

MIN_FREE = 64 * MIB  # more than two of the largest deliveries; SQLite may still accept small writes below it
_ROW = 1
_UPGRADE = "run `kernelwatch db upgrade`"
_NO_TABLES = f"the database has no tables yet; {_UPGRADE}"


def problems() -> list[str]:
    """Return why the database is not ready; an empty list if it is.  Writes one row, which it updates in place."""
    file = migrate.file_of(settings().database)
    if file is not None and not file.exists():
        return [_NO_TABLES]
    try:
        with reading() as session:
            current = migrate.revision_of(session.connection())
    except SQLAlchemyError as error:
        return [f"the database does not answer ({type(getattr(error, 'orig', None) or error).__name__})"]
    if current is None:
        return [_NO_TABLES]
    if current != (newest := migrate.newest()):
        return [f"the database is at migration {current}, and this version needs {newest}; {_UPGRADE}"]
    if file is not None and (free := shutil.disk_usage(file.parent).free) < MIN_FREE:
        return [f"the disk of the database has {free // MIB} MiB left, less than {MIN_FREE // MIB} MiB"]
    try:
        _write()
    except SQLAlchemyError as error:
        log.error("the database accepts no writes", error=str(error))
        return [f"the database accepts no writes ({type(getattr(error, 'orig', None) or error).__name__}); see the log"]
    return []


def _write() -> None:
    with transaction() as session:
        now = clock(session)
        one = update(WriteProbe).where(WriteProbe.id == _ROW).values(written_at=now).returning(WriteProbe.id)
        if session.scalar(one) is None:
            session.add(WriteProbe(id=_ROW, written_at=now))


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


def remedy(error: DBAPIError) -> str:
    """The step that fixes the error."""
    if isinstance(error.orig, sqlite3.Error):
        return _SQLITE.get(getattr(error.orig, "sqlite_errorcode", 0) & _PRIMARY_CODE, _SCHEMA)
    match (getattr(error.orig, "sqlstate", None) or "")[:2]:  # the class of an answer; empty without one
        case "42":  # a table or column that is not there
            return _SCHEMA
        case "53":  # insufficient resources
            return "Give the server more disk space, memory or connections."
        case _:
            return "Check that the server runs, and KERNELWATCH_DATABASE_URL."


def describe(error: DBAPIError) -> str:
    """The database, the error and its remedy, without the password."""
    where = make_url(settings().database).render_as_string(hide_password=True)
    return f"The database {where} reports an error: {str(error.orig).strip()}. {remedy(error)}"
