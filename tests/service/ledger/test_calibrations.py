"""Nightly calibrations in the ledger: workers, stored comparisons, quarantines, and actions of people."""

import json
import math
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier

import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from kernels.cases import Case, Metric, Role
from service.cli import app
from service.db.engine import clock, reading, transaction
from service.db.models import (
    Calibration,
    CalibrationPlan,
    Quarantine,
    RecipeRow,
    RegressionRow,
    Run,
    Target,
    VerdictRow,
    Worker,
)
from service.domain.metrics import SeriesKey
from service.domain.policy.policy import NOTHING, Policy
from service.domain.states import CellState, Priority, Purpose, RunState
from service.domain.verdicts.analysis import NONE_KNOWN
from service.domain.verdicts.calibration import MIN_CALIBRATIONS, Compared
from service.domain.verdicts.reasons import Quarantined
from service.domain.verdicts.session_result import ContenderResult
from service.errors import BadInput, NotFound
from service.ledger.calibration import quarantines, sessions
from service.ledger.calibration.error_rates import by_metric, rates
from service.ledger.calibration.sessions import MAX_AGE_S, SESSIONS, known_variances
from service.ledger.intake import calibrations
from service.ledger.runs import queue, recording, replays
from service.reports import words
from tests import world
from workers.run.heartbeat import assigned

CASE, OTHER = "rmsnorm.fwd.512x512.fp32", "rmsnorm.fwd.64x4096.fp32"
RECIPE = """
devices = ["cpu"]
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
"""
HOUR = 3600.0
pytestmark = pytest.mark.usefixtures("either_nightly")


@dataclass
class House:
    """A target with a mainline, and workers that calibrate it."""

    target_id: int

    @property
    def key(self) -> SeriesKey:
        return SeriesKey.of(self.target_id, "cpu", "norms", CASE)

    def measured(self, place: int, *, wrong: bool = False) -> Run:
        """A revision of the mainline, measured together with its parent."""
        with transaction() as session:
            world.run(session, world.commit(session, self.target_id, place))
        wrong_one = {Role.HEAD: CellState.INVALID if wrong else CellState.MEASURED}
        taken = [world.took(role, CASE, state=wrong_one.get(role, CellState.MEASURED)) for role in ROLES]
        return self.recorded(taken, f"c{place - 1}")

    def night(self, ratio: float = 1.0, worker: str = "one") -> Run:
        """One calibration, queued and measured: the copy took `ratio` times as long as its original."""
        assert calibrations.plan_due() == 1
        return self.recorded([world.took(Role.HEAD, CASE, 100 * ratio), world.took(Role.PARENT, CASE)], None, worker)

    def hours_go_by(self, hours: float) -> None:
        with transaction() as session:
            asked = update(Run).where(Run.purpose == Purpose.CALIBRATION)
            session.execute(asked.values(created_at=Run.created_at - hours * HOUR, dedupe=Run.dedupe + " of old"))
            plans = update(CalibrationPlan)
            session.execute(plans.values(due_at=CalibrationPlan.due_at - hours * HOUR, planned_at=0.0))

    def recorded(self, taken: Sequence[ContenderResult], baseline: str | None, worker: str = "one") -> Run:
        lease = world.leased(worker)
        with reading() as session:
            beside = baseline or session.get_one(Run, lease.run_id).baseline
        return world.recorded(lease, world.session_of(taken, beside))

    def worker(self, name: str, *, ago_s: float = 0.0, sandbox: str | None = None, known_h: float = 48) -> None:
        with transaction() as session:
            queue.register(session, name, "cpu", "a processor", sandbox, None)
            times = {"seen_at": Worker.seen_at - ago_s, "started_at": Worker.seen_at - known_h * HOUR}
            session.execute(update(Worker).where(Worker.name == name).values(times))

    def quarantined(self) -> dict[tuple[str, str], Quarantined]:
        with reading() as session:
            names = [("norms", CASE), ("norms", OTHER)]
            return quarantines.quarantined(session, self.target_id, "cpu", Policy(), names)


ROLES = (Role.HEAD, Role.PARENT, Role.CONTROL)


@pytest.fixture
def house(either_nightly: str) -> House:
    return House(world.target(RECIPE).id)


def asked() -> list[Run]:
    with reading() as session:
        runs = select(Run).where(Run.purpose == Purpose.CALIBRATION).order_by(Run.id)
        return list(session.execute(runs).scalars())


