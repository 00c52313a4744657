"""What becomes of results that are not exact enough: their times are told, and are nobody's baseline."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.stories.test_story import FAST, WIDE, Story, told

WRONG = "dweight is wrong by 3.1e-03"


class WrongFromTheFirst(Story):
    """A repository whose first revision sums in bf16."""

    first: ClassVar[dict[str, object]] = {"fast": f"inexact 50.0: {WRONG}", "wide": 90.0}

    def document(self, sha: str) -> dict:
        return self.api("GET", f"/api/v1/runs/{self.run_of(sha).id}").json()


@pytest.fixture
def story(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WrongFromTheFirst]:
    with told(WrongFromTheFirst, tmp_path, monkeypatch) as story:
        yield story


def test_right_results_that_cost_time_are_never_green(story):
    """Partial sums in bf16 were replaced by fp32 atomics, and nobody saw the time, because the parent was wrong."""
    slower = story.pull(7, action="opened", fast=80.0)

    assert story.outcomes(slower) == {FAST: "new", WIDE: "steady"}
    [comment] = story.said(7)
    first, rest = comment.split("\n\n", 1)
    assert first.startswith("### ✗ [kernelwatch, CPU: 1 of 2 cases ")
    assert "correct now, but" in first
    assert f"the parent was wrong ({WRONG}) and took" in rest
    assert "correct now, it takes" in rest
    assert "Nothing to do" not in comment
    document = story.document(slower)
    gate = document["gate"]
    assert [gate[name] for name in ("state", "exit_code", "conclusion")] == ["warn", 0, "neutral"]
    assert [one["kind"] for one in gate["reasons"]] == ["slower-than-wrong"]
    assert "1 of 2 cases correct now, but " in document["headline"]
    [against] = [one for one in document["verdicts"] if one["baseline_kind"] == "wrong_parent"]
    assert against["ratio"] == pytest.approx(1.6, rel=0.05)
    assert "correct, slower" in story.api("GET", f"/runs/{document['id']}").text


def test_the_time_of_a_wrong_result_is_nobodys_baseline(story):
    slower = story.pull(7, action="opened", fast=80.0)

    where = f"/api/v1/runs/{story.run_of(slower).id}/samples?contender=parent:norms&case={FAST}"
    samples = story.api("GET", where).json()
    assert (samples["state"], samples["median"]) == ("invalid", None)
    assert len(samples["apart"]) >= 3
    assert all(samples["apart"])
    assert story.open_regressions() == set()


def test_wrong_results_that_become_right_at_the_same_speed_are_good_news(story):
    right = story.pull(7, action="opened", fast=50.0)

    document = story.document(right)
    assert document["gate"]["state"] == "pass"
    comment = story.api("GET", f"/api/v1/runs/{document['id']}/comment").text
    assert "1 of 2 cases correct now, and wrong before" in comment.splitlines()[0]
    assert "Nothing to do" not in comment


def test_results_that_stay_wrong_and_become_slower_are_told(story):
    slower = story.pull(7, action="opened", fast=f"inexact 80.0: {WRONG}")

    assert story.outcomes(slower) == {FAST: "invalid", WIDE: "steady"}
    document = story.document(slower)
    assert (document["gate"]["state"], document["gate"]["exit_code"]) == ("warn", 0)
    assert {one["kind"] for one in document["gate"]["reasons"]} == {"invalid", "slower-than-wrong"}


def test_a_new_case_that_is_far_behind_the_best_known_implementation_is_amber(story):
    """The first revision at which a case is right has nothing to be slower than, but for other people's code."""
    slow = story.pull(7, action="opened", fast=375.0)

    document = story.document(slow)
    assert document["gate"]["state"] == "warn"
    assert "new-far-behind" in {one["kind"] for one in document["gate"]["reasons"]}
    assert "far behind inductor" in document["headline"]
