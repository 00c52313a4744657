"""Releases, false alarms and drifts of a week, as the ledger and the report show them."""

import pytest

from kernelwatch.documents.weekly import WeeklyDocument
from service.db.engine import reading, transaction
from service.db.models import Target
from service.domain.states import RunState, TargetKind
from service.domain.verdicts.calibration import Rate
from service.domain.weekly.weeks import Week
from service.ledger.reading import weekly
from service.reports.weekly import words
from service.reports.weekly.report import compose, markdown
from tests import world

WEEK = Week.parse("2026-W47")
CASE = "rmsnorm.fwd.64x4096.bf16"
DAY_S = 86_400.0
pytestmark = pytest.mark.usefixtures("either_nightly")


def document(week: Week = WEEK, target: Target | None = None, device: str | None = None) -> WeeklyDocument:
    with reading() as session:
        return compose(weekly.facts(session, week, target, device))


def released(target: Target, version: str, at: float, *measured_at: float) -> list[int]:
    """Release a version, and measure it at these times."""
    with transaction() as session:
        revision = world.commit(session, target.id, version, committed_at=at)
        runs = [world.run(session, revision, state=RunState.DONE, finished_at=when) for when in measured_at]
        return [run.id for run in runs]


def test_a_week_has_the_releases_that_appeared_or_were_measured_first_in_it(either_nightly: str) -> None:
    quack = world.target(name="quack", kind=TargetKind.PACKAGE, package="quack-kernels")
    before, inside, after = WEEK.start - DAY_S, WEEK.start + DAY_S, WEEK.end + DAY_S
    [first, _] = released(quack, "0.3.0", before, inside, inside + 60)
    released(quack, "0.2.9", before, before + 60, inside)  # measured again
    [new] = released(quack, "0.3.1", inside, inside + 60)
    released(quack, "0.3.2", inside + 1, after)
    released(world.target(name="norms"), "c0", inside, inside)  # a commit

    found = document()
    assert [(one.version, one.run_id) for one in found.releases] == [("0.3.2", None), ("0.3.1", new), ("0.3.0", first)]
    text = markdown(found, "https://kw.example")
    assert f"quack [`0.3.0`](https://kw.example/runs/{first})" in text
    assert "`0.3.2` (not measured)" in text
    assert [one.version for one in document(WEEK.next).releases] == ["0.3.2"], "it is measured in the week after"


def drift(target: Target, place: int, at: float, device: str = "cpu") -> int:
    """A run that chose another configuration than the run of the same commit before it."""
    with transaction() as session:
        earlier, later = (world.run(session, world.commit(session, target.id, place)) for _ in range(2))
        later.device = device
        world.drift(session, later, earlier, CASE, at=at, now="_forward num_warps=8 | x")
        return later.id


def test_a_week_has_the_drifts_of_its_runs(either_nightly: str) -> None:
    norms, other = world.target(name="norms"), world.target(name="other")
    drift(norms, 0, WEEK.start - 1)
    runs = [drift(norms, place, WEEK.start + place) for place in range(weekly.MAX_LISTED + 3)]
    drift(other, 0, WEEK.start + 1, device="h200")
    found = document(target=norms)
    assert [one.run_id for one in found.drifts] == runs[: -weekly.MAX_LISTED - 1 : -1], "the newest first"
    assert found.counts.drifts == len(runs)
    assert [one.target for one in document(device="h200").drifts] == ["other"]
    text = markdown(found, "https://kw.example")
    assert f"[{runs[-1]}](https://kw.example/runs/{runs[-1]}) after" in text
    assert r"`_forward num_warps=8 \| x`" in text, "a bar must not end the cell"
    assert "3 older." in text


@pytest.mark.parametrize(
    ("decided", "dismissed", "summary"),
    [
        (0, 0, "No regression was fixed, accepted or dismissed"),
        (8, 2, "2 of 8 decided regressions were dismissed as false alarms: 25 % (3.2 to 65 % with 95 % certainty)"),
        (1, 1, "1 of 1 decided regression was dismissed as a false alarm: 100 % (2.5 to 100 % with 95 % certainty)"),
    ],
)
def test_the_share_of_dismissed_regressions_has_its_numbers(decided: int, dismissed: int, summary: str) -> None:
    assert words.false_alarms(Rate(decided, dismissed, dismissed)) == summary