# -- every night


def test_every_worker_is_asked_once_a_night_for_the_newest_fit_revision(house):
    for name in ("one", "two"):
        house.worker(name)
    assert calibrations.plan_due() == 0, "nothing was measured yet"
    house.measured(1)
    fit = house.measured(2)
    house.measured(3, wrong=True)

    assert (calibrations.plan_due(), calibrations.plan_due()) == (2, 0)
    assert [(run.only_worker, run.revision_id, run.baseline) for run in asked()] == [
        ("one", fit.revision_id, "c2"),
        ("two", fit.revision_id, "c2"),
    ]


def test_the_next_night_it_is_asked_again(house):
    house.worker("one")
    house.measured(1)
    for _ in range(MIN_CALIBRATIONS):
        house.night()
    house.hours_go_by(23)
    assert calibrations.plan_due() == 0
    house.hours_go_by(2)
    assert calibrations.plan_due() == 1
    house.hours_go_by(50)
    assert calibrations.plan_due() == 0, "one waits for this worker already"


def test_who_is_new_calibrates_at_once_until_its_times_may_block(house):
    house.worker("one")
    provisional = [house.measured(1).provisional]
    for place in range(2, 2 + MIN_CALIBRATIONS):
        assert (calibrations.plan_due(), calibrations.plan_due()) == (1, 0), "one after another"
        assert asked()[-1].priority == Priority.BACKFILL, "behind what people wait for, and before nightly ones"
        house.recorded([world.took(role, CASE) for role in ROLES], None)
        provisional.append(house.measured(place).provisional)
    assert calibrations.plan_due() == 0
    assert provisional == [True] * MIN_CALIBRATIONS + [False]


def test_times_block_at_once_where_calibrations_are_switched_off(house):
    with transaction() as session:
        session.execute(update(RecipeRow).values(text=f"{RECIPE}\n[policy]\ncalibrate.every_h = 0\n"))
    assert not house.measured(1).provisional


def test_a_target_whose_second_build_fails_does_not_keep_a_new_worker_busy(house):
    house.worker("one")
    house.measured(1)
    for _ in range(MIN_CALIBRATIONS):
        assert calibrations.plan_due() == 1
        with transaction() as session:
            recording.fail(session, world.leased("one"), "no such header")
    assert calibrations.plan_due() == 0
    house.hours_go_by(25)
    assert calibrations.plan_due() == 1, "the next day it is tried again"


def test_a_recipe_of_another_version_keeps_nobody_else_from_being_calibrated(house):
    house.worker("one")
    house.measured(1)
    world.target("no = ", name="a")
    assert calibrations.plan_due() == 1


def test_workers_that_cannot_do_it_are_not_asked(house):
    house.worker("gone", ago_s=HOUR)
    house.worker("bare", sandbox="no user namespaces")
    house.measured(1)
    assert calibrations.plan_due() == 0


def test_who_can_do_it_again_is_asked_within_an_hour(house):
    """Not a night later: until the first ones are done, times block nothing."""
    house.worker("one", sandbox="no user namespaces")
    house.measured(1)
    assert calibrations.plan_due() == 0
    house.worker("one")
    house.hours_go_by(1)
    assert calibrations.plan_due() == 1


def test_nobody_is_asked_where_the_policy_says_never(house):
    house.worker("one")
    house.measured(1)
    with transaction() as session:
        session.execute(update(RecipeRow).values(text=f"{RECIPE}\n[policy]\ncalibrate.every_h = 0\n"))
    assert calibrations.plan_due() == 0


def test_a_clock_that_jumps_back_delays_a_calibration_by_less_than_its_interval(house):
    """All times are a day ahead of the clock, but for the worker's, which reports every few seconds."""
    house.worker("one")
    house.measured(1)
    for _ in range(MIN_CALIBRATIONS):
        house.night()
    with transaction() as session:
        asked_before = update(Run).where(Run.purpose == Purpose.CALIBRATION)
        session.execute(asked_before.values(created_at=Run.created_at + 24 * HOUR, dedupe=Run.dedupe + " of old"))
        session.execute(update(Target).values(created_at=clock(session) + 24 * HOUR))
        times = {"due_at": CalibrationPlan.due_at + 24 * HOUR, "planned_at": CalibrationPlan.planned_at + 24 * HOUR}
        session.execute(update(CalibrationPlan).values(times))
    assert calibrations.plan_due() == 1
    with transaction() as session:
        session.execute(update(Run).values(state=RunState.DONE))
    assert calibrations.plan_due() == 0, "the one that was just queued counts"


