"""The large database, made small: its rows agree with each other, and every page shows it."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from service.db.check import check
from service.db.engine import engine, reading, transaction
from service.db.models import Measurement, RegressionRow, Revision, Run, Target, unpack
from service.domain.states import CellState, RegressionState, RunState
from service.ledger.reading import queries
from service.ledger.targets import target_named
from tests.big.seed import seed
from tests.big.seeder import Places
from tests.big.story import SMALL, Size, Story
from tests.dashboards.asking import Get, asking
from tests.dashboards.seed import watched


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with watched(tmp_path_factory.mktemp("big"), lambda session, _now: seed(session, SMALL)) as found:
        yield found


@pytest.fixture(scope="module")
def get(places: Places) -> Get:
    return asking()


def test_the_rows_agree(either: str) -> None:
    with transaction() as session:
        seed(session, SMALL)
    with engine().connect() as connection:
        assert check(connection).problems() == []


def test_medians_are_those_of_the_samples(places: Places) -> None:
    with transaction() as session:
        some = session.scalars(select(Measurement).where(Measurement.run_id == places.newest).limit(20)).all()
        for one in some:
            taken = sorted(us for trial in unpack(one.samples)[0] for us in trial if us is not None)
            assert one.median == pytest.approx((taken[5] + taken[6]) / 2)


def test_verdicts_compare_the_measurements(places: Places) -> None:
    with transaction() as session:
        found = queries.found_in(session, places.worst)
        assert found.rows
        for row in found.rows:
            if row.ratio is not None and row.head and row.parent and row.head.median and row.parent.median:
                assert row.ratio == pytest.approx(row.head.median / row.parent.median)


def test_everything_that_may_happen_has_happened(places: Places) -> None:
    with transaction() as session:
        runs = set(session.scalars(select(Run.state).distinct()))
        assert runs == set(RunState) - {RunState.CANCELLED}
        assert session.scalar(select(func.count()).where(Measurement.state == CellState.INVALID))
        regressions = set(session.scalars(select(RegressionRow.state).distinct()))
        assert regressions >= {RegressionState.OPEN, RegressionState.BISECTING}


@pytest.mark.parametrize("path", ["/", "/regressions", "/workers", "/calibration", "/targets/norms", "/targets/liger"])
def test_lists_are_shown_without_what_attacks_them(get: Get, path: str) -> None:
    _check_shown(get, path)


@pytest.mark.parametrize("name", ["newest", "worst", "failed", "running", "pull", "hostile"])
def test_runs_are_shown_without_what_attacks_them(get: Get, places: Places, name: str) -> None:
    _check_shown(get, f"/runs/{getattr(places, name)}")


def _check_shown(get: Get, path: str) -> None:
    page = get(path)
    assert page.status_code == 200
    assert not re.search(r"<(script|img)[^>]*(alert|onerror)|<script>", page.text)
    assert "pa55w0rd" not in page.text


def test_the_full_size_has_every_kind_of_step() -> None:
    story = Story(Size())
    assert len(story.cases) == 206
    assert len(story.steps) == 11
    assert {len(set(step.cases)) == len(step.cases) for step in story.steps.values()} == {True}
    assert len(Story(SMALL).steps) == 3


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_longer_past_is_copied(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("postgres") if kind == "postgres" else None
    with watched(tmp_path, lambda session, _now: seed(session, SMALL, 60_000), database_url=url) as places:
        assert places.measurements == pytest.approx(60_000, rel=0.2)
        with engine().connect() as connection:
            assert check(connection).problems() == []
        with reading() as session:
            line = session.execute(
                select(Revision.ordinal, Revision.committed_at, Revision.sha, Revision.parent, Run.id)
                .join(Run, Run.revision_id == Revision.id)
                .join(Target, Target.id == Revision.target_id)
                .where(Target.name == "norms", Run.device == "h200", Run.pull.is_(None), Run.purpose == "watch")
                .where(Run.state.in_(["done", "failed", "skipped"]))
                .order_by(Revision.ordinal)
            ).all()
        assert len(line) > 2 * SMALL.revisions
        assert [one.ordinal for one in line] == list(range(len(line)))
        for older, newer in itertools.pairwise(line):
            assert older.committed_at < newer.committed_at
            assert older.id < newer.id
        get = asking()
        assert get(f"/runs/{line[3].id}").status_code == 200
        assert get("/").status_code == 200


@pytest.mark.parametrize("among", [1, 7, 10_000])
def test_a_series_is_read_from_the_newest_revisions_alone(places: Places, among: int) -> None:
    with reading() as session:
        target = target_named(session, places.target)
        whole = queries.series(session, target, places.case, "norms", "h200")
        some = queries.series(
            session, target, places.case, "norms", "h200", places=queries.newest_places(session, target, among)
        )
        newest = session.scalar(select(func.max(Revision.ordinal)).where(Revision.target_id == target.id))
    of_whole = [point for point in whole if point.ordinal > newest - among]
    assert [(point.run_id, point.median) for point in some] == [(point.run_id, point.median) for point in of_whole]
    assert bool(some)
