"""What the ledger knows of the present state: read in few queries, hidden from those who may not know of it."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from service.db.engine import clock, engine, reading, transaction
from service.db.models import Gap, Incident, OutboxMessage, RegressionRow, Run, Target, Worker
from service.db.visibility import hiding
from service.domain.health.overview import Mark
from service.domain.states import OutboxState, RegressionState, RunState
from service.ledger.health.overview import health_facts
from service.reports.health.facts import HealthFacts
from service.reports.health.needs import Disk, needs
from tests import world
from tests.big.seed import seed
from tests.big.story import SMALL

CASE = "rmsnorm.fwd.4096x1024.bf16"
DAY = 86_400.0
MAX_QUERIES = 24


def facts() -> HealthFacts:
    with reading() as session:
        return health_facts(session)


def done(session: Session, target: Target, place: int, ago_s: float, ratio: float = 1.0, **columns: Any) -> Run:
    """A measured revision, with a verdict against its parent and one against SOTA."""
    at = clock(session) - ago_s
    commit = world.commit(session, target.id, place, committed_at=at)
    usual = {"state": RunState.DONE, "started_at": at - 300, "finished_at": at, "attempt": 1}
    run = world.run(session, commit, **usual | columns)
    if run.state is RunState.DONE:
        outcome = "regression" if ratio > 1.02 else "steady"
        world.judged(session, run, CASE, outcome=outcome, ratio=ratio)
        world.judged(session, run, CASE, baseline_kind="sota", baseline="quack", ratio=1.5 * ratio, behind_sota=True)
    return run


def regressed(session: Session, run: Run, incident: Incident | None = None, **columns: Any) -> RegressionRow:
    usual = {"case": CASE, "opened_at": clock(session), "incident_id": incident.id if incident else None}
    return world.regression(session, run, **usual | columns)


def test_the_strip_and_the_mean_of_a_target(either_nightly: str) -> None:
    target = world.target()
    with transaction() as session:
        done(session, target, 0, 9 * DAY)
        done(session, target, 1, 2 * DAY)
        done(session, target, 2, 5 * 3600, ratio=1.1)
        done(session, target, 3, 3600, state=RunState.FAILED)
        world.commit(session, target.id, 4)
        world.totalled(session)
    [one] = facts().targets
    marks = [revision.mark for revision in one.revisions]
    assert marks == [Mark.STEADY, Mark.STEADY, Mark.SLOWER, Mark.FAILED, Mark.UNMEASURED]
    assert one.newest["cpu"].cases == 1
    assert one.newest["cpu"].sota == "quack"
    assert one.means["cpu"].ratio == pytest.approx(1.65)
    week, day = one.a_week_ago["cpu"].mean, one.a_day_ago["cpu"].mean
    assert [mean and mean.ratio for mean in (week, day)] == pytest.approx([1.5, 1.5])
    assert [run.sha for run in one.failed] == ["c3"]


def test_a_strip_ends_after_thirty_revisions(either_nightly: str) -> None:
    target = world.target()
    with transaction() as session:
        for place in range(33):
            done(session, target, place, DAY)
        world.totalled(session)
    [one] = facts().targets
    assert [revision.ordinal for revision in one.revisions] == list(range(3, 33))


def test_the_newest_run_of_a_revision_counts(either_nightly: str) -> None:
    target = world.target()
    with transaction() as session:
        done(session, target, 0, DAY, ratio=1.3)
        done(session, target, 0, 3600)
        world.totalled(session)
    [one] = facts().targets
    assert [revision.mark for revision in one.revisions] == [Mark.STEADY]


def test_one_revision_is_one_incident_on_all_devices(either_nightly: str) -> None:
    target = world.target()
    with transaction() as session:
        for device, ratio in (("h200", 1.3), ("h100", 1.2)):
            run = done(session, target, 5, 600, device=device)
            incident = Incident(
                target_id=target.id, device=device, revision_id=run.revision_id, opened_at=1.0, cause_text="it spills"
            )
            session.add(incident)
            session.flush()
            regressed(session, run, incident, ratio=ratio, assignee="ada" if device == "h100" else None)
            regressed(
                session, run, incident, ratio=1.02, case="layernorm.fwd.8x8.bf16", state=RegressionState.ACKNOWLEDGED
            )
        other = done(session, target, 6, 300, device="h200")
        regressed(session, other, ratio=1.9, state=RegressionState.FIXED, fixed_at=clock(session), fixed_by=other.id)
        regressed(session, other, ratio=1.05)
    known = facts()
    first, second = known.incidents
    assert (first.devices, first.count, first.accepted, first.sha) == ({"h200", "h100"}, 2, 2, "c5")
    assert (first.low, first.high, first.assigned, first.assignees) == (1.2, 1.3, 1, {"ada"})
    assert first.worst is not None
    assert (first.worst.ratio, first.worst.cause) == (1.3, "it spills")
    assert (second.run_id, second.count, second.sha) == (other.id, 1, "c6")
    assert second.worst is not None
    [fixed] = known.fixed
    assert (fixed.count, fixed.run_id, fixed.sha) == (1, other.id, "c6")


def test_messages_that_wait_and_those_that_were_given_up(either_nightly: str) -> None:
    target = world.target(forge="example/norms")
    with transaction() as session:
        now = clock(session)
        old = done(session, target, 0, 3600)
        new = done(session, target, 1, 10)
        for key, run, state, error in (
            ("a", old, OutboxState.WAITING, "502"),
            ("b", new, OutboxState.WAITING, None),
            ("c", old, OutboxState.FAILED, "403"),
            ("d", old, OutboxState.SENT, None),
        ):
            message = OutboxMessage(key=key, kind="check", target_id=target.id, run_id=run.id, payload={}, state=state)
            message.error, message.created_at = error, now
            session.add(message)
    found = {one.state: (one.count, one.error, one.run_id) for one in facts().unsent}
    assert found == {OutboxState.WAITING: (1, "502", old.id), OutboxState.FAILED: (1, "403", old.id)}


def test_a_queue_in_time(either_nightly: str) -> None:
    target = world.target()
    with transaction() as session:
        now = clock(session)
        done(session, target, 0, 3600)
        world.totalled(session)
        for place in (1, 2, 3):
            world.run(session, world.commit(session, target.id, place), created_at=now - 60)
        held = world.run(session, world.commit(session, target.id, 9), state=RunState.HELD, pull=4, created_at=now - 9)
        session.add(Worker(name="box/cpu-0", device="cpu", description="", started_at=now, seen_at=now))
    queues = facts().queues
    [cpu] = queues.devices
    assert (cpu.queued, cpu.taken) == (3, True)
    assert cpu.ends_in_s == pytest.approx(900, abs=30)
    [approval] = queues.held
    assert (approval.target, approval.count, approval.first_run_id, approval.pulls) == ("norms", 1, held.id, 1)


@pytest.fixture
def sent(either_nightly: str) -> Iterator[list[str]]:
    """The SQL that the test sends."""
    statements = list[str]()

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(engine(), "before_cursor_execute", note)
    yield statements
    event.remove(engine(), "before_cursor_execute", note)


def test_the_number_of_queries_does_not_grow(sent: list[str]) -> None:
    facts()
    of_nothing = len(sent)
    with transaction() as session:
        seed(session, SMALL)
    sent.clear()
    facts()
    assert of_nothing < len(sent) <= MAX_QUERIES
    assert not [one for one in sent if "FROM measurements" in one or "FROM verdicts" in one]


def test_a_private_target_is_in_no_number(either_nightly: str) -> None:
    with transaction() as session:
        places = seed(session, SMALL)
        session.get_one(Run, places.newest)
    with reading() as session:
        ids = {one.row.id for one in health_facts(session).targets}
        with hiding(ids):
            hidden = health_facts(session)
    assert ids
    assert (hidden.targets, hidden.incidents, hidden.failed, hidden.unsent, hidden.fixed) == ([], [], [], [], [])
    assert (hidden.given_up, hidden.quarantined, hidden.stacks, hidden.queues.held) == (None, (0, 0), [], ())
    assert sum(night.comparisons for night in hidden.nights) == 0
    assert all(queue.queued == 0 and not queue.current for queue in hidden.queues.devices)
    assert all(worker.run is None for queue in hidden.queues.devices for worker in queue.workers)
    said = needs(hidden, Disk(1 << 40, 2 << 40), lambda *_: None)
    assert {one.what for one in (*said.shown, *said.rest)} <= {"Worker silent"}


def test_a_gap_of_a_case_that_was_not_compared_has_not_closed(either_nightly: str) -> None:
    """Otherwise a wrong result would look like having caught up."""
    target = world.target()
    with transaction() as session:
        done(session, target, 0, 2 * DAY)
        run = done(session, target, 1, 60)
        world.judged(session, run, "layernorm.fwd.8x8.bf16", baseline_kind="sota", baseline="quack", ratio=0.9)
        world.totalled(session)
        assert session.query(Gap).count() == 0
    [one] = facts().targets
    before, now = one.a_day_ago["cpu"].mean, one.newest["cpu"].result.mean
    assert before is not None
    assert now is not None
    assert before.digest != now.digest