def test_a_clock_that_jumps_back_does_not_give_up_what_waits_for_a_worker(house):
    house.worker("one")
    house.measured(1)
    assert calibrations.plan_due() == 1
    house.worker("one", ago_s=-HOUR)
    calibrations.plan_due()
    assert asked()[0].state is RunState.QUEUED


def test_what_waits_for_a_worker_that_went_away_is_given_up(house):
    house.worker("one")
    house.measured(1)
    assert calibrations.plan_due() == 1
    house.worker("one", ago_s=25 * HOUR)
    assert calibrations.plan_due() == 0
    [run] = asked()
    assert (run.state, run.reason) == (RunState.CANCELLED, "its worker has not been seen for a day")


@pytest.fixture
def cancelled(house):
    """The first calibration of a worker was planned, and a person cancelled it."""
    house.worker("one")
    house.measured(1)
    assert calibrations.plan_due() == 1
    with transaction() as session:
        queue.cancel(session, asked()[0].id, "ada")
    return house


def test_what_a_person_cancels_is_not_planned_again_until_there_is_a_newer_revision(cancelled):
    for hours in (1, 25, 50):
        cancelled.hours_go_by(hours)
        assert calibrations.plan_due() == 0
    newer = cancelled.measured(2)
    cancelled.hours_go_by(25)
    assert calibrations.plan_due() == 1
    assert asked()[-1].revision_id == newer.revision_id


def test_what_a_person_cancels_is_planned_again_after_somebody_started_one(cancelled):
    with transaction() as session:
        calibrations.ask_now(session, session.get_one(Target, cancelled.target_id), "cpu", worker="one")
    cancelled.recorded([world.took(Role.HEAD, CASE), world.took(Role.PARENT, CASE)], None)
    assert calibrations.plan_due() == 1


def test_two_controls_at_once_ask_once(house):
    house.worker("one")
    house.measured(1)
    together = Barrier(2)

    def plan(_number: int) -> int:
        together.wait()
        return calibrations.plan_due()

    with ThreadPoolExecutor(2) as controls:
        assert sorted(controls.map(plan, range(2))) == [0, 1]
    assert len(asked()) == 1


# -- what is kept


def test_a_calibration_is_kept_and_is_nobodys_regression(house):
    house.worker("one")
    house.measured(1)
    run = house.night(ratio=1.2)
    with reading() as session:
        kept = session.execute(select(Calibration).where(Calibration.run_id == run.id)).scalar_one()
        assert session.execute(select(RegressionRow)).first() is None
    assert (kept.worker, kept.trials, kept.alarmed) == ("one", 3, True)
    assert kept.ratio == pytest.approx(1.2)
    assert kept.p < 0.001


def test_every_session_has_a_control_that_is_kept_too(house):
    run = house.measured(1)
    with reading() as session:
        kept = session.execute(select(Calibration).where(Calibration.run_id == run.id)).scalar_one()
    assert (kept.provider, kept.case, kept.ratio, kept.p, kept.alarmed) == ("norms", CASE, 1.0, 1.0, False)


def test_nothing_is_learned_of_the_machine_where_a_strangers_code_took_part(house):
    house.measured(1)
    with transaction() as session:
        session.execute(delete(Calibration))
        run = session.execute(select(Run)).scalar_one()
        run.trusted = False
        session.flush()
        found = world.session_of((world.took(role, CASE) for role in ROLES), "c0")
        sessions.compared(session, run, found, Policy(), NONE_KNOWN)
        assert session.execute(select(Calibration)).first() is None


# -- what is known of the variance of trials


def vary(place: int, role: Role, case: str, us: float = 100.0) -> ContenderResult:
    dice = random.Random(f"{place} {role} {case}")
    trials = tuple(tuple(us * math.exp(dice.gauss(0, 0.002)) for _ in range(2)) for _ in range(3))
    return ContenderResult(role, "norms", Case.parse(case), CellState.MEASURED, None, trials)


def varied(house: House, place: int, worker: str = "one") -> Run:
    """A session whose trials vary."""
    with transaction() as session:
        world.run(session, world.commit(session, house.target_id, place))
    taken = [vary(place, role, case) for role in ROLES for case in (CASE, OTHER)]
    return house.recorded(taken, f"c{place - 1}", worker)


