"""A database of the version before is upgraded as docs/operating.md says, and nothing of it is lost."""

import gzip
import re
import shlex
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect

from service.db import check, migrate, schema
from service.db.backup import check_backup
from service.db.engine import engine, make_engine
from service.ledger.intake import samples
from tests import world
from tests.dashboards.asking import asking
from tests.fakes.processes import ROOT
from tests.shell import kernelwatch
from tests.workers.periodic import run_control
from workers import control

BEFORE = schema._known()[-2]
CHAPTER = (ROOT / "docs/operating.md").read_text().partition("## Upgrade\n")[2].partition("\n## ")[0]
COMMANDS = re.findall(r"^kernelwatch [^#\n]+", CHAPTER, re.MULTILINE)


@pytest.fixture
def old(state: Path) -> Path:
    """A state folder with measurements in the schema of the version before."""
    (state / "kernelwatch.db").write_bytes(gzip.decompress(samples.FILE.read_bytes()))
    migrate.upgrade(to=BEFORE)  # from the first release, in which the sample is
    return state


def rows() -> dict[str, int]:
    with engine().connect() as connection:
        return check.check(connection).rows


def test_the_chapter_upgrades_and_keeps_everything(old: Path, tmp_path: Path) -> None:
    assert migrate.current() == BEFORE
    before = rows()
    ready = asking()("/readyz")
    assert ready.status_code == 503
    assert "kernelwatch db upgrade" in ready.json()["reasons"][0]
    run_control()
    assert rows() == before, "a process that starts before the migration does nothing"

    assert [shlex.split(command)[1:3] for command in COMMANDS] == [["db", "backup"], ["db", "upgrade"], ["db", "check"]]
    for command in COMMANDS:
        kernelwatch(command.removeprefix("kernelwatch ").replace("/backups", str(tmp_path)))

    assert rows() == before
    assert asking()("/readyz").status_code == 200
    assert asking()("/api/v1/runs/1").status_code == 200
    assert check_backup(tmp_path / "before.db.gz").revision == BEFORE, "the old version can restore it"


def test_the_old_version_waits_after_the_migration(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world.target("[providers]")
    monkeypatch.setattr(schema, "_known", lambda: (BEFORE,))
    before = rows()
    run_control()
    assert rows() == before
    assert control.work(control.here().name) == 0
    assert "restart this process with the version that made it" in asking()("/readyz").json()["reasons"][0]
    assert asking()("/api/v1/targets").status_code == 200, "it still answers readers"


def test_what_the_old_version_writes_fits_the_new_schema(tmp_path: Path) -> None:
    """A worker of the old version that measures during the migration stores its run."""
    old, new = (made(tmp_path / name, to) for name, to in (("old.db", BEFORE), ("new.db", schema.newest())))
    before, after = inspect(old), inspect(new)
    for table in before.get_table_names():
        columns = {column["name"]: column for column in after.get_columns(table)}
        known = {column["name"] for column in before.get_columns(table)}
        assert known <= columns.keys()
        needed = [name for name in columns.keys() - known if not columns[name]["nullable"]]
        assert [name for name in needed if columns[name]["default"] is None] == []
    old.dispose()
    new.dispose()


def made(file: Path, to: str) -> Engine:
    migrate.upgrade(f"sqlite:///{file}", to=to)
    return make_engine(f"sqlite:///{file}")
