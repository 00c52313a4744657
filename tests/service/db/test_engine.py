"""One engine per process."""

import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine

from service.db import engine as of_process
from service.db.engine import disconnect, engine, reading
from service.settings import settings


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Creating an engine takes long enough for other threads to ask for one."""
    create = of_process.make_engine

    def late(url: str) -> Engine:
        time.sleep(0.05)
        return create(url)

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