def known_before(run: Run) -> dict[tuple[str, str], float]:
    with reading() as session:
        found = known_variances(session, session.get_one(Run, run.id), Policy())
    return dict(found[Metric.KERNEL].usual) if found else {}


def test_a_session_knows_what_earlier_sessions_of_its_worker_found(house):
    runs = [varied(house, place) for place in range(1, 7)]
    assert known_before(runs[3]) == {}, "three sessions of two cases do not tell how constant they are"
    assert set(known_before(runs[5])) == {("norms", CASE), ("norms", OTHER)}
    assert known_before(runs[5])["norms", CASE] == pytest.approx(math.log(2 * 0.002**2 / 2), abs=1.5)
    assert known_before(varied(house, 7, worker="two")) == {}, "another worker is another machine"


def test_a_replay_knows_no_more_than_the_session_knew(house):
    runs = [varied(house, place) for place in range(1, 7)]
    then = known_before(runs[5])
    varied(house, 7)
    assert known_before(runs[5]) == then


def test_worker_judge_and_replay_know_the_same(house, monkeypatch):
    knew = list[object]()

    def noted(session: Session, run: Run, policy: Policy, baseline: str | None = None) -> object:
        knew.append(known_variances(session, run, policy, baseline))
        return knew[-1]

    for place in range(1, 7):
        varied(house, place)
    with transaction() as session:
        session.execute(update(Target).values(allow_unsandboxed=True))  # no run is measured here
        world.run(session, world.commit(session, house.target_id, 7))
    lease = world.leased("one")
    asked_with = assigned(lease).known
    assert asked_with[Metric.KERNEL].usual
    taken = [vary(7, role, case) for role in ROLES for case in (CASE, OTHER)]
    with monkeypatch.context() as patch:
        patch.setattr(recording, "known_variances", noted)
        world.recorded(lease, world.session_of(taken, "c6"))
    varied(house, 8)
    with monkeypatch.context() as patch, reading() as session:
        patch.setattr(replays, "known_variances", noted)
        replays.replayed(session, NOTHING, NOTHING)
    assert knew[:1] == [asked_with]
    assert knew[-2] == asked_with, "runs are replayed in order, and one followed"


@pytest.mark.parametrize("columns", [{"purpose": Purpose.BISECTION}, {"trusted": False}], ids=["bisection", "stranger"])
def test_sessions_of_few_cases_and_of_strangers_take_no_part(house, columns):
    runs = [varied(house, place) for place in range(1, 7)]
    with transaction() as session:
        session.execute(update(Run).where(Run.id == runs[0].id).values(columns))
    assert known_before(runs[4]) == {}, "one of four is left out"
    assert known_before(runs[5]) != {}


def test_a_run_that_was_measured_twice_on_two_workers_teaches_neither(house):
    """Its rows are of its first session, whose controls were off, and its worker is that of the second."""
    for place in range(1, 7):
        with transaction() as session:
            world.run(session, world.commit(session, house.target_id, place))
        for worker, copy in (("two", 103.0), ("one", 100.0)):
            times = {Role.HEAD: 100.0, Role.PARENT: 100.0, Role.CONTROL: copy}
            taken = [vary(place, role, case, us) for role, us in times.items() for case in (CASE, OTHER)]
            run = house.recorded(taken, f"c{place - 1}", worker)
        assert (run.repeated, run.state, run.worker) == (True, RunState.DONE, "one")
    with reading() as session:
        assert set(session.scalars(select(Calibration.worker))) == {"two"}
    for place, worker in enumerate(("one", "two"), start=7):
        assert known_before(varied(house, place, worker)) == {}


def test_sessions_of_long_ago_take_no_part(house):
    runs = [varied(house, place) for place in range(1, 7)]
    with transaction() as session:
        session.execute(update(Run).where(Run.id == runs[0].id).values(finished_at=Run.finished_at - 2 * MAX_AGE_S))
    assert known_before(runs[4]) == {}, "one of four is left out"


