"""Calibrations as part of the story: what a worker may block before and after it has compared equal code."""

from pathlib import Path
from typing import ClassVar

import pytest

from service.domain.states import Purpose
from service.domain.verdicts.calibration import MIN_CALIBRATIONS
from service.ledger.intake import calibrations
from tests.stories import test_story
from tests.stories.test_story import WIDE, told


class Blocking(test_story.Story):
    """A repository whose slower pull requests may not be merged."""

    recipe: ClassVar = f"{test_story.RECIPE}blocking = true\n"


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
