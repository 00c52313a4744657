"""Whether the database is ready: it answers, has the schema of this version, and accepts a write."""

import shutil

import structlog
from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError

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
