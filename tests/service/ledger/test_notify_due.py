"""Notifications by state of a run.  On SQLite and PostgreSQL; the words themselves are in test_telling.py."""

import threading
from collections.abc import Callable

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.engine import reading, transaction
from service.db.models import OutboxMessage, Pull, Run
from service.domain.states import Priority, RunState
from service.ledger import targets
from service.ledger.notify import compose
from service.ledger.reading.queries import pull_reports, whole_run
from service.reports.report import Report
from tests import world

RECIPE = 'devices = ["cpu", "h200"]\n[providers.norms]\nrmsnorm.fwd = "norms:rmsnorm"\n'
HEAD = "a" * 40
QUEUED, LEASED, HELD, DONE, FAILED = (RunState(one) for one in ("queued", "leased", "held", "done", "failed"))
SKIPPED, SUPERSEDED, CANCELLED = (RunState(one) for one in ("skipped", "superseded", "cancelled"))
Want = Callable[..., int]


@pytest.fixture
def want(either: str) -> Want:
    """Makes a run in some state, of pull request 7 or of none."""
    with transaction() as session:
        target = targets.register(session, "norms", location="/norms", forge="acme/norms", recipe_text=RECIPE)
        revision = world.commit(session, target.id, HEAD)
        session.add(Pull(target_id=target.id, number=7, head=HEAD))

    def make(state: RunState, pull: int | None = 7, **columns: object) -> int:
        with transaction() as session:
            return world.run(session, revision, state=state, pull=pull, **columns).id

    return make


def becomes(run_id: int, state: RunState) -> None:
    with transaction() as session:
        session.get_one(Run, run_id).state = state


def said() -> dict[str, str]:
    """What is to be said now: the comment's body, and the check's conclusion."""
    with reading() as session:
        effects = session.execute(select(OutboxMessage)).scalars().all()
    return {
        one.kind: one.payload["body"] if one.kind == "comment" else one.payload["conclusion"] or one.payload["status"]
        for one in effects
    }


@pytest.mark.parametrize(
    ("now", "check", "comments"),
    [
        (QUEUED, "queued", False),
        (LEASED, "in_progress", False),
        (HELD, "action_required", True),
        (SKIPPED, "skipped", False),
        (SUPERSEDED, "cancelled", False),
        (CANCELLED, "cancelled", False),
        (FAILED, "action_required", True),
        (DONE, "neutral", True),  # it has no case at all: that is no pass
    ],
)
def test_a_pull_request_hears_of_every_state(want: Want, now: RunState, check: str, comments: bool) -> None:
    want(now)
    assert compose.notify_due() == 1
    assert (said()["check"], "comment" in said()) == (check, comments)
    assert compose.notify_due() == 0, "once"


def test_a_comment_that_was_begun_is_kept_true_in_every_state(want: Want) -> None:
    run = want(DONE)
    compose.notify_due()
    for state, word in [(QUEUED, "queued"), (LEASED, "in progress"), (CANCELLED, "cancelled"), (DONE, "nothing")]:
        becomes(run, state)
        assert compose.notify_due() == 1
        assert f" [kernelwatch, CPU: {word}" in said()["comment"].splitlines()[0]


@pytest.mark.parametrize(
    ("now", "priority", "told"),
    [
        (QUEUED, Priority.MAINLINE, False),
        (LEASED, Priority.MAINLINE, False),
        (SKIPPED, Priority.MAINLINE, True),
        (FAILED, Priority.MAINLINE, True),
        (DONE, Priority.BACKFILL, True),
        (FAILED, Priority.BACKFILL, True),
        (SKIPPED, Priority.BACKFILL, False),
        (SUPERSEDED, Priority.BACKFILL, False),
    ],
)
def test_the_mainline_hears_how_it_ended(want: Want, now: RunState, priority: Priority, told: bool) -> None:
    want(now, pull=None, priority=priority)
    assert compose.notify_due() == told
    assert bool(said()) is told
    with reading() as session:
        assert session.execute(select(Run.id).where(Run.notified_state != Run.state)).all() == [], (
            "nothing is looked at again"
        )


def test_a_run_that_cannot_be_told_of_keeps_no_other_waiting(want: Want, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, sound = want(DONE, device="h200"), want(DONE)

    def breaks(session: Session, run_id: int) -> Run:
        if run_id == broken:
            raise ValueError("odd")
        return whole_run(session, run_id)

    monkeypatch.setattr("service.ledger.notify.compose.whole_run", breaks)
    compose.notify_due()
    with reading() as session:
        assert [session.get_one(Run, one).notified_state for one in (broken, sound)] == ["", "done"]


def test_the_last_word_knows_both_devices_however_close_they_end(want: Want, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first to speak has read what it will say, and is overtaken before it says it."""
    h200 = want(LEASED, device="h200")
    compose.notify_due()
    cpu, read = want(DONE), threading.Event()

    def slowly(session: Session, run: Run) -> tuple[Report, ...]:
        found = pull_reports(session, run)
        if run.id == cpu and not read.is_set():
            read.set()
            second.join(1.0)
        return found

    monkeypatch.setattr("service.ledger.notify.compose.pull_reports", slowly)

    def ends() -> None:
        read.wait(10)
        becomes(h200, DONE)
        compose.notify_due()

    second = threading.Thread(target=ends)
    second.start()
    compose.notify_due()
    second.join()
    assert "In progress" not in said()["comment"]
