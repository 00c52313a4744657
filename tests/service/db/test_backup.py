"""Backups of both databases: whole under concurrent writes, refused if damaged, restored without a change."""

import gzip
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select, text
from typer.testing import CliRunner

from service.cli import app
from service.db import backup, migrate, schema
from service.db.backup import check_backup, restore
from service.db.check import check
from service.db.engine import disconnect, reading, transaction
from service.db.models import Delivery
from service.errors import BadInput, Conflict
from service.ledger.intake import samples
from service.settings import settings
from tests.dashboards import seed
from tests.dashboards.asking import asking

ADDRESSES = (
    "/api/v1/targets",
    "/api/v1/targets/norms",
    "/api/v1/targets/norms/runs",
    "/api/v1/targets/norms/revisions",
    "/api/v1/targets/norms/regressions",
    "/api/v1/targets/norms/gaps",
    "/api/v1/regressions",
    "/api/v1/calibration",
    *(f"/api/v1/runs/{run}" for run in range(1, 13)),
    *(f"/api/v1/runs/{run}/comment" for run in range(1, 13)),
)


@pytest.fixture
def filled(either: str) -> str:
    with transaction() as session:
        seed.seed(session, 1_700_000_000.0)
    return either


def answers() -> dict[str, bytes]:
    get = asking()
    return {address: get(address).content for address in ADDRESSES}


def use(url: str, patch: pytest.MonkeyPatch) -> None:
    disconnect()
    patch.setenv("KERNELWATCH_DATABASE_URL", url)
    settings.cache_clear()


def rows() -> int:
    with reading() as session:
        return session.scalar(select(func.count()).select_from(Delivery)) or 0


def deliver(first: int, count: int = 1) -> None:
    with transaction() as session:
        values = [
            {"guid": f"g{n}", "event": "ping", "body": b"\x00\xff" * 100, "received_at": 1.0, "attempts": 0}
            for n in range(first, first + count)
        ]
        session.execute(insert(Delivery), values)


def test_a_restored_database_gives_the_same_answers(filled: str, tmp_path: Path) -> None:
    before = answers()
    made = backup.backup(tmp_path / "copy.db.gz")
    with transaction() as session:
        session.execute(text("UPDATE runs SET state = 'failed'"))
    deliver(1)
    assert answers() != before
    disconnect()

    restored = restore(tmp_path / "copy.db.gz", force=True)

    assert answers() == before
    assert restored.rows == made.rows
    assert made.rows["runs"] == 12
    assert rows() == 0
    deliver(1)  # numbers go on, and foreign keys hold
    with pytest.raises(Exception, match=r"(?i)foreign key"), transaction() as session:
        session.execute(
            text("INSERT INTO attempts (run_id, attempt, worker, started_at, lost) VALUES (999, 1, 'w', 1.0, false)")
        )
    with reading() as session:
        assert check(session.connection()).damage == []


def test_a_backup_of_one_database_can_be_restored_into_the_other(
    state: Path, postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with transaction() as session:
        seed.seed(session, 1_700_000_000.0)
    before = answers()
    backup.backup(tmp_path / "of-sqlite.gz")
    use(postgres, monkeypatch)
    restore(tmp_path / "of-sqlite.gz")
    assert answers() == before
    backup.backup(tmp_path / "of-postgres.gz")
    use(f"sqlite:///{tmp_path / 'new' / 'kernelwatch.db'}", monkeypatch)
    restore(tmp_path / "of-postgres.gz")
    assert answers() == before
    deliver(1)


def test_a_backup_is_one_moment_of_a_database_in_use(filled: str, tmp_path: Path) -> None:
    """Each transaction of a writer adds ten rows, so that no whole backup has another number."""
    stop, written = threading.Event(), 0

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            deliver(written, 10)
            written += 10

    writer = threading.Thread(target=write)
    writer.start()
    try:
        counts = [backup.backup(tmp_path / f"{n}.gz").rows["deliveries"] for n in range(4)]
    finally:
        stop.set()
        writer.join()
    assert all(count % 10 == 0 for count in counts)
    assert counts == sorted(counts)
    assert counts[-1] > 0
    for n, count in enumerate(counts):
        checked = check_backup(tmp_path / f"{n}.gz")
        assert (checked.damage, checked.rows["deliveries"]) == ([], count)


SPOILED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut short": lambda whole: whole[: len(whole) // 2],
    "without its last byte": lambda whole: whole[:-1],
    "changed bytes": lambda whole: whole[:5000] + bytes(byte ^ 255 for byte in whole[5000:5016]) + whole[5016:],
    "not compressed": gzip.decompress,
    "text": lambda _: gzip.compress(b"Dear diary, " * 100),
    "another database": lambda _: gzip.compress(_database("CREATE TABLE diary (day, entry)")),
    "of a newer version": lambda whole: gzip.compress(
        _changed(gzip.decompress(whole), "UPDATE alembic_version SET version_num = '9999'")
    ),
}


def _database(*statements: str) -> bytes:
    connection = sqlite3.connect(":memory:")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    return connection.serialize()


def _changed(database: bytes, statement: str) -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.deserialize(database)
    connection.execute(statement)
    connection.commit()
    return connection.serialize()


