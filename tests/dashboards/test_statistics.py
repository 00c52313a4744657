"""The page that explains the statistics: its error rates are those of the ledger that the reader may see."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, update

from service.db.engine import clock, reading, transaction
from service.db.models import Calibration, RegressionRow, Run, Target
from service.domain.states import PointReason, PointState, RegressionState
from service.ledger.calibration.error_rates import error_rates, newest_example
from tests import world
from tests.dashboards import seed_deciding
from tests.dashboards.asking import words
from tests.dashboards.seed import watched
from tests.fakes.api import Api

CASE = "rmsnorm.fwd.64x4096.bf16"
DAY_S = 86_400.0


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with watched(tmp_path, seed_deciding.seed):
        yield Api()


def test_rates_count_what_was_wrong_since_a_time(either_nightly: str) -> None:
    target = world.target()
    with transaction() as session:
        now = clock(session)
        run = world.run(session, world.commit(session, target.id, 1))
        for number, (alarmed, age) in enumerate(((True, 0), (False, 0), (False, 0), (True, 40))):
            series = world.series(session, target.id, f"rmsnorm.fwd.{number + 1}x64.bf16")
            row = Calibration(run_id=run.id, series_id=series, worker="one", ratio=1.0, p=0.5, trials=3)
            row.alarmed, row.at = alarmed, now - age * DAY_S
            session.add(row)
        for state in (RegressionState.DISMISSED, RegressionState.OPEN):
            world.regression(session, run, CASE, opened_at=now, state=state)
        for place, (state, code) in enumerate(
            (
                (PointState.CLOSED, PointReason.CONTRADICTED),
                (PointState.CLOSED, PointReason.PART),
                (PointState.OPEN, None),
                (PointState.CONFIRMED, None),
            )
        ):
            sides = [world.commit(session, target.id, 10 + 2 * place + one) for one in (0, 1)]
            told = {"state": state, "refuted_scans": 1, "reason_code": code}
            world.change_point(session, *sides, CASE, found_at=now, **told)
    with reading() as session:
        found = error_rates(session, now - 30 * DAY_S)
        assert newest_example(session) is None, "no run is done"
    [equal] = found.equal_code
    assert (equal.device, equal.rate.comparisons, equal.rate.alarmed) == ("cpu", 3, 1)
    assert (found.dismissed.comparisons, found.dismissed.differed) == (2, 1)
    assert (found.retracted.comparisons, found.retracted.differed) == (4, 1), "explained is not retracted"
    assert found.suspicions.comparisons == found.not_repeated.comparisons == 0


def test_suspicions_that_fresh_trials_did_not_confirm(either_nightly: str) -> None:
    target = world.target()
    with transaction() as session:
        run = world.run(session, world.commit(session, target.id, 1), state="done")
        pull = world.run(session, world.commit(session, target.id, 2), state="done", pull=7)
        for of in (run, pull):
            world.judged(session, of, CASE, suspected=True, confirmed=True, ratio=1.1, low=1.05, high=1.15)
            world.judged(session, of, f"{CASE}.call", suspected=True, ratio=1.0, low=0.9, high=1.1)
            world.judged(session, of, "rmsnorm.fwd.8x64.bf16", ratio=1.0, low=0.9, high=1.1)
    with reading() as session:
        rate = error_rates(session, 0.0).suspicions
        example = newest_example(session)
    assert (rate.comparisons, rate.differed) == (2, 1), "of the mainline alone"
    assert example is not None
    assert (example.run.id, example.verdict.case) == (run.id, CASE), "a confirmed change says most"


def test_the_page_shows_the_newest_run_with_links_that_work(api: Api) -> None:
    page = api.at("/statistics")
    assert page.status_code == 200
    assert "Measured here:" in words(page)
    with reading() as session:
        example = newest_example(session)
    assert example is not None
    links = set(re.findall(r'<a href="(/(?:runs|calibration|regressions)[^"]*)"', page.text))
    assert any(link.startswith(f"/runs/{example.run.id}/cases/") for link in links)
    for link in links:
        assert api.at(link.replace("&amp;", "&")).status_code == 200, link
    for other in ("/calibration", "/weekly", "/"):
        assert 'href="/statistics"' in api.at(other).text


@pytest.mark.parametrize(("days", "counts"), [(29, True), (31, False)])
def test_the_page_counts_what_was_decided_in_thirty_days(api: Api, days: int, counts: bool) -> None:
    with transaction() as session:
        session.execute(update(RegressionRow).values(opened_at=clock(session) - days * DAY_S))
    assert ("No regression was opened." not in words(api.at("/statistics"))) is counts


def test_a_private_target_is_in_no_rate(api: Api) -> None:
    with transaction() as session:
        session.execute(update(Target).values(private=True))
        assert session.scalar(select(Run.id).limit(1)) is not None
        names = session.scalars(select(Target.name)).all()
    reader = api.with_key("read:norms")
    hidden = words(api.at("/statistics"))
    assert "The newest run" not in hidden
    assert "No regression was opened." in hidden
    assert "0 quarantined cases" in hidden
    assert "kernelwatch calibration start TARGET --device DEVICE" in hidden
    assert not any(f"/{name}" in hidden for name in names)
    assert "No regression was opened." not in words(reader.at("/statistics"))
