"""What to do about an error of the database."""

import sqlite3

from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from service.settings import settings

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
