"""Each thing that the ledger decides is an event once: for the mainline, and for nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from kernels.cases import Case, Role
from service.db.engine import clock, transaction
from service.db.models import Calibration, Notice, Run, Target
from service.domain.policy.policy import Policy
from service.domain.regressions.lifecycle import Action, Transition
from service.domain.states import CellState, FoundBy, GateAction, Priority, Purpose, RunState
from service.domain.verdicts.calibration import Compared
from service.domain.verdicts.session_result import ContenderResult
from service.domain.verdicts.totals import SotaDistance
from service.ledger.calibration import quarantines
from service.ledger.intake import deliveries
from service.ledger.regressions import after_run, transitions
from service.ledger.regressions.transitions import Slower
from service.ledger.runs import baselines, recording
from service.settings import settings
from tests import world
from tests.fakes.repository import Repository
from tests.service.ledger.notices.conftest import Channels, subscribe

CASE = "rmsnorm.fwd.64x4096.bf16"
NAME = ("norms", CASE)


@pytest.fixture
def target(channels: Channels) -> Target:
    found = world.target()
    subscribe("hook", found, severity=GateAction.PASS)
    return found


def happened() -> list[str]:
    with transaction() as session:
        return [kind.value for kind in session.scalars(select(Notice.kind).order_by(Notice.id))]


def shown(session: Session, target: Target, place: int, **columns: Any) -> Run:
    return world.run(session, world.commit(session, target.id, place), **columns)


def test_every_change_of_a_regression(target: Target) -> None:
    with transaction() as session:
        run, later = shown(session, target, 1), shown(session, target, 2)
        row = transitions.open_one(session, run, Slower(*NAME, 1.2), found_by=FoundBy.PAIR, good="c0")
        for transition in (
            Transition(Action.NOTE, "ada", "seen"),
            Transition(Action.BLAME, culprit="c1", run_id=run.id),
            Transition(Action.ACKNOWLEDGE, "ada", "exact sums"),
            Transition(Action.EXPIRE),
            Transition(Action.FIX, run_id=later.id),
            Transition(Action.UNDO, run_id=later.id),
            Transition(Action.DISMISS, "ada", "noise"),
        ):
            transitions.change(session, row, transition, clock(session))
    assert [kind.removeprefix("regression.") for kind in happened()] == [
        "opened",
        "blamed",
        "accepted",
        "reopened",
        "fixed",
        "reopened",
        "closed",
    ]


def test_a_second_regression_of_a_case_makes_it_worse(target: Target) -> None:
    with transaction() as session:
        for place in (1, 11):
            run = shown(session, target, place)
            transitions.open_one(session, run, Slower(*NAME, 1.2), found_by=FoundBy.PAIR, good=f"c{place - 1}")
    assert happened() == ["regression.opened", "regression.worse"]


def test_a_wrong_result_is_an_event_where_it_is_new(target: Target) -> None:
    with transaction() as session:
        run, again = shown(session, target, 1), shown(session, target, 1)
        world.judged(session, run, CASE, outcome="invalid")
        world.judged(session, again, CASE, outcome="invalid")
        world.judged(session, run, f"{CASE}.call", outcome="invalid", known_before=True)
        world.judged(session, run, "rmsnorm.fwd.8x64.bf16", outcome="invalid", quarantined_by="ada")
        for one in (run, again):
            after_run.note_regressions(session, one, Policy())
    assert happened() == ["case.invalid"], "and measured again it is the same"


@pytest.mark.parametrize("columns", [{"pull": 7}, {"priority": Priority.BACKFILL}, {"purpose": Purpose.BISECTION}])
def test_only_the_mainline_has_events(target: Target, columns: dict[str, Any]) -> None:
    with transaction() as session:
        run = shown(session, target, 1, **columns)
        world.judged(session, run, CASE, outcome="invalid")
        after_run.note_regressions(session, run, Policy())
    assert happened() == []


def test_a_case_falls_behind_sota_and_catches_up(target: Target) -> None:
    with transaction() as session:
        for place, behind in enumerate((False, True, True, False), 1):
            run = shown(session, target, place)
            distance = SotaDistance(f"c{place}", "quack", 1.4 if behind else 1.0, 1.4, 1.0, behind=behind)
            revision = world.commit(session, target.id, place)
            baselines.note_gaps(session, run, revision, {NAME: distance}, Policy())
    assert happened() == ["gap.opened", "gap.closed"]


def test_a_case_that_is_behind_when_it_is_first_measured_is_no_news(target: Target) -> None:
    with transaction() as session:
        distance = SotaDistance("c1", "quack", 1.4, 1.4, 1.0, behind=True)
        run, revision = shown(session, target, 1), world.commit(session, target.id, 1)
        baselines.note_gaps(session, run, revision, {NAME: distance}, Policy())
    assert happened() == []


def ran(role: Role, warps: int) -> ContenderResult:
    facts = {"code": f"{warps:x}", "triton": [{"name": "_forward", "warps": warps, "stages": 1}]}
    return ContenderResult(role, "norms", Case.parse(CASE), CellState.MEASURED, None, ((1.0, 1.0),), facts=facts)


@pytest.mark.parametrize(
    ("columns", "events"), [({}, ["configuration.drifted"]), ({"priority": Priority.BACKFILL}, [])], ids=str
)
def test_a_configuration_changes_without_a_commit(target: Target, columns: dict[str, Any], events: list[str]) -> None:
    with transaction() as session:
        revision = world.commit(session, target.id, 1)
        before = world.run(session, revision, state=RunState.DONE)
        world.measured(session, before, CASE, 1.0, facts=ran(Role.HEAD, 4).facts)
        again = world.run(session, revision, state=RunState.DONE, **columns)
        recording.note_drifts(session, again, revision, [ran(Role.HEAD, 8)])
        rows = session.scalars(select(Notice)).all()
        assert [row.kind.value for row in rows] == events
        for row in rows:
            assert (row.event["run_id"], row.event["revision"]) == (again.id, "c1")
            assert row.event["text"] == "_forward num_warps=4 num_stages=1 → _forward num_warps=8 num_stages=1"


def test_a_configuration_changes_with_a_commit(target: Target) -> None:
    with transaction() as session:
        run = shown(session, target, 1)
        run.baseline = "c0"
        recording.note_drifts(
            session, run, world.commit(session, target.id, 1), [ran(Role.HEAD, 8), ran(Role.PARENT, 4)]
        )
        [row] = session.scalars(select(Notice))
        assert (row.kind.value, row.event["cause"], row.event["revision"]) == ("configuration.changed", "code", "c1")


def test_a_case_is_quarantined_and_released(target: Target) -> None:
    def compare(differs: bool, at: float) -> None:
        ratio, p = (1.03, 0.001) if differs else (1.0, 0.7)
        with transaction() as session:
            run = shown(session, target, 1, priority=Priority.CALIBRATION, purpose=Purpose.CALIBRATION)
            row = Calibration(run_id=run.id, series_id=world.series(session, target.id, NAME[1]), worker="one")
            row.ratio, row.p, row.trials, row.alarmed, row.at = ratio, p, 3, differs, at
            session.add(row)
            session.flush()
            quarantines.review(session, target.id, "cpu", [Compared(*NAME, ratio, p, 3, differs)], Policy())

    with transaction() as session:
        now = clock(session)
    for n in range(60):
        compare(differs=True, at=now - 1000 + n)
    assert happened() == ["case.quarantined"]
    for n in range(200):
        compare(differs=False, at=now + 1 + n)
        if len(happened()) > 1:
            break
    assert happened() == ["case.quarantined", "case.released"]


def test_a_source_that_cannot_be_polled(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two failures are no news."""
    for _ in range(2):
        assert not deliveries.poll(target.id)
    assert happened() == []
    for _ in range(3):
        assert not deliveries.poll(target.id)
    assert happened() == ["target.unreachable"]

    repository = Repository(tmp_path / "norms")
    repository.commit("first")
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", json.dumps([str(tmp_path)]))
    settings.cache_clear()
    with transaction() as session:
        text = 'devices = ["cpu"]\nsuite = "smoke"\n[providers.norms]\nrmsnorm.fwd = "norms:rmsnorm"\n'
        recipe = world.recipe_of(session, target.id, text)
        values = {"location": str(repository.folder), "branch": "main", "recipe_id": recipe.id}
        session.execute(update(Target).values(values))
    assert deliveries.poll(target.id), "it is there"
    assert deliveries.poll(target.id)
    assert happened() == ["target.unreachable", "target.reachable"]