def test_a_calibration_is_one_session_though_it_compares_twice(house):
    """Its copy and its two builds have the baseline in common."""
    house.worker("one")
    house.measured(1)
    for place in range(2, 5):
        assert calibrations.plan_due() == 1
        taken = [vary(place, role, case) for role in ROLES for case in (CASE, OTHER)]
        run = house.recorded(taken, None)
        house.hours_go_by(48)
    with reading() as session:
        kept = session.scalars(select(Calibration.kind).where(Calibration.run_id == run.id)).all()
    assert len(kept) == 4
    assert known_before(run) == {}, "two sessions"
    assert known_before(varied(house, 5)) != {}, "three"


def test_builds_stay_known_on_a_worker_with_many_other_sessions(house):
    house.worker("one")
    house.measured(1)
    for _ in range(MIN_CALIBRATIONS):
        assert calibrations.plan_due() == 1
        house.recorded([vary(2, role, case) for role in ROLES for case in (CASE, OTHER)], None)
        house.hours_go_by(48)
    for place in range(2, 2 + SESSIONS):
        varied(house, place)
    with reading() as session:
        known = known_variances(session, varied(house, 2 + SESSIONS), Policy())
    assert known[Metric.KERNEL].build is not None


def test_what_did_not_vary_and_other_numbers_of_trials_teach_nothing(house):
    for place in range(1, 7):
        house.measured(place)
    assert known_before(house.measured(7)) == {}
    runs = [varied(house, place) for place in range(8, 14)]
    with reading() as session:
        run = session.get_one(Run, runs[-1].id)
        assert known_variances(session, run, Policy(screening=(5, 8))) == {}


# -- what is quarantined


def compared(session: Session, house: House, differs: bool, at: float, case: str = CASE) -> None:
    """One comparison, as recording keeps it."""
    ratio, p = (1.03, 0.001) if differs else (1.0, 0.7)
    revision = world.commit(session, house.target_id, 1)
    run = world.run(session, revision, priority=Priority.CALIBRATION, created_at=at)
    row = Calibration(run_id=run.id, series_id=world.series(session, house.target_id, case), worker="one")
    row.ratio, row.p, row.trials, row.alarmed, row.at = ratio, p, 3, differs, at
    session.add(row)
    session.flush()
    quarantines.review(session, house.target_id, "cpu", [Compared("norms", case, ratio, p, 3, differs)], Policy())


def lived(house: House, differs: Sequence[bool]) -> list[bool]:
    """Was the case quarantined after each of these comparisons?"""
    states = []
    with transaction() as session:
        now = clock(session)
        session.execute(delete(Calibration))  # the control of the run that made the case known
        for number, one in enumerate(differs):
            at = now - (len(differs) - number) * HOUR
            compared(session, house, one, at)
            # What is decided now was decided then.
            session.execute(update(Quarantine).where(Quarantine.since > now - HOUR / 2).values(since=at))
            session.execute(update(Quarantine).where(Quarantine.released_at > now - HOUR / 2).values(released_at=at))
            states.append(bool(quarantines.quarantined(session, house.target_id, "cpu", Policy(), [("norms", CASE)])))
    return states


def test_a_case_that_lies_is_quarantined_and_released_when_it_is_quiet(house):
    house.measured(1)
    states = lived(house, [True, False, False] * 8 + [False] * 45)
    assert states.index(True) == 21, "until then there were too few, or they were quiet"
    assert states[21:].index(False) == 40
    with reading() as session:
        [(row, target)] = quarantines.listed(session, released=True)
        assert quarantines.listed(session) == []
    assert (target, row.by, row.released_by) == ("norms", "kernelwatch", "kernelwatch")
    assert row.reason == "8 of its last 22 comparisons of equal code differed beyond chance: 36% where 5% may"
    assert row.released_why.startswith("0 of its last 40 comparisons")


def test_what_a_person_quarantined_a_person_releases(house):
    house.measured(1)
    with transaction() as session:
        assert quarantines.quarantine(session, house.key, "ada", "its rows lie badly")
        assert not quarantines.quarantine(session, house.key, "bob", "the same")
    assert set(lived(house, [False] * 60)) == {True}
    assert house.quarantined() == {("norms", CASE): Quarantined("ada", "its rows lie badly")}
    with transaction() as session:
        target = session.get_one(Target, house.target_id)
        assert quarantines.release(session, target, "cpu", CASE, None, "ada", "they lie well now") == 1
        with pytest.raises(NotFound, match="Quarantined on cpu: none"):
            quarantines.release(session, target, "cpu", CASE, None, "ada", "once more")
    assert house.quarantined() == {}


