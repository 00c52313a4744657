"""Databases that older versions filled open with everything that was in them.

One is of the demo, with an acknowledged regression, a note, a quarantined case and a bisection besides its runs; the
others are of measurements on an H200 (docs/measurements).
"""

import gzip
import lzma
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from service.db import migrate
from service.db.engine import make_engine
from tests.dashboards.asking import Get, asking, words
from tests.service.db.test_migrate import downgrade

DEMO = Path(__file__).with_name("demo-0008.db.xz")
OLD = [DEMO, *sorted(Path(__file__).parents[3].glob("docs/measurements/*/**/*.db.gz"))]
KINDS = {"good": "last_good", "slow": "pinned"}  # other words for the same baselines


@pytest.fixture(scope="module", params=OLD, ids=[file.relative_to(file.parents[2]).as_posix() for file in OLD])
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    packed: Path = request.param
    unpack = lzma.decompress if packed.suffix == ".xz" else gzip.decompress
    file = tmp_path_factory.mktemp("old") / "kernelwatch.db"
    file.write_bytes(unpack(packed.read_bytes()))
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


only_the_demo = pytest.mark.parametrize("old", [DEMO], indirect=True, ids=["demo"])


def rows(file: Path, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(file)
    try:
        return sorted(connection.execute(query).fetchall(), key=repr)
    finally:
        connection.close()


def test_there_are_databases_of_several_versions(tmp_path: Path) -> None:
    assert len(OLD) >= 6


def test_every_verdict_is_as_it_was(old: Path, get: Get) -> None:
    before = rows(old, "SELECT run_id, provider, [case], against, outcome, ratio, low, high FROM verdicts")
    runs = {run for run, *_ in before}
    assert before

    after = []
    for run in runs:
        document = get(f"/api/v1/runs/{run}").json()
        names = ("provider", "case", "baseline_kind", "outcome", "ratio", "low", "high")
        after += [(run, *(verdict[name] for name in names)) for verdict in document["verdicts"]]
    renamed = [(*row[:3], KINDS.get(row[3], row[3]), *row[4:]) for row in before]
    assert sorted(after, key=repr) == sorted(renamed, key=repr)


def test_every_regression_is_as_it_was(old: Path, get: Get) -> None:
    before = rows(old, "SELECT id, provider, [case], device, state, ratio FROM regressions")

    names = ("id", "provider", "case", "device", "state", "ratio")
    targets = [name for (name,) in rows(old, "SELECT name FROM targets")]
    found = [one for name in targets for one in get(f"/api/v1/targets/{name}/regressions?limit=100").json()["items"]]
    assert sorted((tuple(one[name] for name in names) for one in found), key=repr) == before


@only_the_demo
def test_every_step_of_a_regression_is_kept(old: Path, get: Get) -> None:
    before = rows(old, "SELECT id, state FROM regressions")
    assert {state for _, state in before} == {"bisecting", "acknowledged"}

    for number, _ in before:
        events = rows(old, f"SELECT who, what FROM regression_events WHERE regression_id = {number}")
        life = get(f"/api/v1/regressions/{number}").json()
        assert sorted((one["actor"], one["action"]) for one in life["events"]) == events


@only_the_demo
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


def test_every_page_opens(old: Path, get: Get) -> None:
    paths = ["/", "/regressions", "/workers", "/calibration"]
    paths += [f"/targets/{name}" for (name,) in rows(old, "SELECT name FROM targets")]
    paths += [f"/runs/{run}" for (run,) in rows(old, "SELECT id FROM runs")]
    paths += [f"/regressions/{number}" for (number,) in rows(old, "SELECT id FROM regressions")]
    assert {path: status for path in paths if (status := get(path).status_code) != 200} == {}


@only_the_demo
def test_old_sentences_are_still_read(old: Path, get: Get) -> None:
    slower = "SELECT run_id, \"case\", reason FROM verdicts WHERE reason LIKE '%80.0%% slower%' AND confirmed"
    [(run, case, reason)] = rows(old, slower)
    assert reason.split(",")[0] in words(get(f"/runs/{run}/cases/{case}"))


@only_the_demo
def test_recipe_and_policies_are_read_by_their_new_names(migrated: Path, get: Get) -> None:
    [(recipe,)] = rows(migrated, "SELECT text FROM recipes")
    assert "screening = [3, 4, 6, 9, 13]" in recipe
    assert "looks" not in recipe
    assert get("/api/v1/targets/demo").status_code == 200


@only_the_demo
def test_the_way_back_keeps_the_rows(old: Path, migrated: Path) -> None:
    engine = make_engine(f"sqlite:///{migrated}")
    downgrade(engine, "0008")
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
