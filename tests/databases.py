"""SQLite databases for tests: copies of one that was migrated, or filled, once in the session.

The migrations take a second and the seeds several, a copy takes a millisecond.
"""

import pickle
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, Float, create_engine, event, func, update
from sqlalchemy.orm import Session
from sqlalchemy.util import LRUCache

from service.db import engine as engines
from service.db import migrate
from service.db.engine import clock, make_engine
from service.db.models import Base, Run
from tests import common

FILE = "kernelwatch.db"
_LONG_AGO = 1e9  # numbers above are times: seconds since the epoch

Sow = Callable[[Session, float], Any]


def hasten() -> None:
    """Make the engines of this process cheap, without a change of what they do.

    SQLAlchemy keeps compiled statements by engine, and each test has its own: compiling the same statements again was a
    seventh of a story.  What is compiled depends on the statement and the dialect alone.  And no test cuts the power,
    so nobody waits for the disk: 4 ms a commit.
    """
    first = create_engine("sqlite://")
    first.connect().close()  # a dialect learns what the library can do
    compiled: LRUCache[Any, Any] = LRUCache(10_000)
    make = engines.make_engine

    def make_engine(url: str | URL, **options: Any) -> Engine:
        made = make(url, **options)
        if made.dialect.name == first.dialect.name:
            made.dialect, made._compiled_cache = first.dialect, compiled
            event.listen(made, "connect", _wait_for_no_disk)
        return made

    engines.make_engine = make_engine


def _wait_for_no_disk(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA synchronous=OFF").close()


def copy_migrated(folder: Path) -> None:
    """Put a migrated database into a state folder."""
    _copy(_migrated(), folder)


def copy_sown(folder: Path, sow: Sow) -> Any:
    """Put a database that `sow` filled into a state folder, as if it had been filled now.  Returns what `sow` did."""
    made = common.made_once(f"{sow.__module__}.{sow.__qualname__}", lambda making: _sow(making, sow))
    _copy(made, folder)
    sown_at, seeded = pickle.loads((made / "seeded").read_bytes())
    engine = make_engine(_url(folder))
    with Session(engine) as session, session.begin():
        shift(session, clock(session) - sown_at)
    engine.dispose()
    return seeded


def shift(session: Session, seconds: float) -> None:
    """Move every time of the database."""
    for table in Base.metadata.sorted_tables:
        times = [column for column in table.columns if isinstance(column.type, Float)]
        for column in times:
            session.execute(update(table).where(column > _LONG_AGO).values({column: column + seconds}))
    began = func.json_extract(Run.telemetry, "$.began")  # by the worker's clock; the one time in a document
    moved = func.json_set(Run.telemetry, "$.began", began + seconds)
    session.execute(update(Run).where(began > _LONG_AGO).values(telemetry=moved))


def _migrated() -> Path:
    return common.made_once("migrated", lambda making: migrate.upgrade(_url(making)))


def _sow(making: Path, sow: Sow) -> None:
    _copy(_migrated(), making)
    engine = make_engine(_url(making))
    with Session(engine, expire_on_commit=False) as session, session.begin():
        now = clock(session)
        seeded = sow(session, now)
    engine.dispose()
    (making / "seeded").write_bytes(pickle.dumps((now, seeded)))


def _copy(made: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(made / FILE, folder / FILE)


def _url(folder: Path) -> str:
    return f"sqlite:///{folder / FILE}"