def test_evidence_from_before_a_release_counts_no_more(house):
    house.measured(1)
    assert lived(house, [True] * 20)[-1]
    with transaction() as session:
        target = session.get_one(Target, house.target_id)
        quarantines.release(session, target, "cpu", CASE, "norms", "ada", "the fan was mended")
    with transaction() as session:
        compared(session, house, True, clock(session) + 1)
    assert house.quarantined() == {}


def test_a_clock_that_jumps_back_does_not_prolong_a_quarantine(house):
    house.measured(1)
    assert lived(house, [True] * 20)[-1]
    with transaction() as session:
        session.execute(update(Quarantine).values(since=clock(session) + 24 * HOUR))
        for _ in range(40):
            compared(session, house, False, clock(session))
    assert house.quarantined() == {}


def test_the_policy_quarantines_by_pattern(house):
    policy = Policy.model_validate({"cases": {"*.512x512.*": {"quarantine": "too small for this machine"}}})
    with reading() as session:
        found = quarantines.quarantined(session, house.target_id, "cpu", policy, [("norms", CASE), ("norms", OTHER)])
    assert found == {("norms", CASE): Quarantined("recipe", "too small for this machine")}


def test_a_quarantined_case_is_measured_and_alarms_nobody(house):
    house.measured(1)
    with transaction() as session:
        quarantines.quarantine(session, house.key, "ada", "its rows lie badly")
        session.execute(delete(Calibration))
        session.execute(delete(VerdictRow))
        world.run(session, world.commit(session, house.target_id, 1))
    house.recorded([world.took(Role.HEAD, CASE, 150.0), world.took(Role.PARENT, CASE)], "c0")
    with reading() as session:
        row = session.execute(select(VerdictRow).where(VerdictRow.baseline_kind == "parent")).scalar_one()
    assert (row.outcome, row.ratio) == ("inconclusive", pytest.approx(1.5))
    assert (row.quarantined_by, words.of_verdict(row)) == ("ada", "quarantined: its rows lie badly")


def test_two_sessions_that_end_at_once_quarantine_once(house):
    together = Barrier(2)

    def end(_number: int) -> bool:
        together.wait()
        with transaction() as session:
            return quarantines.quarantine(session, house.key, "kernelwatch", "it lies")

    with ThreadPoolExecutor(2) as workers:
        assert sorted(workers.map(end, range(2))) == [False, True]


# -- rates, and the command


def test_rates_are_by_worker_metric_and_case(house):
    house.measured(1)
    rng = random.Random(2)
    with transaction() as session:
        for number in range(40):
            compared(session, house, rng.random() < 0.1, 10.0 * number, case=f"{CASE}.call" if number % 2 else CASE)
    with reading() as session:
        found = rates(session, since=5.0)
        session.expunge_all()
    assert {(one.case, one.rate.comparisons) for one in found} == {(CASE, 20), (f"{CASE}.call", 20)}
    assert [one.rate.share for one in found] == sorted((one.rate.share for one in found), reverse=True)
    assert {(one.worker, one.metric) for one in by_metric(found)} == {("one", Metric.KERNEL), ("one", Metric.CALL)}
    assert all(one.rate.low <= one.rate.share <= one.rate.high for one in found)
    assert math.isclose(sum(one.rate.differed for one in by_metric(found)), sum(one.rate.differed for one in found))


def test_the_command_shows_quarantines_and_releases(house):
    say = CliRunner()

    def said(*words: str) -> str:
        done = say.invoke(app, ["calibration", *words], env={"COLUMNS": "300"})
        assert done.exit_code == 0, done.output or done.exception
        return str(done.output)

    assert "No calibrations yet." in said("show")
    house.measured(1)
    assert "is quarantined" in said("quarantine", "norms", CASE, "--device", "cpu", "--reason", "its rows lie badly")
    shown = said("show", "norms")
    assert "its rows lie badly" in shown
    assert "kernel time" in shown
    [quarantined] = json.loads(said("show", "--format", "json"))["quarantines"]
    assert (quarantined["case"], quarantined["reason"]) == (CASE, "its rows lie badly")
    assert "is released" in said("release", "norms", CASE, "--device", "cpu", "--reason", "mended")
    wrong = say.invoke(app, ["calibration", "quarantine", "norms", CASE, "--device", "h200", "--reason", "none"])
    assert isinstance(wrong.exception, BadInput)
    assert "was never measured on h200" in str(wrong.exception)
