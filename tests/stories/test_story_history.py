"""The manual of history as a story: a case that becomes slower bit by bit, which no comparison of neighbours sees."""

import pytest
from sqlalchemy import select

from service.db.engine import clock, reading, transaction
from service.db.models import RegressionRow, Revision, Run, Target
from service.domain.states import FoundBy, PointState, RunState
from service.ledger.changepoints import load
from tests import world
from tests.stories.test_story import FAST, WIDE, Story, story  # noqa: F401  (a fixture)
from tests.workers.periodic import run_control
from workers import control

# 10 revisions as they were, 4 that each make wide rows 2 % slower, and 10 more; nobody hears of less than 5 %.
WIDE_US = [round(200 * 1.02 ** min(max(0, place - 9), 4), 2) for place in range(24)]


def measured_earlier(told: Story, sha: str, place: int) -> None:
    """What an earlier worker stored of a revision: its own times, and that its pair was steady."""
    with transaction() as session:
        run = session.execute(select(Run).join(Revision).where(Revision.sha == sha)).scalar_one()
        run.state, run.finished_at, run.notified_state = RunState.DONE, clock(session), RunState.DONE.value
        for case, time_us in ((FAST, 100.0), (WIDE, WIDE_US[place])):
            world.measured(session, run, case, time_us * (1 + 0.002 * ((place * 7) % 5 - 2)))


def test_a_leak_is_found_searched_for_and_told_as_what_it_is(story, monkeypatch):  # noqa: F811
    before = story.git("rev-parse", "HEAD")
    shas = [story.commit(f"work {place}", wide=time_us) for place, time_us in enumerate(WIDE_US)]
    with monkeypatch.context() as patch:
        patch.setattr(control, "work", lambda device: 0)  # those were measured long ago
        story.deliver(*story.push_event(before, shas[-1]))
    for place, sha in enumerate(shas):
        measured_earlier(story, sha, place)
    assert story.open_regressions() == set(), "each step is too small for its pair"

    for _ in range(20):
        run_control()
        if not control.work("cpu"):
            break
    run_control()

    with reading() as session:
        target = session.execute(select(Target)).scalar_one()
        points = load.points(session, target).items
        [regression] = session.execute(select(RegressionRow)).scalars()
    assert {point.row.case for point in points} == {WIDE}
    assert PointState.CONFIRMED in {point.row.state for point in points}
    assert (regression.case, regression.found_by) == (WIDE, FoundBy.HISTORY)
    assert regression.ratio == pytest.approx(1.08, abs=0.05)
    assert story.open_regressions() == {WIDE}
    page = story.api("GET", "/targets/norms").text
    assert "regression" in page