def test_what_is_no_whole_backup_is_refused_and_nothing_is_lost(filled: str, tmp_path: Path) -> None:
    before = answers()
    file = tmp_path / "copy.gz"
    backup.backup(file)
    whole = file.read_bytes()
    disconnect()
    for name, spoil in SPOILED.items():
        file.write_bytes(spoil(whole))
        with pytest.raises(BadInput) as refused:
            restore(file, force=True)
        assert "copy.gz" in str(refused.value), name
    assert answers() == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_a_backup_of_the_first_release_is_restored(either: str) -> None:
    disconnect()
    assert restore(samples.FILE).current
    assert asking()("/api/v1/targets").json()["items"]
    with reading() as session:
        assert migrate.revision_of(session.connection()) == schema.newest()


def test_restore_refuses_a_database_with_rows(filled: str, tmp_path: Path) -> None:
    backup.backup(tmp_path / "copy.gz")
    disconnect()
    with pytest.raises(Conflict, match="--force"):
        restore(tmp_path / "copy.gz")


OTHER_PROCESS = """
import sys
from service.db.engine import reading
from sqlalchemy import text
with reading() as session:
    session.execute(text("SELECT 1"))
print("connected", flush=True)
sys.stdin.read()
"""


def test_restore_refuses_while_another_process_is_connected(filled: str, tmp_path: Path) -> None:
    """Its connection is idle, as those of a service without work."""
    backup.backup(tmp_path / "copy.gz")
    disconnect()
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "connected\n"
        with pytest.raises(Conflict, match="in use"):
            restore(tmp_path / "copy.gz", force=True)
        other.communicate("")
    restore(tmp_path / "copy.gz", force=True)


def test_a_damaged_database_is_not_backed_up_and_can_be_replaced(state: Path, tmp_path: Path) -> None:
    deliver(0, 500)
    backup.backup(tmp_path / "good.gz")
    disconnect()
    live = state / "kernelwatch.db"
    with live.open("r+b") as file:
        file.seek(live.stat().st_size // 2)
        file.write(os.urandom(100_000))
    with pytest.raises(BadInput, match="damaged"):
        backup.backup(tmp_path / "bad.gz")
    assert not (tmp_path / "bad.gz").exists()
    disconnect()
    live.write_bytes(b"not a database" * 1000)
    with pytest.raises(Conflict, match="--force"):
        restore(tmp_path / "good.gz")
    restore(tmp_path / "good.gz", force=True)
    assert rows() == 500


def test_a_backup_replaces_no_file_and_is_private(state: Path, tmp_path: Path) -> None:
    backup.backup(tmp_path / "copy.gz")
    assert (tmp_path / "copy.gz").stat().st_mode & 0o077 == 0
    with pytest.raises(Conflict, match="exists"):
        backup.backup(tmp_path / "copy.gz")
    with pytest.raises(BadInput, match="is not a folder"):
        backup.backup(tmp_path / "nowhere" / "copy.gz")


def test_json_keeps_its_text(either: str, tmp_path: Path) -> None:
    """Numbers, the order of keys, and null compared with no value at all."""
    raw = '{"b": 1.10, "a": 1e2, "n": null}'
    as_json = "CAST(:raw AS JSON)" if either == "postgres" else ":raw"
    with transaction() as session:
        session.execute(text(f"INSERT INTO stacks (digest, versions) VALUES ('x', {as_json})"), {"raw": raw})
    backup.backup(tmp_path / "copy.gz")
    disconnect()
    restore(tmp_path / "copy.gz", force=True)
    with reading() as session:
        assert session.scalar(text("SELECT CAST(versions AS TEXT) FROM stacks")) == raw


def test_faults_are_reported_and_backed_up(either: str, tmp_path: Path) -> None:
    """Somebody added a table, and a row lost its parent: a reason to make a backup, not to refuse one."""
    deliver(1)
    file = tmp_path / "copy.gz"
    backup.backup(file)
    orphaned = "INSERT INTO attempts (run_id, attempt, worker, started_at, lost) VALUES (999, 1, 'w', 1.0, false)"
    file.write_bytes(
        gzip.compress(_changed(_changed(gzip.decompress(file.read_bytes()), orphaned), "CREATE TABLE diary (day)"))
    )
    checked = check_backup(file)
    assert checked.damage == []
    assert [fault for fault in checked.faults if "1 rows of attempts refer to no row of runs (run_id)" in fault]
    assert [fault for fault in checked.faults if "diary" in fault]
    disconnect()
    if either == "postgres":
        with pytest.raises(BadInput, match="into PostgreSQL"):
            restore(file, force=True)
    else:
        assert restore(file, force=True).faults == checked.faults
        backup.backup(tmp_path / "again.gz")
    assert rows() == 1


def test_the_commands(either: str, tmp_path: Path) -> None:
    runner, file = CliRunner(), str(tmp_path / "copy.gz")
    deliver(1, 3)
    done = [runner.invoke(app, ["db", *line]) for line in (["check"], ["backup", file], ["check", file])]
    assert [one.exit_code for one in done] == [0, 0, 0], [one.output for one in done]
    disconnect()
    assert isinstance(runner.invoke(app, ["db", "restore", file]).exception, Conflict)
    restored = runner.invoke(app, ["db", "restore", file, "--force"])
    assert "3 rows in 1 tables" in restored.output
