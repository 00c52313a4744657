"""Releases, false alarms and drifts of a week, as the ledger and the report show them."""

import pytest

from kernelwatch.documents.weekly import WeeklyDocument
from service.db.engine import reading, transaction
from service.db.models import Run, Target
from service.domain.regressions.lifecycle import Action, Transition
from service.domain.states import FoundBy, Purpose, RunState, TargetKind
from service.domain.verdicts.calibration import Rate
from service.domain.weekly.weeks import Week
from service.ledger.reading import weekly
from service.ledger.regressions.transitions import Opening, Slower, change, open_all
from service.reports.weekly import words
from service.reports.weekly.report import compose, digest, markdown
from tests import world
from tests.dashboards.asking import asking
from tests.dashboards.asking import words as text_of

WEEK = Week.parse("2026-W47")
CASE = "rmsnorm.fwd.64x4096.bf16"
DAY_S = 86_400.0
pytestmark = pytest.mark.usefixtures("either_nightly")


def document(week: Week = WEEK, target: Target | None = None, device: str | None = None) -> WeeklyDocument:
    with reading() as session:
        facts = weekly.facts(session, week, target, device)
        if device is None:
            assert digest(weekly.sums(session, week, target)) == digest(facts), "a feed says what the report says"
        return compose(facts)


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


OTHERS = ("rmsnorm.fwd.64x1024.bf16", "rmsnorm.fwd.64x2048.bf16")


def slowed(target: Target, place: int, **cases: tuple[float, float]) -> int:
    """A run of the mainline of the week that found these cases slower: ratio and median of each."""
    with transaction() as session:
        at = WEEK.start + DAY_S * place
        revision = world.commit(session, target.id, place, subject=f"work {place}", committed_at=at)
        run = world.run(session, revision, state=RunState.DONE, finished_at=at, purpose=Purpose.WATCH)
        for case, (ratio, median) in cases.items():
            world.judged(session, run, case, outcome="regression", ratio=ratio, confirmed=True)
            world.measured(session, run, case, median)
        return run.id


def test_each_revision_has_its_own_step_of_a_case_that_two_made_slower() -> None:
    norms = world.target(name="norms")
    first = slowed(norms, 1, **{CASE: (1.472, 147.2), OTHERS[0]: (1.1, 11.0)})
    second = slowed(norms, 2, **{CASE: (1.226, 180.5)})
    found = document()
    steps = [(one.run_id, one.cases, one.case, one.ratio) for one in found.slower]
    assert steps == [(first, 2, CASE, 1.472), (second, 1, CASE, 1.226)]
    assert [one.case_stake_us for one in found.slower] == pytest.approx([47.2, 33.27], abs=0.01)
    [total] = found.totals
    assert total.slower_us == pytest.approx(sum(one.stake_us for one in found.slower)), "every sum is that of the list"
    assert (total.slower_cases, found.counts.slower) == (3, 3)

    longest, shorter = (words.bar(one, found) for one in found.slower)
    assert (longest, shorter) == ("█" * 8, "█████▌")
    text = markdown(found, "https://kw.example")
    assert words.STAKE in text
    for one, bar in zip(found.slower, (longest, shorter), strict=True):
        assert f"/runs/{one.run_id}) work {one.revision[1:]} | {words.at_stake(one.stake_us)} {bar} |" in text


def test_an_incident_is_listed_once_whatever_became_of_its_cases() -> None:
    norms = world.target(name="norms")
    cases = (CASE, *OTHERS)
    run_id = slowed(norms, 1, **dict.fromkeys(cases, (1.2, 12.0)))
    fixing = slowed(norms, 2)
    noon = WEEK.start + DAY_S * 1.5
    with transaction() as session:
        run = session.get_one(Run, run_id)
        slower = [Opening(run, Slower("norms", case, 1.2), FoundBy.PAIR, good="c0") for case in cases]
        rows = open_all(session, slower, noon)
        change(session, rows[1], Transition(Action.ACKNOWLEDGE, who="ada", words="exact sums"), noon + 1)
        change(session, rows[2], Transition(Action.FIX, run_id=fixing), noon + 2)
        incident = rows[0].incident_id

    found = document()
    [one] = found.regressions
    assert (one.incident_id, one.cases, one.opened, one.open, one.state) == (incident, 3, 3, 2, "open")
    assert [(each.state, each.cases) for each in one.decisions] == [("acknowledged", 1), ("fixed", 1)]
    course = "opened; 1 accepted by ada: exact sums; 1 fixed by c2; 1 still open"
    assert words.course(one) == course
    assert markdown(found, "https://kw.example").count(f"/incidents/{incident}") == 1
    page = asking()(f"/weekly/{WEEK}")
    assert page.text.count(f'"/incidents/{incident}"') == 1
    assert course in text_of(page)
    assert found.headline == "3 regressions opened, 1 fixed and 1 accepted"

    [later] = document(WEEK.next).regressions
    assert (later.cases, later.opened, later.open, later.decisions) == (2, 0, 2, [])
    assert words.course(later) == "still open"


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
