"""Queries of the ledger, on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.db import models as m
from service.db.engine import reading as reading_only
from service.db.engine import transaction
from service.domain.states import FoundBy, Outcome, PointState, Priority, RunState, TargetKind
from service.ledger.changepoints import load
from service.ledger.reading import board, queries, runs
from service.ledger.reading.runs import RunFilter
from service.ledger.targets import target_named
from tests import world
from tests.dashboards import seed_deciding
from tests.dashboards.seed import CASES, NOW, RECIPE, Seeded, seed


@pytest.fixture
def seeded(either_nightly: str) -> Seeded:
    with transaction() as session:
        return seed(session)


@pytest.fixture
def session(seeded: Seeded) -> Iterator[Session]:
    with reading_only() as session:
        yield session


def test_a_target_at_one_glance(session: Session, seeded: Seeded) -> None:
    card = queries.card(session, target_named(session, seeded.target))
    assert card.devices == ("h200", "cpu")
    assert (card.regressions, card.behind) == (1, 1)
    words = [(line.runs["h200"].word if "h200" in line.runs else None) for line in card.lines]
    assert words == ["leased", "invalid", "improvement", "failed", "regression", "skipped", "steady", "new"]
    slow = card.lines[4].runs["h200"]
    assert slow.counts == {Outcome.REGRESSION: 2, Outcome.INCONCLUSIVE: 1, Outcome.STEADY: 3}
    assert slow.behind == 2


def test_older_revisions_are_asked_for_by_their_place(session: Session, seeded: Seeded) -> None:
    card = queries.card(session, target_named(session, seeded.target), lines=2, before=4)
    assert [line.revision.ordinal for line in card.lines] == [3, 2]


def test_the_newest_run_of_a_revision_is_the_one_that_counts(seeded: Seeded) -> None:
    with transaction() as session:
        first = queries.whole_run(session, seeded.runs["slow"])
        world.again(session, first, state=RunState.QUEUED)
    with reading_only() as session:
        card = queries.card(session, target_named(session, seeded.target))
        assert card.lines[4].runs["h200"].word == "queued"


def test_a_target_without_anything(session: Session, seeded: Seeded) -> None:
    target = target_named(session, seeded.empty)
    card = queries.card(session, target)
    assert (card.devices, card.lines, card.regressions) == ((), (), 0)
    assert queries.measured_series(session, target) == []


def test_a_series_runs_along_the_mainline(session: Session, seeded: Seeded) -> None:
    points = queries.series(session, target_named(session, seeded.target), CASES[1], "norms", "h200")
    assert [point.outcome for point in points] == ["new", "steady", "regression", "improvement", "invalid"]
    assert [point.ordinal for point in points] == sorted(point.ordinal for point in points)
    assert points[2].ratio == pytest.approx(1.214)
    assert points[2].sota_median == pytest.approx(121.0)
    assert points[4].median is None, "a wrong result has no time"
    assert queries.series(session, target_named(session, seeded.target), CASES[1], "norms", "b200") == []


def test_a_later_run_of_another_suite_hides_no_case(seeded: Seeded) -> None:
    with transaction() as session:
        target = target_named(session, seeded.target)
        before = queries.series(session, target, CASES[1], "norms", "h200")
        first = queries.whole_run(session, seeded.runs["slow"])
        smoke = world.again(session, first, suite="smoke")
        world.measured(session, smoke, CASES[0], 7.0)
        assert queries.series(session, target, CASES[1], "norms", "h200") == before
        points = queries.series(session, target, CASES[0], "norms", "h200")
        assert [point.run_id for point in points if point.median == 7.0] == [smoke.id]


def test_the_runs_of_a_commit_are_found_by_its_beginning(session: Session, seeded: Seeded) -> None:
    target = target_named(session, seeded.target)
    wanted = queries.whole_run(session, seeded.runs["slow"])
    sha = wanted.revision.sha
    for named in (sha, sha[:10], sha[:4].upper()):
        assert [run.id for run in runs.listed(session, RunFilter(target, revision=named)).items] == [wanted.id]
    assert [run.id for run in runs.listed(session, RunFilter(target, "h200", revision=sha)).items] == [wanted.id]
    for unknown in ("f" * 40, sha[:3], "%%%%", sha[:9] + "\0"):
        assert runs.listed(session, RunFilter(target, revision=unknown)).items == ()


def test_a_version_is_named_whole(seeded: Seeded) -> None:
    with transaction() as session:
        target = target_named(session, seeded.target)
        target.kind = TargetKind.PACKAGE
        sha = queries.whole_run(session, seeded.runs["slow"]).revision.sha
        assert runs.listed(session, RunFilter(target, revision=sha[:10])).items == ()
        assert runs.listed(session, RunFilter(target, revision=sha)).items


def test_pull_requests_stay_out_of_the_series(session: Session, seeded: Seeded) -> None:
    points = queries.series(session, target_named(session, seeded.target), CASES[0], "norms", "h200")
    assert seeded.runs["pull"] not in {point.run_id for point in points}
    off = {one.run.id for one in queries.aside(session, target_named(session, seeded.target))}
    assert off == {seeded.runs["pull"], seeded.runs["held"]}


def test_a_gap_knows_since_when(session: Session, seeded: Seeded) -> None:
    [gap] = queries.gaps(session).items
    assert (gap.target, gap.gap.case) == ("norms", CASES[3])
    assert gap.since
    assert gap.since.subject == "Norms in Triton, a first version"


def test_the_queue_has_what_is_measured_first_and_what_is_held_last(session: Session, seeded: Seeded) -> None:
    waiting = [run.id for run in queries.queue(session).items]
    assert waiting == [seeded.runs[name] for name in ("running", "queued", "held")]
    cpu, h200 = queries.waiting(session)
    assert (cpu.device, cpu.queued, h200.leased, h200.held) == ("cpu", 1, 1, 1)
    assert cpu.oldest_s > 0
    assert queries.ahead_of(session, queries.whole_run(session, seeded.runs["queued"])) == 0


def test_a_pull_request_hears_of_all_its_devices_at_once(seeded: Seeded) -> None:
    with transaction() as session:
        pull = queries.whole_run(session, seeded.runs["pull"])
        for _ in ("older", "newer"):
            world.run(session, pull.revision, pull=7, priority=Priority.PULL_REQUEST, created_at=NOW)
        reports = queries.pull_reports(session, pull)
    assert [one.device for one in reports] == ["h200", "cpu"]
    assert reports[1].run_id == max(reports[0].run_id, reports[1].run_id)


def test_a_recipe_of_another_version_does_not_break_the_page(seeded: Seeded) -> None:
    with transaction() as session:
        session.get_one(m.RecipeRow, 1).text = RECIPE + "\n[from_the_future]\n"
    with reading_only() as session:
        assert queries.card(session, target_named(session, seeded.target)).devices == ("cpu", "h200")


def test_what_deciding_left_is_read_from_both_databases(either: str) -> None:
    with transaction() as session:
        decided = seed_deciding.seed(session)
    with reading_only() as session:
        target = target_named(session, decided.target)
        standing = queries.card(session, target).standing
        assert {state.value: n for state, n in standing.items()} == {"open": 1, "acknowledged": 1, "blamed": 1}
        found = queries.found_in(session, decided.runs["fast"])
        [slow] = found.slow_before
        assert slow.known
        assert slow.known.regression == 4
        assert slow.as_before().endswith("(regression 4): not caused by this revision")
        assert [row.case for row in found.slower_than_pinned] == [CASES[4]]
        assert [row.case for row in found.quarantined] == [CASES[0]]
        assert ("quarantined", "1 quarantined") in found.tally
        assert found.policy_version == found.policy.digest[:10]
        [glance] = queries.glances(session, [queries.whole_run(session, decided.runs["fast"])])
        assert Outcome.INCONCLUSIVE not in glance.counts, "of what is quarantined nobody hears"
        assert glance.behind == 1, "behind the best of the baselines is another flag"
        [one] = load.points_of(session, target, CASES[2], "norms", "h200")
        assert one.row.state is PointState.CLOSED
        watched = queries.runs_of(session, queries.whole_run(session, decided.runs["slow"]).revision_id)
        assert [run.id for run in watched] == [decided.runs["slow"]], "no steps of searches"


def test_a_run_names_the_records_that_its_verdicts_rest_on(state: Path) -> None:
    with transaction() as session:
        decided = seed_deciding.seed(session)
        crept = session.get_one(m.RegressionRow, 4)
        crept.good = "f" * 40  # another comparison than the one that this run repeated
        pair = session.get_one(m.RegressionRow, 1)
        leak = m.RegressionRow(series_id=pair.series_id, run_id=pair.run_id, ratio=1.3, opened_at=pair.opened_at)
        leak.found_by = FoundBy.PINNED
        session.add(leak)
    with reading_only() as session:
        [row] = queries.found_in(session, decided.runs["fast"]).slow_before
        assert row.known is None
        assert row.as_before() == "already slow: not caused by this revision"
        rows = queries.found_in(session, decided.runs["slow"]).regressions
        assert {one.regression for one in rows} == {1, 2}, "what the pair found, whatever else was found there"


def test_a_long_history_is_read_at_even_distances(either_nightly: str) -> None:
    target = world.target()
    with transaction() as session:
        session.add_all(
            m.Revision(
                target_id=target.id,
                sha=f"{ordinal:040}",
                ordinal=ordinal,
                subject="",
                author="",
                paths=[],
                committed_at=NOW + ordinal,
            )
            for ordinal in range(10)
        )
        for count, expected in ((4, [0, 3, 6, 9]), (10, list(range(10))), (1, [9])):
            places = queries.spread_places(session, target, count)
            found = session.scalars(select(m.Revision.ordinal).where(m.Revision.target_id == target.id, places.where))
            assert sorted(found) == expected
        assert queries.spread_places(session, target, 4).every == 3


def test_devices_are_those_of_the_runs(session: Session, seeded: Seeded) -> None:
    target = target_named(session, seeded.target)
    known = session.scalars(select(m.Run.device).where(m.Run.target_id == target.id).distinct().order_by(m.Run.device))
    assert queries.devices(session, target) == known.all()
    assert queries.devices(session, target_named(session, seeded.empty)) == []
    assert board.measured_devices(session, target) == ["cpu", "h200"]


def test_the_newest_totals_that_compared_with_sota_are_found(session: Session, seeded: Seeded) -> None:
    target = target_named(session, seeded.target)
    newest = session.scalars(
        select(func.max(m.RunTotals.run_id))
        .join(m.Run, m.Run.id == m.RunTotals.run_id)
        .where(m.RunTotals.target_id == target.id, m.RunTotals.sota_cases > 0, m.WATCHED)
        .group_by(m.RunTotals.device)
        .order_by(m.RunTotals.device)
    )
    assert [one.run_id for one in board.newest_compared(session, [target.id])] == newest.all()
