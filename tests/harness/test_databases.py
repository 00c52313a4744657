"""A copied database is like one made for the test: its times too, and without what was done to another copy."""

import json
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.db import migrate, schema
from service.db.engine import make_engine, reading, transaction
from service.db.models import Target
from tests import common
from tests.dashboards import seed, seed_deciding, seed_metrics
from tests.dashboards.lists import seed_big
from tests.dashboards.runs import seed_wide
from tests.databases import FILE, Sow, copy_migrated, shift

NOW, LATER_S = 1_790_000_000.0, 123_456.0


BIG = pytest.param(seed_big.small, marks=pytest.mark.long)


@pytest.mark.parametrize("sow", [seed_deciding.seed, seed_metrics.seed, seed_wide.seed, BIG])  # the first has seed.seed
def test_a_database_whose_times_move_is_one_that_was_filled_later(
    sow: Sow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved, later = (_sown(tmp_path / name, sow, now, monkeypatch) for name, now in (("a", NOW), ("b", NOW + LATER_S)))
    engine = make_engine(f"sqlite:///{moved}")
    with Session(engine) as session, session.begin():
        shift(session, LATER_S)
    engine.dispose()
    assert _rows(moved) == _rows(later)


def test_what_is_done_to_a_copy_stays_in_it(tmp_path: Path) -> None:
    with seed.watched(tmp_path / "one"), transaction() as session:
        session.execute(update(Target).values(name=Target.name + "-changed"))
    with seed.watched(tmp_path / "two"), reading() as session:
        assert set(session.scalars(select(Target.name))) == {"norms", "liger"}


def test_a_copy_has_the_newest_schema(tmp_path: Path) -> None:
    copy_migrated(tmp_path)
    assert migrate.current(f"sqlite:///{tmp_path / FILE}") == schema.newest()


def test_what_failed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "_given", [tmp_path])

    def fail(making: Path) -> None:
        (making / "half").touch()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        common.made_once("thing", fail)
    made = common.made_once("thing", lambda making: (making / "whole").touch())
    assert [file.name for file in made.iterdir()] == ["whole"]
    assert common.made_once("thing", fail) == made


def _sown(folder: Path, sow: Sow, now: float, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy_migrated(folder)
    for module in ("tests.big.seed", "service.ledger.stored_texts"):
        monkeypatch.setattr(f"{module}.clock", lambda _session: now)
    engine = make_engine(f"sqlite:///{folder / FILE}")
    with Session(engine) as session, session.begin():
        sow(session, now)
    engine.dispose()
    return folder / FILE


def _rows(file: Path) -> dict[str, list[tuple[object, ...]]]:
    with sqlite3.connect(file) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {name: connection.execute(f'SELECT * FROM "{name}"').fetchall() for name in names}
    connection.close()
    return {name: [tuple(map(_comparable, row)) for row in rows] for name, rows in found.items()}


def _comparable(value: object) -> object:
    """Times to the millisecond, as sums of floats depend on their order; documents without their spaces."""
    if isinstance(value, float) and value > 1e9:
        return round(value, 3)
    return json.loads(value) if isinstance(value, str) and value.startswith("{") else value
