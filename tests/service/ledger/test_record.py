"""Recording a session: possible baselines, open regressions, and two workers at once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Barrier

import pytest
from sqlalchemy import func, select, update

from kernels.cases import Case, Role
from service.db.engine import reading, transaction
from service.db.models import Calibration, Gap, RegressionRow, Revision, Run, Series, Stack, Target, VerdictRow
from service.domain.states import CellState, Outcome, RegressionState, RunState
from service.domain.verdicts.analysis import Doubt
from service.domain.verdicts.session_result import ContenderResult, SessionResult
from service.ledger.reading.queries import found_in, series, stack_change, whole_run
from service.ledger.runs import baselines, queue, recording
from service.ledger.runs.baselines import Fitness
from service.reports import words
from service.reports.comment_head import headline
from service.reports.report import Report
from tests import world

FAST, WIDE = "rmsnorm.fwd.512x512.fp32", "rmsnorm.fwd.64x4096.fp32"
BOTH = frozenset({("norms", FAST), ("norms", WIDE)})
RECIPE = """
devices = ["cpu"]
sota = "inductor"

[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
"""
INVALID = "invalid"
pytestmark = pytest.mark.usefixtures("either")


@dataclass
class Ledger:
    """A mainline c0, c1, … of which each commit has the one before as parent, and what is found of it."""

    target_id: int

    def run(
        self,
        place: int,
        fast: float | str = 1.0,
        wide: float | str = 1.0,
        *,
        baseline: int | None = -1,
        was: dict[str, str] | None = None,
        sota_us: float = 100.0,
        pull: int | None = None,
    ) -> int:
        """Measure a commit: the ratio of each case to its baseline, or "invalid"; `was` says what the baseline is."""
        lease = self.leased(place, pull)
        beside = place - 1 if baseline == -1 else baseline
        return world.recorded(lease, self.found(fast, wide, beside, was or {}, sota_us)).id

    def leased(self, place: int, pull: int | None = None) -> queue.Lease:
        with transaction() as session:
            world.run(session, world.commit(session, self.target_id, place), pull=pull)
        return world.leased()

    def found(
        self, fast: float | str, wide: float | str, baseline: int | None, was: dict[str, str], sota_us: float = 100.0
    ) -> SessionResult:
        taken = []
        for case, ratio in ((FAST, fast), (WIDE, wide)):
            taken.append(took(Role.HEAD, case, ratio))
            if baseline is not None:
                taken.append(took(Role.PARENT, case, was.get(case, 1.0)))
            taken.append(took(Role.SOTA, case, sota_us / 100, "inductor"))
        passed = () if baseline is not None else ("there is no earlier revision to compare with",)
        sha = None if baseline is None else f"c{baseline}"
        return world.session_of(taken, sha, notes=passed)

    def fitness(self, place: int) -> Fitness:
        with reading() as session:
            return baselines.fitness(session, session.get_one(Target, self.target_id), f"c{place}", "cpu")

    def report(self, run_id: int) -> Report:
        with reading() as session:
            return found_in(session, run_id)

    def open(self) -> list[float]:
        """How large the open regressions are."""
        with reading() as session:
            rows = select(RegressionRow).where(RegressionRow.state == RegressionState.OPEN)
            return [round(row.ratio, 2) for row in session.scalars(rows)]


def took(role: Role, case: str, ratio: float | str, provider: str = "norms") -> ContenderResult:
    if isinstance(ratio, str):
        return world.took(role, case, provider=provider, state=CellState(ratio))
    return world.took(role, case, 100 * ratio, provider)


@pytest.fixture
def ledger(either: str) -> Ledger:
    target = world.target(RECIPE)
    with transaction() as session:
        assert world.recipe_of(session, target.id, RECIPE).id == 2
    return Ledger(target.id)


# -- who may be a baseline


def test_a_revision_that_is_wrong_at_a_case_is_a_baseline_at_its_other_cases(ledger):
    ledger.run(0, baseline=None)
    assert ledger.fitness(0) == Fitness(measured=BOTH)
    ledger.run(1, fast=INVALID)
    assert ledger.fitness(1) == Fitness(broken=frozenset({("norms", FAST)}), measured=frozenset({("norms", WIDE)}))

    still = ledger.report(ledger.run(2, fast=INVALID, wide=1.5, baseline=0))
    [wrong] = still.of(Outcome.INVALID)
    assert (wrong.known_before, wrong.reason) == (True, "already invalid before this revision: y is wrong")
    assert [row.outcome for row in still.regressions] == [Outcome.REGRESSION]

    after = ledger.report(ledger.run(3, fast=INVALID, was={FAST: INVALID}))
    assert headline(after) == "1 wrong result as before at c3 on cpu: 1 wrong result as before and 1 steady."
    assert ledger.open() == [1.5]


def test_of_each_case_the_newest_run_decides_whether_it_is_broken(ledger):
    ledger.run(0, fast=INVALID, baseline=None)
    ledger.run(0, fast="failed", wide=INVALID, baseline=None)
    assert ledger.fitness(0) == Fitness(broken=BOTH)
    with transaction() as session:
        session.execute(update(Target).values(recipe_id=2))
    assert ledger.fitness(0) == Fitness(), "a change of the recipe gives everybody another chance"


def test_what_was_wrong_from_the_start_blinds_nobody(ledger):
    first = ledger.report(ledger.run(0, fast=INVALID, baseline=None))
    assert first.advice == "the results are wrong; fix that first, because the times of wrong results do not count"
    after = ledger.report(ledger.run(1, fast=INVALID, wide=1.5, was={FAST: INVALID}))
    assert [row.case for row in after.regressions] == [WIDE]


def test_a_revision_that_does_not_build_is_no_baseline_until_its_recipe_changes(ledger):
    ledger.run(0, baseline=None)
    with transaction() as session:
        recording.fail(session, ledger.leased(1), "the build failed", "SyntaxError")
    assert not ledger.fitness(1).builds
    with transaction() as session:
        session.execute(update(Target).values(recipe_id=2))
    assert ledger.fitness(1).builds


def test_trouble_of_the_machine_makes_nobody_unfit(ledger):
    ledger.run(0, baseline=None)
    lease = ledger.leased(1)
    with transaction() as session:
        recording.fail(session, lease, "given up after 3 attempts: No space left on device")
    assert ledger.fitness(1) == Fitness()


def test_a_regression_leaves_the_mainline_with_its_revision(ledger):
    ledger.run(0, baseline=None)
    ledger.run(1, wide=1.5)
    with transaction() as session:
        session.execute(update(Revision).where(Revision.sha == "c1").values(ordinal=None))
    ledger.run(2, wide=1.5, baseline=0)
    assert ledger.open() == [1.5], "the newer of two"


# -- gaps to SOTA


def test_a_gap_keeps_since_when_whatever_is_measured_again(ledger):
    ledger.run(0, baseline=None, sota_us=100)
    since = ledger.run(1, wide=1.2, sota_us=100)
    newest = ledger.run(2, wide=1.2, sota_us=100)
    ledger.run(0, baseline=None, sota_us=100)
    with reading() as session:
        gap = session.execute(select(Gap).join(Gap.series).where(Series.printed == WIDE)).scalar_one()
        assert (gap.behind_sota, gap.since_run_id, gap.last_run_id) == (True, since, newest)


def test_an_uncertain_ratio_names_nobody(ledger):
    ledger.run(0, baseline=None)
    lease = ledger.leased(1)
    evidence = ledger.found(1.0, 1.2, 0, {})
    world.recorded(lease, world.session_of((replace(one, confirmed=()) for one in evidence.taken), "c0"))
    with reading() as session:
        rows = select(VerdictRow).where(VerdictRow.run_id == lease.run_id, VerdictRow.case == WIDE)
        [row] = session.execute(rows.where(VerdictRow.baseline_kind == "sota")).scalars()
    assert (words.of_verdict(row), row.cause_certain) == ("behind inductor since c1", False)
    assert "our own time became 20 % slower since c0" in words.cause_text(row)


def test_the_control_stands_beside_the_verdicts_of_every_provider(ledger):
    lease = ledger.leased(1)
    taken = [took(role, FAST, 1.0, provider) for role in (Role.HEAD, Role.PARENT) for provider in ("norms", "compiled")]
    # Of the two copies each trial the machine was another: what counts is the ratio within a trial.
    drifting = [
        ContenderResult(role, "norms", Case.parse(FAST), CellState.MEASURED, None, ((us,), (2 * us,), (9 * us,)))
        for role, us in ((Role.PARENT, 100.0), (Role.CONTROL, 100.2))
    ]
    taken = [one for one in taken if (one.role, one.provider) != (Role.PARENT, "norms")]
    world.recorded(lease, world.session_of([*taken, *drifting], "c0"))
    told = ledger.report(lease.run_id)
    ratios = {row.provider: row.control_ratio for row in told.rows}
    assert ratios == {"norms": pytest.approx(1.002), "compiled": pytest.approx(1.002)}


# -- a session whose controls are off


def session_of(control: float, *, head: float = 1.2) -> SessionResult:
    """A head that is slower, and a copy of its baseline that is as well."""
    us = {Role.HEAD: 100.0 * head, Role.PARENT: 100.0, Role.CONTROL: 100.0 * control}
    return world.session_of((world.took(role, FAST, at) for role, at in us.items()), "c0")


def test_a_session_whose_control_is_off_is_repeated_once_by_itself(ledger):
    lease = ledger.leased(1)
    world.recorded(lease, session_of(1.1))
    with reading() as session:
        run = session.get_one(Run, lease.run_id)
        assert (run.state, run.repeated, run.attempt < run.max_attempts) == (RunState.QUEUED, True, True)
        assert session.execute(select(func.count(VerdictRow.id))).scalar_one() == 0, "nobody is told of it"
        [off] = session.execute(select(Calibration.ratio)).scalars()
        assert off == pytest.approx(1.1), "what it says of equal code is kept"

    again = world.leased()
    assert again.run_id == lease.run_id
    world.recorded(again, session_of(1.1))
    found = ledger.report(lease.run_id)
    assert (found.state, found.repeated) == (RunState.DONE, True), "never more than once"
    [row] = found.rows
    assert (row.outcome, row.doubt) == (Outcome.INCONCLUSIVE, Doubt.CONTROL)


def test_the_second_session_decides_where_its_control_holds(ledger):
    lease = ledger.leased(1)
    world.recorded(lease, session_of(1.1))
    world.recorded(world.leased(), session_of(1.0))
    found = ledger.report(lease.run_id)
    assert ([row.outcome for row in found.rows], found.repeated) == ([Outcome.REGRESSION], True)


# -- two workers at once


def test_two_workers_on_a_new_stack_both_keep_their_sessions(ledger):
    leases = [ledger.leased(0), ledger.leased(1)]
    together = Barrier(2)

    def end(lease: queue.Lease) -> None:
        together.wait()
        world.recorded(lease, ledger.found(1.0, 1.0, None, {}))

    with ThreadPoolExecutor(2) as workers:
        list(workers.map(end, leases))
    with reading() as session:
        assert session.execute(select(func.count()).select_from(Stack)).scalar_one() == 1
        assert session.execute(select(func.count()).select_from(Gap)).scalar_one() == 2
        assert set(session.execute(select(Run.state)).scalars()) == {RunState.DONE}


def test_workers_that_record_a_mainline_at_once_leave_what_they_would_one_after_the_other(ledger):
    ledger.run(0, baseline=None)
    leases = {place: ledger.leased(place) for place in range(1, 5)}
    together = Barrier(len(leases))

    def end(place: int) -> None:
        found = ledger.found(1.0, 1.5 if place == 2 else 1.0, place - 1, {}, sota_us=50.0)
        together.wait()
        world.recorded(leases[place], found)

    with ThreadPoolExecutor(len(leases)) as workers:
        list(workers.map(end, leases))
    assert ledger.open() == [1.5]
    with reading() as session:
        gaps = session.execute(select(Gap)).scalars().all()
    assert {(gap.case, gap.behind_sota, gap.last_run_id) for gap in gaps} == {
        (case, True, leases[4].run_id) for case in (FAST, WIDE)
    }


HELD = f"{FAST}.memory"


def metrics_found(held: float, baseline: int | None) -> SessionResult:
    """The kernel's time does not change, the memory of a call may, and one op is not supported."""
    taken = [took(Role.HEAD, FAST, 1.0), took(Role.HEAD, HELD, held)]
    if baseline is not None:
        taken += [took(Role.PARENT, FAST, 1.0), took(Role.PARENT, HELD, 1.0)]
    taken.append(ContenderResult(Role.HEAD, "norms", Case.parse(WIDE), CellState.UNSUPPORTED, "at most 1024 columns"))
    stack = {"torch": "2.13.0" if baseline is None else "2.14.0"}
    sha = None if baseline is None else f"c{baseline}"
    return world.session_of(taken, sha, stack=stack, telemetry={"ceilings": {"copy_gb_s": 40.0}})


def test_lanes_are_judged_apart_and_what_is_not_supported_is_kept(ledger):
    runs = []
    for place, held in ((0, 1.0), (1, 1.015)):
        lease = ledger.leased(place)
        runs.append(world.recorded(lease, metrics_found(held, place - 1 if place else None)).id)
    told = ledger.report(runs[1])
    assert {row.case: row.outcome for row in told.rows} == {FAST: Outcome.STEADY, HELD: Outcome.REGRESSION}
    assert [(one.case, one.reason) for one in told.unsupported] == [(WIDE, "at most 1024 columns")]
    [time, held] = told.of(Outcome.STEADY, Outcome.REGRESSION)[::-1]
    assert held.change == "1.5 % more memory", "a small change of a time, and a large one of what has no noise"
    assert (held.head.unit, held.head.gb_s, held.head.speed.copy_share) == ("bytes", None, None)
    assert time.head.speed.copy_share == pytest.approx(time.head.gb_s / 40)
    with reading() as session:
        before, change = stack_change(session, whole_run(session, runs[1]))
        assert (before.id, change) == (runs[0], ("torch 2.13.0 → 2.14.0",))
        assert stack_change(session, whole_run(session, runs[0])) is None
        points = series(session, session.get_one(Target, ledger.target_id), HELD, "norms", "cpu")
        assert [point.stack_changes for point in points] == [(), ("torch 2.13.0 → 2.14.0",)]
