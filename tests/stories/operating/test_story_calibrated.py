"""Calibrations as part of the story: what a worker may block before and after it has compared equal code."""

import math
from pathlib import Path
from typing import ClassVar

import pytest
from sqlalchemy import select

from service.db.engine import clock, transaction
from service.db.models import Calibration, Revision
from service.domain.states import Equal, Purpose, RunState
from service.domain.verdicts.calibration import MIN_CALIBRATIONS, student
from service.ledger.intake import calibrations, second_sessions
from tests import world
from tests.stories import test_story
from tests.stories.test_story import FAST, WIDE, told
from workers import control


class Blocking(test_story.Story):
    """A repository whose slower pull requests may not be merged."""

    recipe: ClassVar = test_story.RECIPE.replace("screening = [3, 5]", "screening = [4]\nblocking = true")


@pytest.fixture
def story(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with told(Blocking, tmp_path, monkeypatch) as story:
        yield story


def test_a_new_worker_answers_at_once_and_blocks_once_it_has_calibrated_itself(story):
    slow = story.pull(7, action="opened", wide=300.0)
    assert story.outcomes(slow)[WIDE] == "regression", "nobody waits for a calibration"
    assert story.status(slow).startswith("success: 1 of 2 cases")
    [comment] = story.said(7)
    assert "**The check is neutral: it blocks nothing.**" in comment
    assert "Provisional: times block nothing until the worker has compared equal code" in comment
    page = story.api("GET", f"/runs/{story.run_of(slow).id}").text
    assert "Provisional: times block nothing" in page

    for _ in range(MIN_CALIBRATIONS):
        assert calibrations.plan_due() == 1, "without being told to"
        story.settle()
    assert calibrations.plan_due() == 0
    made = [run for run in story.runs() if run.purpose is Purpose.CALIBRATION]
    assert [run.state.value for run in made] == ["done"] * MIN_CALIBRATIONS

    slower = story.pull(7, wide=320.0)
    assert story.status(slower).startswith("failure: 1 of 2 cases")
    [comment] = story.said(7)
    assert "Provisional" not in comment


def sessions_have_differed(by: float) -> None:
    """In eight calibrations of the worker each copy and each build of a case was off by this log-ratio, either way."""
    with transaction() as session:
        now, revision = clock(session), session.scalars(select(Revision)).first()
        for number in range(8):
            ended = {"started_at": now - 900.0, "finished_at": now - 800.0 + number, "worker": control.name()}
            run = world.run(session, revision, purpose=Purpose.CALIBRATION, state=RunState.DONE, **ended)
            for case, sign in ((FAST, 1 if number % 2 else -1), (WIDE, 1 if number % 4 < 2 else -1)):
                effects = [sign * by + noise for noise in (-0.008, -0.004, 0.004, 0.008)]  # more than today
                compared = {
                    "ratio": math.exp(sign * by),
                    "p": student(effects),
                    "trials": len(effects),
                    "alarmed": False,
                }
                for kind in Equal:
                    of_series = world.series(session, run.target_id, case)
                    of_run = {"run_id": run.id, "worker": control.name(), "at": run.finished_at, "kind": kind}
                    session.add(Calibration(series_id=of_series, **of_run, **compared))


def test_what_offsets_of_earlier_sessions_leave_open_gets_a_second_session_when_nothing_else_waits(story):
    sessions_have_differed(by=0.02)
    head = story.pull(7, action="opened", wide=201.5)
    first = story.run_of(head)
    assert story.outcomes(head)[WIDE] == "inconclusive"
    [comment] = story.said(7)
    assert "a second session could decide: it follows automatically when the device is idle" in comment

    with transaction() as session:
        waiting = world.run(session, session.get_one(Revision, first.revision_id))
    assert second_sessions.plan_due() == 0, "a run of somebody waits"
    with transaction() as session:
        session.delete(session.merge(waiting))

    assert (second_sessions.plan_due(), second_sessions.plan_due()) == (1, 0)
    story.settle()
    second = story.run_of(head)
    assert (second.second_of, second.pull, second.baseline) == (first.id, 7, first.baseline)
    assert story.outcomes(head)[WIDE] == "steady", "the mean over both sessions and builds has smaller offsets"
    [comment] = story.said(7)
    assert f"Second session of run {first.id}: offsets of sessions and builds are averaged over both" in comment
    assert second_sessions.plan_due() == 0, "never more than two"
    assert story.api("GET", f"/api/v1/runs/{second.id}").json()["second_of"] == first.id


def test_a_newer_head_needs_no_second_session_of_the_older_one(story):
    sessions_have_differed(by=0.02)
    older = story.pull(7, action="opened", wide=201.5)
    story.pull(7, wide=240.0)
    second_sessions.plan_due()
    assert len(story.runs(older)) == 1
