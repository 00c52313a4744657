"""One engine per process."""

import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.exc import IntegrityError

from service.db import engine as of_process
from service.db.engine import disconnect, engine, insert_rows, reading, snapshot, transaction
from service.db.models import BuildLog, Target
from service.settings import settings
from tests import world


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Creating an engine takes long enough for other threads to ask for one."""
    create = of_process.make_engine

    def late(url: str, **options: Any) -> Engine:
        time.sleep(0.05)
        return create(url, **options)

    monkeypatch.setattr(of_process, "make_engine", late)


@pytest.mark.usefixtures("either", "slow")
def test_threads_that_ask_at_once_get_one_engine() -> None:
    """The connections of a second engine would never be closed."""
    at_once = threading.Barrier(4)

    def ask() -> Engine:
        at_once.wait(10)
        return engine()

    with ThreadPoolExecutor(4) as threads:
        assert len({id(asked.result()) for asked in [threads.submit(ask) for _ in range(4)]}) == 1


def test_after_disconnect_the_settings_are_read_again(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with reading():
        before = engine()
    monkeypatch.setenv("KERNELWATCH_DATABASE_URL", f"sqlite:///{state / 'other.db'}")
    settings.cache_clear()
    assert engine() is before
    disconnect()
    assert engine().url.database == str(state / "other.db")
    disconnect()
    disconnect()


def test_a_commit_on_sqlite_is_on_the_disk_and_references_are_checked(tmp_path: Path) -> None:
    """Engines of tests do without the disk: this asks what the service sets, not an engine of theirs."""
    connection = sqlite3.connect(tmp_path / "kernelwatch.db")
    of_process._prepare_sqlite(connection, None)
    set_to = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "foreign_keys")}
    connection.close()
    assert set_to == {"synchronous": 2, "foreign_keys": 1}  # 2 is FULL


@pytest.mark.usefixtures("either")
def test_a_snapshot_sees_nothing_that_is_written_after_its_first_statement() -> None:
    names = select(Target.name)
    world.target(name="before")
    with snapshot() as session:
        assert session.scalars(names).all() == ["before"]
        world.target(name="meanwhile")
        assert session.scalars(names).all() == ["before"]
        with transaction() as now:
            assert set(now.scalars(names)) == {"before", "meanwhile"}


@pytest.mark.usefixtures("either")
def test_snapshots_take_no_connection_of_requests() -> None:
    with ExitStack() as stack:
        for _ in range(engine().pool.size() + 15):  # type: ignore[attr-defined]
            stack.enter_context(snapshot()).execute(select(Target.id))
        with reading() as session:
            assert session.scalar(select(func.count()).select_from(Target)) == 0


@pytest.mark.usefixtures("either")
def test_rows_that_a_database_refuses_are_an_error_of_sqlalchemy_and_nothing_is_left_of_them() -> None:
    def write() -> None:
        with transaction() as session:
            world.registered(session)
            insert_rows(session, BuildLog, ("run_id", "packed", "characters", "made_at"), [(987_654, b"\0", 1, 0.0)])

    with pytest.raises(IntegrityError):
        write()
    with transaction() as session:
        assert session.scalars(select(Target.id)).all() == []
