"""A database that the demo filled before the names changed (schema 0008) opens with everything that was in it.

Beside the demo's runs it has an acknowledged regression, a note, a quarantined case and a bisection.
"""

import lzma
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from service.db import migrate
from tests.dashboards.asking import Get, asking, words

KINDS = {"good": "last_good", "slow": "pinned"}  # other words for the same baselines
OLD = Path(__file__).with_name("demo-0008.db.xz")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("old") / "kernelwatch.db"
    file.write_bytes(lzma.decompress(OLD.read_bytes()))
    return file


@pytest.fixture
def migrated(old: Path, state: Path) -> Path:
    file = state / "kernelwatch.db"
    file.write_bytes(old.read_bytes())
    migrate.upgrade()
    return file


@pytest.fixture
def get(migrated: Path) -> Get:
    return asking()


def rows(file: Path, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(file)
    try:
        return sorted(connection.execute(query).fetchall(), key=repr)
    finally:
        connection.close()


def test_the_database_is_older_than_the_names(old: Path) -> None:
    assert rows(old, "SELECT version_num FROM alembic_version") == [("0008",)]


def test_every_verdict_is_as_it_was(old: Path, get: Get) -> None:
    before = rows(old, "SELECT run_id, provider, [case], against, outcome, ratio, low, high, q FROM verdicts")
    runs = {run for run, *_ in before}
    assert len(before) == 75

    after = []
    for run in runs:
        document = get(f"/api/v1/runs/{run}").json()
        names = ("provider", "case", "baseline_kind", "outcome", "ratio", "low", "high", "q")
        after += [(run, *(verdict[name] for name in names)) for verdict in document["verdicts"]]
    renamed = [(*row[:3], KINDS.get(row[3], row[3]), *row[4:]) for row in before]
    assert sorted(after, key=repr) == sorted(renamed, key=repr)


def test_every_regression_is_as_it_was(old: Path, get: Get) -> None:
    before = rows(old, "SELECT id, provider, [case], device, state, ratio, why FROM regressions")
    assert {state for *_, state, _, _ in before} == {"bisecting", "acknowledged"}

    names = ("id", "provider", "case", "device", "state", "ratio", "cause_text")
    found = get("/api/v1/targets/demo/regressions").json()["items"]
    assert sorted((tuple(one[name] for name in names) for one in found), key=repr) == before
    for number, *_ in before:
        events = rows(old, f"SELECT who, what FROM regression_events WHERE regression_id = {number}")
        life = get(f"/api/v1/regressions/{number}").json()
        assert sorted((one["actor"], one["action"]) for one in life["events"]) == events


def test_every_history_is_as_it_was(old: Path, get: Get) -> None:
    before = rows(
        old,
        "SELECT m.provider, m.[case], m.run_id, m.median FROM measurements m JOIN runs r ON r.id = m.run_id"
        " JOIN revisions v ON v.id = r.revision_id WHERE m.role = 'head' AND r.purpose = 'watch' AND r.pull IS NULL"
        " AND m.median IS NOT NULL AND v.ordinal IS NOT NULL",
    )
    names = {(provider, case) for provider, case, *_ in before}
    assert len(names) == 5

    after = []
    for provider, case in names:
        asked = {"provider": provider, "case": case, "device": "cpu"}
        points = get("/api/v1/targets/demo/series", params=asked).json()["points"]
        after += [(provider, case, one["run_id"], one["median"]) for one in points if one["median"] is not None]
    assert sorted(after, key=repr) == before


def test_every_page_opens_and_old_sentences_are_still_read(old: Path, get: Get) -> None:
    runs = [run for (run,) in rows(old, "SELECT id FROM runs")]
    for path in ("/", "/regressions", "/targets/demo", "/workers", "/calibration", "/bisections/1"):
        assert get(path).status_code == 200, path
    pages = {run: get(f"/runs/{run}") for run in runs}
    assert {page.status_code for page in pages.values()} == {200}

    [(run, reason)] = rows(old, "SELECT run_id, reason FROM verdicts WHERE reason LIKE '%80.0%% slower%' AND confirmed")
    assert reason.split(",")[0] in words(pages[run])


def test_recipe_and_policies_are_read_by_their_new_names(migrated: Path, get: Get) -> None:
    [(recipe,)] = rows(migrated, "SELECT text FROM recipes")
    assert "screening = [3, 4, 6, 9, 13]" in recipe
    assert "looks" not in recipe
    assert get("/api/v1/targets/demo").status_code == 200


def test_the_way_back_keeps_the_rows(old: Path, migrated: Path) -> None:
    from alembic import command

    from service.db.engine import make_engine

    engine = make_engine(f"sqlite:///{migrated}")
    with engine.begin() as connection:
        config = migrate.configuration()
        config.attributes["connection"] = connection
        command.downgrade(config, "0008")
    engine.dispose()

    for query in (
        "SELECT run_id, provider, [case], against, outcome, ratio, reason, why FROM verdicts",
        "SELECT run_id, contender, role, provider, [case], median FROM measurements",
        "SELECT id, target_id, device, provider, [case], state, found_by, good, why FROM regressions",
        "SELECT target_id, device, provider, [case], reason FROM quarantines",
        "SELECT text FROM recipes",
        "SELECT digest, [values] FROM policies",
    ):
        assert rows(migrated, query) == rows(old, query), query
