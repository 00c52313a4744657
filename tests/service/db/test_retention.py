"""What a database need not keep is deleted after its period; medians and verdicts stay."""

import pytest
from sqlalchemy import func, select, update

from service.db.engine import clock, reading, transaction
from service.db.models import Delivery, Measurement, OutboxMessage, Run, VerdictRow, pack
from service.db.size import sizes
from service.domain.states import OutboxState, RunState
from service.domain.text import DAY_S
from service.ledger import retention
from service.ledger.retention import Kept
from service.ledger.runs import replays
from service.settings import settings
from tests import world

CASE = "rmsnorm.fwd.8x64.fp32"
RUNS = 3 * retention.RUNS_AT_ONCE  # more than one transaction empties


@pytest.fixture
def old_and_new(either: str) -> tuple[list[int], list[int]]:
    """Runs that ended before and within the period, each with a measurement and a verdict."""
    target = world.target()
    groups: list[list[int]] = []
    with transaction() as session:
        now = clock(session)
        for group, age_days in enumerate((settings().samples_days + 1, settings().samples_days - 1)):
            ids = []
            for number in range(RUNS if not group else 2):
                revision = world.commit(session, target.id, group * RUNS + number)
                run = world.run(session, revision, state=RunState.DONE)
                world.measured(session, run, CASE, 100.0, samples=pack([[100.0, 101.0]], []), facts={"code": "abc"})
                run.finished_at = now - age_days * DAY_S
                ids.append(run.id)
            groups.append(ids)
    return groups[0], groups[1]


def details() -> dict[int, tuple[bool, bool, float | None]]:
    """By run: whether its measurement has samples, whether it has facts, and its median."""
    columns = Measurement.run_id, Measurement.samples, Measurement.facts, Measurement.median
    with reading() as session:
        return {run: (bool(samples), bool(facts), us) for run, samples, facts, us in session.execute(select(*columns))}


def pruned(found: list[retention.Pruned]) -> dict[Kept, int]:
    return {one.kind: one.rows for one in found}


def test_samples_and_facts_of_old_runs_go_and_medians_stay(old_and_new: tuple[list[int], list[int]]) -> None:
    old, new = old_and_new
    with reading() as session:
        verdicts = session.scalar(select(func.count()).select_from(VerdictRow))

    assert pruned(retention.due())[Kept.SAMPLES] == len(old)
    assert details()[old[0]] == (True, True, 100.0), "nothing was changed"
    done = pruned(retention.prune())

    assert (done[Kept.SAMPLES], done[Kept.FACTS]) == (len(old), len(old))
    kept = details()
    assert {kept[run] for run in old} == {(False, False, 100.0)}
    assert {kept[run] for run in new} == {(True, True, 100.0)}
    with reading() as session:
        assert session.scalar(select(func.count()).select_from(VerdictRow)) == verdicts
    assert set(pruned(retention.prune()).values()) == {0}, "no run is looked at again"


def test_a_run_without_samples_is_not_judged_again(old_and_new: tuple[list[int], list[int]]) -> None:
    _, new = old_and_new

    retention.prune()

    with reading() as session:
        assert [rebuilt.run.id for rebuilt in replays.rebuilt(session)] == new


def test_a_pass_that_is_stopped_goes_on_later(old_and_new: tuple[list[int], list[int]]) -> None:
    old, _ = old_and_new
    turns = iter([True, False])

    first = pruned(retention.prune(lambda: next(turns, False)))

    assert first[Kept.SAMPLES] == retention.RUNS_AT_ONCE
    assert pruned(retention.prune())[Kept.SAMPLES] == len(old) - retention.RUNS_AT_ONCE


def test_a_run_in_progress_keeps_everything(old_and_new: tuple[list[int], list[int]]) -> None:
    old, _ = old_and_new
    with transaction() as session:
        session.execute(update(Run).where(Run.id == old[0]).values(state=RunState.LEASED))

    retention.prune()

    assert details()[old[0]] == (True, True, 100.0)


def test_old_webhooks_and_answers_go_and_comments_stay(either: str) -> None:
    target = world.target()
    with transaction() as session:
        now = clock(session)
        old, new = now - (settings().deliveries_days + 1) * DAY_S, now
        for number, (at, processed) in enumerate(((old, old), (old, None), (new, new))):
            delivery = Delivery(guid=str(number), event="push", body=b"{}", received_at=at, processed_at=processed)
            session.add(delivery)
        for kind in ("answer", "reaction", "comment"):
            for at, state in ((old, OutboxState.SENT), (old, OutboxState.WAITING), (new, OutboxState.SENT)):
                key = f"{kind} {at} {state}"
                message = OutboxMessage(key=key, kind=kind, target_id=target.id, payload={}, state=state, created_at=at)
                session.add(message)

    done = pruned(retention.prune())

    assert (done[Kept.DELIVERIES], done[Kept.ANSWERS]) == (1, 2)
    with reading() as session:
        assert session.scalars(select(Delivery.guid).order_by(Delivery.id)).all() == ["1", "2"]
        kinds = session.scalars(select(OutboxMessage.kind)).all()
    assert sorted(kinds) == ["answer"] * 2 + ["comment"] * 3 + ["reaction"] * 2


def test_answers_go_that_are_stored_after_many_comments(either: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ROWS_AT_ONCE", 2)
    target = world.target()
    with transaction() as session:
        old = clock(session) - (settings().deliveries_days + 1) * DAY_S
        for number, kind in enumerate(["comment"] * 5 + ["answer"] * 3):
            message = OutboxMessage(key=f"{number}", kind=kind, target_id=target.id, payload={}, created_at=old)
            message.state = OutboxState.SENT
            session.add(message)

    done = pruned(retention.prune())

    assert done[Kept.ANSWERS] == 3


def test_the_size_of_tables(old_and_new: tuple[list[int], list[int]]) -> None:
    with reading() as session:
        by_table = {one.table: one.bytes for one in sizes(session)}

    assert by_table["measurements"] > 8192
    assert "alembic_version" not in by_table
