"""Errors of the database name the step that fixes them."""

import os
import sqlite3
from pathlib import Path

import psycopg
import pytest
from psycopg import errors
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from service.db.engine import describe, make_engine, remedy, transaction


def error_of(url: str, query: str = "SELECT * FROM nothing") -> DBAPIError:
    engine = make_engine(url)
    with pytest.raises(DBAPIError) as caught, engine.begin() as connection:
        connection.execute(text(query))
    engine.dispose()
    return caught.value


def test_a_missing_table_asks_for_the_migration(either: str) -> None:
    with pytest.raises(DBAPIError) as caught, transaction() as session:
        session.execute(text("SELECT * FROM nothing"))
    assert "kernelwatch db upgrade" in remedy(caught.value)


@pytest.mark.parametrize("content", [os.urandom(8192), b"SQLite format 3\0" + os.urandom(8192)])
def test_a_damaged_file_asks_for_a_backup(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kernelwatch.db").write_bytes(content)
    assert "restore a backup" in remedy(error_of(f"sqlite:///{tmp_path}/kernelwatch.db"))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert "Make its folder exist" in remedy(error_of(f"sqlite:///{tmp_path}/missing/kernelwatch.db"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (psycopg.OperationalError("connection refused"), "Check that the server runs"),
        (errors.CannotConnectNow("starting up"), "Check that the server runs"),
        (errors.DiskFull("no space"), "Give the server more disk space"),
        (errors.UndefinedColumn("no such column"), "kernelwatch db upgrade"),
        (sqlite3.OperationalError("without a code"), "kernelwatch db upgrade"),
    ],
)
def test_the_class_of_an_answer_decides(error: Exception, words: str) -> None:
    assert words in remedy(DBAPIError("SELECT 1", {}, error))


def test_no_password_is_shown(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWATCH_DATABASE_URL", "postgresql://kw:hush-hush@127.0.0.1:1/kw")
    shown = describe(DBAPIError("SELECT 1", {}, psycopg.OperationalError("connection refused\n")))
    assert "hush-hush" not in shown
    assert "reports an error: connection refused. Check" in shown
