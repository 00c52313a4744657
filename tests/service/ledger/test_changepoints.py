"""Histories in the ledger: scans as data arrives, the points that they store, and their later states."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import joinedload

from kernels.cases import Role
from service.db.engine import reading, transaction
from service.db.models import (
    ChangePoint,
    Measurement,
    Quarantine,
    RecipeRow,
    RegressionRow,
    Revision,
    Run,
    Stack,
    Target,
)
from service.domain.states import (
    CellState,
    FoundBy,
    PointReason,
    PointState,
    Purpose,
    RegressionState,
    RunState,
    SearchState,
)
from service.ledger.bisections import advance, bisections
from service.ledger.calibration.error_rates import error_rates
from service.ledger.changepoints import follow_up, load, scan
from service.ledger.changepoints.load import histories, mainline
from service.ledger.runs import queue
from service.reports.words import of_point_reason
from tests import world
from tests.made_histories import Made, store

CASES = tuple(f"rmsnorm.fwd.{rows}x4096.fp32" for rows in (512, 1024, 2048, 4096))
FIRST = CASES[0]
RECIPE = f"""
devices = ["cpu"]
sota = "inductor"
suite = "all"

[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"

[suites]
all = {list(CASES)}
"""
Level = Callable[[int], float]


def step(at: int, ratio: float) -> Level:
    """From the revision `at` on a case takes `ratio` times what it took."""
    return lambda place: ratio if place >= at else 1.0


def leak(a_commit: float, begins: int = 0) -> Level:
    return lambda place: (1 + a_commit) ** max(0, place - begins)


@dataclass
class Watched:
    """A target whose cases take 500 us, times what `true` says of the code and `machine` of where it is measured."""

    name: str = "norms"
    true: dict[str, Level] = field(default_factory=dict)
    machine: Level = lambda place: 1.0  # of what the mainline's own runs see, and no later session
    sota: Level | None = None
    noise: float = 0.002
    worker: str = "gpu-1"
    begun_at: float = 0.0
    seed: int = 0
    measured: int = 0

    def register(self) -> "Watched":
        world.target(RECIPE, self.name)
        return self

    @property
    def random(self) -> np.random.Generator:
        return np.random.default_rng((self.seed, self.measured))

    def measure(self, count: int, order: list[int] | None = None, stack: str | None = None) -> list[int]:
        """The next revisions of the mainline are measured, and not yet scanned."""
        places = range(self.measured, self.measured + count)
        shared = np.array([500.0 * self.machine(place) for place in places])
        random = self.random

        def noisy(level: Level) -> np.ndarray:
            return shared * [level(place) for place in places] * np.exp(random.normal(0, self.noise, count))

        own = {("norms", case): noisy(self.true.get(case, lambda place: 1.0)) for case in CASES}
        sota = {case: noisy(self.sota) for case in CASES} if self.sota else {}
        with transaction() as session:
            made = Made(
                own, sota, order, self._stack(session, stack), self.worker, self.begun_at + 60.0 * self.measured
            )
            runs = store(session, self.target(session), "cpu", "all", made, "inductor")
        self.measured += count
        return runs

    def _stack(self, session, digest: str | None) -> int | None:
        if digest is None:
            return None
        known = session.scalar(select(Stack).where(Stack.digest == digest))
        if known is None:
            known = Stack(digest=digest, versions={"torch": digest})
            session.add(known)
            session.flush()
        return known.id

    def target(self, session) -> Target:
        return session.execute(select(Target).where(Target.name == self.name)).scalar_one()

    def line(self, session) -> dict[int, Revision]:
        return {row.ordinal: row for row in session.scalars(select(Revision))}

    def settle(self) -> None:
        """Control and a worker take turns until neither has anything to do."""
        for _ in range(100):
            scan.scan_due()
            advance.advance_due()
            if not self.work():
                scan.scan_due()
                return

    def work(self) -> bool:
        """A worker measures the next step of a search: the code alone, for the machine is another today."""
        with transaction() as session:
            lease = queue.next_run(session, "cpu", "gpu-2", 60)
        if lease is None:
            return False
        with reading() as session:
            run = session.get_one(Run, lease.run_id)
            sides = session.get_one(Revision, run.revision_id).sha, run.baseline
        head, base = (int(sha.rpartition("-")[2]) for sha in sides)
        taken = []
        for case in run.only_cases or CASES:
            level = self.true.get(case, lambda place: 1.0)
            sides = ((Role.HEAD, head), (Role.PARENT, base))
            taken += [world.took(role, case, 500 * level(place)) for role, place in sides]
        world.recorded(lease, world.session_of(taken, run.baseline))
        return True

    def points(self, case: str | None = None, state: PointState | None = None) -> list[load.ChangePointView]:
        with reading() as session:
            found = load.points(session, self.target(session), "cpu", state).items
        return sorted((one for one in found if case in (None, one.row.case)), key=lambda one: one.revision.ordinal)

    def searches(self) -> list[Run]:
        with reading() as session:
            return list(session.scalars(select(Run).where(Run.purpose == Purpose.BISECTION).order_by(Run.id)))


@pytest.fixture
def watched(state: Path) -> Watched:
    return Watched().register()


@pytest.fixture
def anywhere(either_nightly: str) -> Watched:
    """On SQLite, and once more on PostgreSQL."""
    return Watched().register()


def places(points: list[load.ChangePointView]) -> list[int | None]:
    return [one.revision.ordinal for one in points]


# -- what is found


def test_a_step_is_found_once_with_its_size_and_where_it_lies(anywhere):
    anywhere.true = {FIRST: step(40, 1.03)}
    anywhere.measure(60)
    scan.scan_due()
    scan.scan_due()

    [point] = anywhere.points()
    assert (point.row.case, point.revision.ordinal, point.before.ordinal) == (FIRST, 40, 39)
    assert point.row.low < 1.03 < point.row.high
    assert point.row.level == "block"
    assert point.row.p < 1e-3
    with reading() as session:
        assert session.scalars(select(ChangePoint.id).where(ChangePoint.course.is_(None))).all() == [point.row.id]
        target = anywhere.target(session)
        assert [one.row.id for one in load.points_of(session, target, FIRST, "norms", "cpu")] == [point.row.id]
        assert load.points_of(session, target, CASES[1], "norms", "cpu") == []


def test_nothing_is_found_in_noise(watched):
    watched.noise = 0.01
    watched.measure(120)
    scan.scan_due()
    assert watched.points() == []


def test_revision_by_revision_the_same_is_found_as_at_once(watched):
    watched.true = {FIRST: step(45, 1.03)}
    watched.measure(40)
    scan.scan_due()
    for _ in range(15):
        watched.measure(1)
        scan.scan_due()
    [point] = watched.points()
    assert abs(point.revision.ordinal - 45) <= 2, "few revisions had followed"


def test_a_leak_of_a_third_of_a_percent_a_commit_is_found_and_becomes_a_regression(watched):
    watched.true = {FIRST: leak(0.003, begins=20)}
    watched.measure(60)
    watched.settle()
    found = watched.points(FIRST)
    assert found
    assert {one.row.case for one in watched.points()} == {FIRST}
    [*_, last] = watched.points(FIRST, PointState.CONFIRMED)
    with reading() as session:
        regression = session.get_one(RegressionRow, last.row.regression_id)
    assert regression.found_by is FoundBy.HISTORY
    assert regression.culprit is None, "no single commit did it"


def test_a_leak_is_one_point_and_its_parts_are_its_course(watched):
    """No pair sees a fifth of a percent; what was found as a step first is the leak later."""
    watched.true = {FIRST: leak(0.002, begins=40)}
    for count in (46, *[1] * 44):
        runs = watched.measure(count)
        with transaction() as session:
            world.judged(session, session.get_one(Run, runs[-1]), FIRST, outcome="steady")
        scan.scan_due()
    [point] = watched.points(FIRST)
    assert point.row.ratio == pytest.approx(1.002**50, abs=0.02)
    parts = [(part["revision"], part["ratio"]) for part in point.row.course]
    assert parts[-1] == ("norms-89", point.row.ratio)
    closed = [one for one in watched.points(FIRST) if one.row.id != point.row.id]
    assert {of_point_reason(one.row) for one in closed} <= {f"a part of the leak of change point {point.row.id}"}


def steady_scans(watched: Watched, counts: Iterable[int]) -> Iterator[load.ChangePointView]:
    """Scan after so many more revisions each, whose newest pair is steady; the points of the first case each time."""
    for count in counts:
        runs = watched.measure(count)
        with transaction() as session:
            world.judged(session, session.get_one(Run, runs[-1]), FIRST, outcome="steady")
        scan.scan_due()
        yield from watched.points(FIRST)


def test_a_leak_does_not_shrink_when_its_beginning_leaves_the_scanned_revisions(watched):
    """The newest 120 revisions are scanned: of a leak from the 40th to the 100th they show less and less."""
    watched.noise, watched.true = 0.004, {FIRST: lambda place: 1.002 ** min(max(0, place - 40), 60)}
    sizes: dict[int, list[float]] = {}
    befores: dict[int, list[int]] = {}
    for point in steady_scans(watched, (100, *[4] * 25)):
        if point.row.course and point.row.state in follow_up.UNEXPLAINED:
            sizes.setdefault(point.row.id, []).append(point.row.ratio)
            befores.setdefault(point.row.id, []).append(point.before.ordinal)
            assert point.row.course[-1]["ratio"] == point.row.ratio
    [of_leak] = sizes.values()
    [begins] = befores.values()
    assert of_leak == sorted(of_leak)
    assert begins == sorted(begins, reverse=True)
    assert of_leak[-1] == pytest.approx(1.002**60, abs=0.02)


def test_a_step_that_is_all_that_is_left_of_a_leak_does_not_replace_it(watched):
    watched.true = {FIRST: step(40, 1.05)}
    watched.measure(60)
    with transaction() as session:
        line = watched.line(session)
        course = [{"revision": "norms-45", "ratio": 1.2}]
        world.change_point(session, line[20], line[40], FIRST, 1.2, course=course)
    scan.scan_due()
    [point] = watched.points(FIRST)
    assert (point.row.followed_by, point.row.ratio) == (19, 1.2), "found again"
    assert point.row.course == [{"revision": "norms-45", "ratio": 1.2}]


def test_a_leak_that_was_closed_is_not_searched_again_as_it_goes_on(watched):
    watched.true = {FIRST: leak(0.002, begins=40)}
    ended = set()
    for point in steady_scans(watched, (90, *[3] * 15)):
        if point.row.course and point.row.state in follow_up.UNEXPLAINED:
            assert not ended, "the same leak"
            with transaction() as session:
                row = session.get_one(ChangePoint, point.row.id)
                row.state, row.refuted_scans = PointState.CLOSED, 1
            ended.add(point.row.id)
    assert len(ended) == 1
    [last] = [one for one in watched.points(FIRST) if one.row.id in ended]
    assert last.row.state is PointState.CLOSED
    assert int(last.row.course[-1]["revision"].rpartition("-")[2]) >= 125, "it goes on"


def test_a_leak_after_a_confirmed_step_is_a_point_of_its_own(watched):
    watched.true = {FIRST: lambda place: (1.03 if place >= 30 else 1.0) * 1.002 ** max(0, place - 60)}
    watched.measure(50)
    scan.scan_due()
    with transaction() as session:
        confirmed = session.scalars(select(ChangePoint)).one()
        confirmed.state = PointState.CONFIRMED
        was = confirmed.ratio, confirmed.low, confirmed.high, confirmed.p
    list(steady_scans(watched, (20, 20, 20, 10)))
    first, *later = watched.points(FIRST)
    assert (first.row.ratio, first.row.low, first.row.high, first.row.p, first.row.course) == (*was, None)
    assert [bool(one.row.course) for one in later if one.row.state in follow_up.UNEXPLAINED] == [True]


def test_two_commits_one_revision_apart_are_two_searches(watched):
    watched.true = {FIRST: step(40, 1.03), CASES[1]: step(41, 1.06), CASES[2]: step(41, 1.05)}
    watched.measure(70)
    watched.settle()
    found = watched.points(state=PointState.CONFIRMED)
    searches = {one.row.case: one.row.bisection_id for one in found}
    assert searches[CASES[1]] == searches[CASES[2]] != searches[FIRST]
    with reading() as session:
        culprits = {row.case: row.culprit for row in session.scalars(select(RegressionRow))}
    assert culprits == {FIRST: "norms-40", CASES[1]: "norms-41", CASES[2]: "norms-41"}


@pytest.mark.parametrize("again", [False, True])  # by a run of the same revision that measured another case
@pytest.mark.parametrize("compiled", ["same", "other"])
def test_a_step_of_one_case_with_the_same_code_is_the_machine(state, compiled, again):
    """None of its five siblings moved, and the hash of its kernels did not change."""
    cases = [f"rmsnorm.fwd.{256 * number}x4096.fp32" for number in range(1, 7)]
    random = np.random.default_rng(0)
    own = {("norms", case): 500 * np.exp(random.normal(0, 0.002, 60)) for case in cases}
    own["norms", cases[0]][40:] *= 1.05
    world.target(RECIPE, "norms")
    with transaction() as session:
        target = session.scalars(select(Target)).one()
        runs = store(session, target, "cpu", "all", Made(own))
        for number, run_id in enumerate(runs):
            facts = {"kind": "triton", "code": "other" if compiled == "other" and number >= 40 else "same", "ops": []}
            session.execute(update(Measurement).where(Measurement.run_id == run_id).values(facts=facts))
        if again:
            world.measured(session, world.again(session, session.get_one(Run, runs[40])), cases[5], 500.0)
    scan.scan_due()
    with reading() as session:
        [point] = load.points(session, None).items
    why = "the machine: the code did not change, and no other case moved"
    assert (point.row.state is PointState.CLOSED) == (compiled == "same")
    assert (of_point_reason(point.row) == why) == (compiled == "same")


def test_a_change_of_stack_is_no_point(watched):
    watched.true = {case: step(40, 1.20) for case in CASES}
    watched.measure(40, stack="torch 2.12")
    watched.measure(40, stack="torch 2.13")
    scan.scan_due()
    assert watched.points() == []


def test_a_machine_that_wavers_is_what_sota_tells(watched):
    watched.machine, watched.sota = lambda place: 1 + 0.04 * np.sin(place / 3), lambda place: 1.0
    watched.true = {FIRST: step(80, 1.02)}
    watched.measure(120)
    scan.scan_due()
    assert {(one.row.case, one.revision.ordinal) for one in watched.points()} == {(FIRST, 80)}


def test_a_baseline_that_moved_asks_for_nothing_and_is_told(watched):
    """SOTA is 8 % faster from the 60th revision on, and ours as it was."""
    watched.machine, watched.sota = lambda place: 1 + 0.04 * np.sin(place / 3), step(60, 0.92)
    watched.measure(120)
    watched.settle()
    assert watched.searches() == []
    assert {one.row.state for one in watched.points()} == {PointState.CLOSED}
    for one in watched.points():
        assert of_point_reason(one.row).startswith("the baseline moved, not this: SOTA is")


def test_the_order_of_measuring_makes_no_difference(watched):
    watched.true = {FIRST: step(30, 1.03)}
    backwards = list(range(60))[::-1]
    watched.measure(60, order=backwards)
    scan.scan_due()
    assert places(watched.points()) == [30]


def test_revisions_that_are_measured_late_complete_the_history(anywhere):
    anywhere.true = {FIRST: step(40, 1.03)}
    runs = anywhere.measure(60)
    late = runs[36:50:2]
    with transaction() as session:
        session.execute(update(Run).where(Run.id.in_(late)).values(state=RunState.QUEUED))
    scan.scan_due()
    with transaction() as session:
        session.execute(update(Run).where(Run.id.in_(late)).values(state=RunState.DONE))
    scan.scan_due()
    [point] = anywhere.points()
    assert abs(point.revision.ordinal - 40) <= 2, "the same point, though it moved"


def test_the_newest_measurement_of_a_revision_counts_and_failed_ones_do_not(anywhere):
    anywhere.measure(20)
    with transaction() as session:
        run = world.again(session, session.scalars(select(Run).order_by(Run.id).limit(1)).one())
        world.measured(session, run, FIRST, 7.0)
        world.measured(session, run, CASES[1], contender="head:other", state=CellState.FAILED, reason="no")
    with reading() as session:
        table = histories(session, mainline(session, anywhere.target(session).id, "cpu"))
    row = dict(zip(table.names, table.values, strict=True))
    assert row["norms", FIRST][0] == 7.0
    assert 400 < row["norms", CASES[1]][0] < 600, "the run before, where the newest has nothing"
    assert table.values.shape == (4, 20)


def test_who_is_quarantined_alarms_nobody(watched):
    watched.true = {FIRST: step(40, 1.05), CASES[1]: step(40, 1.05)}
    with transaction() as session:
        series_id = world.series(session, watched.target(session).id, FIRST)
        session.add(Quarantine(series_id=series_id, since=0.0, by="ada", reason="it lies"))
    watched.measure(60)
    scan.scan_due()
    assert {one.row.case for one in watched.points()} == {CASES[1]}


# -- once, whatever happens


def test_a_restart_in_the_middle_forgets_nothing_and_finds_nothing_twice(anywhere, monkeypatch):
    anywhere.true = {case: step(40, 1.03) for case in CASES}
    anywhere.measure(60)
    with monkeypatch.context() as patch:
        patch.setattr(scan.log, "info", lambda *_, **__: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            scan.scan_due()  # the process ends while points are being stored
    assert anywhere.points() == []
    scan.scan_due()
    assert places(anywhere.points()) == [40] * 4
    with reading() as session:
        assert session.scalars(select(Run.id).where(Run.scanned_at.is_(None))).all() == []


def test_two_controls_at_once_find_what_one_finds(anywhere):
    anywhere.true = {case: step(40, 1.03) for case in CASES}
    runs = anywhere.measure(60)
    with reading() as session:
        target_id = anywhere.target(session).id
    with ThreadPoolExecutor(2) as pool:
        kept = list(pool.map(lambda _: scan.scan(target_id, "cpu", runs), range(2)))
    assert True in kept
    assert places(anywhere.points()) == [40] * 4


def test_a_look_that_another_control_was_faster_with_is_not_kept(anywhere):
    """Else what one look misses would count twice, and a point be closed that was missed in fewer looks."""
    anywhere.true = {FIRST: step(40, 0.97)}
    anywhere.measure(60)
    scan.scan_due()
    anywhere.true = {}
    with transaction() as session:
        session.execute(update(Measurement).where(Measurement.case == FIRST).values(median=500.0))
    with transaction() as session:
        session.execute(update(Run).values(scanned_at=None))
        target_id = anywhere.target(session).id
        runs = session.scalars(select(Run.id).order_by(Run.id)).all()
    assert [scan.scan(target_id, "cpu", runs) for _ in range(2)] == [True, False]
    assert [one.row.refuted_scans for one in anywhere.points()] == [1]


def test_with_very_much_to_look_at_the_other_duties_have_their_turn(watched, monkeypatch):
    other = Watched(name="other", seed=1).register()
    for one in (watched, other):
        one.measure(20)
    seconds = iter(range(0, 1000, 8))
    monkeypatch.setattr(scan.time, "monotonic", lambda: next(seconds))
    left = []
    for _ in range(2):
        scan.scan_due()
        with reading() as session:
            left.append(len(session.scalars(select(Run.id).where(Run.scanned_at.is_(None))).all()))
    assert left == [20, 0]


def test_what_later_data_do_not_show_is_closed_after_three_looks_and_stays_so(watched):
    """A point that only the first sixty revisions showed: they are measured again, and the step is gone."""
    watched.true = {FIRST: step(40, 0.97)}
    watched.measure(60)
    scan.scan_due()
    [point] = watched.points()
    watched.true = {}
    with transaction() as session:
        of_case = Measurement.case == FIRST
        session.execute(update(Measurement).where(of_case).values(median=500.0))
    reasons = []
    for _ in range(4):
        with transaction() as session:  # everything is looked at again
            session.execute(update(Run).values(scanned_at=None))
        scan.scan_due()
        reasons.append([(one.row.state, one.row.refuted_scans) for one in watched.points()])
    assert reasons[:3] == [[(PointState.OPEN, 1)], [(PointState.OPEN, 2)], [(PointState.CLOSED, 3)]]
    reason = of_point_reason(watched.points()[0].row)
    assert reason.startswith("60 revisions show +0.0 % here (+0.0 % to +0.0 %), and not -2.9 %")

    with transaction() as session:
        for place in range(40, 60):
            ids = select(Run.id).join(Revision).where(Revision.ordinal == place)
            session.execute(update(Measurement).where(of_case, Measurement.run_id.in_(ids)).values(median=485.0))
        session.execute(update(Run).values(scanned_at=None))
    scan.scan_due()
    [again] = watched.points()
    assert (again.row.id, again.row.state) == (point.row.id, PointState.CLOSED), "a closed point does not reopen"


def test_only_contradictions_in_a_row_close_a_point(watched):
    """Two scans contradict it; noise of 10 %, which contradicts nothing, begins the count again."""
    watched.true = {FIRST: step(40, 0.97)}
    watched.measure(60)
    scan.scan_due()
    scans = []
    for deviation in (0, 0, 0.1, 0, 0, 0):
        noise = np.append(np.random.default_rng(0).normal(0, deviation, 59), 0)
        with transaction() as session:
            of_case = update(Measurement).where(Measurement.case == FIRST)
            for place, value in enumerate(500.0 * np.exp(noise)):
                runs = select(Run.id).join(Revision).where(Revision.ordinal == place)
                session.execute(of_case.where(Measurement.run_id.in_(runs)).values(median=value))
            session.execute(update(Run).values(scanned_at=None))
        scan.scan_due()
        [point] = watched.points()
        scans.append((point.row.state, point.row.refuted_scans))
    expected = [(PointState.OPEN, count) for count in (1, 2, 0, 1, 2)]
    assert scans == [*expected, (PointState.CLOSED, 3)]


def test_a_point_that_is_lost_next_to_another_change_is_closed_after_three_scans(watched):
    watched.true = {FIRST: step(60, 0.9)}
    watched.measure(120)
    scan.scan_due()
    with transaction() as session:
        line = watched.line(session)
        world.change_point(session, line[57], line[58], FIRST, 0.97)
    counts = []
    for _ in range(3):
        with transaction() as session:
            session.execute(update(Run).values(scanned_at=None))
        scan.scan_due()
        lost, found = watched.points()
        counts.append((lost.row.refuted_scans, lost.row.reason_code))
        assert found.row.refuted_scans == 0
    assert counts == [(1, None), (2, None), (3, "lost")]


def test_a_closed_part_of_a_leak_is_not_retracted_by_later_values(watched):
    """A step that became a part of a leak was right; that no step is found there any more says nothing against it."""
    watched.measure(100)
    scan.scan_due()
    with transaction() as session:
        line = watched.line(session)
        follow_up.close(world.change_point(session, line[49], line[50], FIRST), PointReason.PART, leak=7)
        session.execute(update(Run).values(scanned_at=None))
    scan.scan_due()
    [point] = watched.points()
    assert point.row.refuted_scans == 1
    assert point.row.reason_code == "part"
    with reading() as session:
        assert error_rates(session, 0.0).retracted.differed == 0


def test_data_that_flap_do_not_flap_the_points(watched):
    """Scanned after every revision, a noisy series with a step has one point, whose state never goes back."""
    watched.noise, watched.true = 0.006, {FIRST: step(45, 0.985)}
    watched.measure(40)
    scan.scan_due()
    ended: dict[int, PointState] = {}
    for _ in range(30):
        watched.measure(1)
        with transaction() as session:  # a close look at everything, each time
            session.execute(update(Run).values(scanned_at=None))
        scan.scan_due()
        for one in watched.points():
            assert ended.get(one.row.id, one.row.state) is one.row.state
            if one.row.state in (PointState.CLOSED, PointState.CONFIRMED):
                ended[one.row.id] = one.row.state
    assert len([one for one in watched.points(FIRST) if abs(one.revision.ordinal - 45) <= 6]) == 1


# -- what follows


def test_a_step_that_no_pair_saw_is_searched_for_and_becomes_a_regression(anywhere):
    anywhere.true = {FIRST: step(40, 1.03), CASES[1]: step(40, 1.05)}
    anywhere.measure(60)
    anywhere.settle()

    both = anywhere.points()
    assert [(one.row.case, one.row.state) for one in both] == [(case, PointState.CONFIRMED) for case in CASES[:2]]
    assert len({one.row.bisection_id for one in both}) == 1, "one incident, one search"
    assert {run.priority for run in anywhere.searches()} == {40}
    with reading() as session:
        rows = session.scalars(select(RegressionRow)).all()
    assert {row.found_by for row in rows} == {FoundBy.HISTORY}
    assert {row.culprit for row in rows} == {"norms-40"}
    assert {row.id for row in rows} == {one.row.regression_id for one in both}
    asked = len(anywhere.searches())
    anywhere.measure(3)
    anywhere.settle()
    assert len(anywhere.searches()) == asked, "what is confirmed is not asked for again"


def test_what_a_search_does_not_repeat_is_the_machine(watched):
    """Everything measured from the 40th revision on is 3 % slower, and the code is not."""
    watched.machine = step(40, 1.03)
    watched.measure(60)
    watched.settle()
    assert {one.row.state for one in watched.points()} == {PointState.CLOSED}
    [reason] = {of_point_reason(one.row) for one in watched.points()}
    assert reason.endswith("did not repeat it: the machine, not the code")
    with reading() as session:
        assert session.scalars(select(RegressionRow)).all() == []
    asked = len(watched.searches())
    for _ in range(5):
        watched.measure(1)
        watched.settle()
    assert len(watched.searches()) == asked


@pytest.mark.parametrize(
    ("steps", "leak", "after"),
    [
        ({"8/0": "inconclusive", "6/0": "inconclusive", "4/0": "steady"}, False, "inconclusive"),
        ({"8/0": "inconclusive", "8/7": "steady"}, False, "inconclusive"),  # the proof of another culprit
        ({"8/0": "inconclusive", "6/0": "steady"}, False, "not_repeated"),
        ({"8/0": "inconclusive", "6/5": "steady"}, False, "not_repeated"),
        ({"8/0": "steady"}, False, "not_repeated"),
        ({"8/0": "inconclusive", "6/0": "steady"}, True, "inconclusive"),  # the leak has only begun
        ({"8/0": "steady"}, True, "not_repeated"),
    ],
)
def test_only_a_session_with_both_sides_of_a_point_does_not_repeat_it(state, steps, leak, after):
    """The point is at c6; the bisection of c0..c8 found the culprit of another series of the incident."""
    target = world.target(RECIPE)
    with transaction() as session:
        line = [world.commit(session, target.id, place) for place in range(9)]
        search = world.bisection(session, line, FIRST, state=SearchState.FOUND, culprit="c8")
        course = [{"revision": "c8", "ratio": 1.05}] if leak else None
        state = {"state": PointState.CHECKING, "bisection_id": search.id, "course": course}
        world.change_point(session, line[5], line[6], FIRST, 1.05, **state)
        for step, outcome in steps.items():
            head, baseline = step.split("/")
            sides = {"revision": line[int(head)], "baseline": f"c{baseline}", "bisection_id": search.id}
            run = world.run(session, **sides, purpose=Purpose.BISECTION, state=RunState.DONE)
            world.judged(session, run, FIRST, outcome=outcome, baseline=f"c{baseline}")
    with transaction() as session:
        rows = session.scalars(select(ChangePoint).options(joinedload(ChangePoint.series))).all()
        follow_up.settle(session, rows)
        assert [row.reason_code for row in rows] == [after]


def test_a_regression_that_the_pair_found_explains_the_point(watched):
    watched.true = {FIRST: step(40, 1.03)}
    runs = watched.measure(60)
    with transaction() as session:
        world.regression(session, session.get_one(Run, runs[41]), FIRST, 1.03)
    watched.settle()
    [point] = watched.points()
    assert (point.row.state, point.row.regression_id) == (PointState.CONFIRMED, 1)
    assert of_point_reason(point.row) == "regression 1"
    assert watched.searches() == []


def test_an_improvement_that_the_pair_saw_explains_a_faster_point(anywhere):
    anywhere.true = {FIRST: step(40, 0.96), CASES[1]: step(40, 0.96)}
    runs = anywhere.measure(50)
    with transaction() as session:
        world.judged(session, session.get_one(Run, runs[40]), FIRST, outcome="improvement")
    anywhere.settle()
    states = {one.row.case: (one.row.state, of_point_reason(one.row)) for one in anywhere.points()}
    assert states[FIRST] == (PointState.CONFIRMED, f"improvement of run {runs[40]}")
    assert states[CASES[1]] == (PointState.OPEN, None)
    anywhere.measure(25)
    anywhere.settle()
    assert {one.row.state for one in anywhere.points()} == {PointState.CONFIRMED}, "it has stayed so for long"
    assert anywhere.searches() == []


def test_an_improvement_that_was_reverted_was_not_held(watched):
    """Ten revisions were faster.  Neither the revert nor the thirty that followed are evidence that it was held."""
    watched.noise = 0.004
    watched.true = {FIRST: lambda place: 0.96 if 50 <= place < 60 else 1.0}
    for count in (50, *[2] * 30):
        watched.measure(count)
        scan.scan_due()
    faster = [one for one in watched.points(FIRST) if one.row.ratio < 1]
    assert [one.row.state for one in faster] == [PointState.OPEN]


def test_an_improvement_that_no_scan_found_again_was_not_held(watched):
    watched.true = {FIRST: step(40, 0.96)}
    watched.measure(55)
    scan.scan_due()
    watched.measure(25)
    with transaction() as session:  # nothing was scanned: another process died
        session.execute(update(Run).values(scanned_at=0.0))
    follow_up.follow_due()
    assert [one.row.state for one in watched.points()] == [PointState.OPEN]
    with transaction() as session:
        session.execute(update(Run).values(scanned_at=None))
    scan.scan_due()
    assert [one.row.state for one in watched.points()] == [PointState.CONFIRMED]


def test_several_targets_that_move_within_the_same_hours_are_the_machine(anywhere):
    other = Watched(name="other", seed=1).register()
    for one in (anywhere, other):
        one.machine = step(40, 1.04)
        one.measure(60)
    anywhere.settle()
    for one in (anywhere, other):
        assert {point.row.state for point in one.points()} == {PointState.CLOSED}
    [why] = {of_point_reason(point.row) for point in anywhere.points()}
    assert why == "the machine: other changed within the same hours"
    assert anywhere.searches() == []


@pytest.mark.parametrize("odd", [1, 2])
def test_odd_measurements_of_the_newest_revisions_are_no_point(watched, odd):
    watched.machine = lambda place: 1.05 if 60 <= place < 60 + odd else 1.0
    watched.measure(60)
    scan.scan_due()
    for _ in range(4):
        watched.measure(1)
        watched.settle()
    assert watched.points() == []


def test_without_a_budget_a_point_waits(watched):
    with transaction() as session:
        recipe = session.scalars(select(RecipeRow)).one()
        recipe.text += "\n[policy.bisect]\nautomatic = false\n"
    watched.true = {FIRST: step(40, 1.03)}
    watched.measure(60)
    watched.settle()
    [point] = watched.points()
    assert (point.row.state, point.row.reason_code) == (PointState.OPEN, None)
    with transaction() as session:
        nothing = ChangePoint.course.is_(None), ChangePoint.reason_args.is_(None)
        assert session.scalars(select(ChangePoint.id).where(*nothing)).all() == [point.row.id], "NULL, and not null"
        recipe = session.scalars(select(RecipeRow)).one()
        recipe.text = RECIPE
    follow_up.follow_due()
    watched.settle()
    assert watched.points()[0].row.state is PointState.CONFIRMED


@pytest.mark.parametrize("why", ["known", None])
def test_a_regression_that_was_dismissed_closes_the_point(watched, why):
    watched.true = {FIRST: step(40, 1.03)}
    runs = watched.measure(60)
    with transaction() as session:
        known = {"state": RegressionState.DISMISSED, "reason": why}
        world.regression(session, session.get_one(Run, runs[41]), FIRST, 1.03, **known)
    watched.settle()
    [point] = watched.points()
    assert (point.row.state, point.row.reason_code) == (PointState.CLOSED, "dismissed")
    assert of_point_reason(point.row) == f"regression 1, which was dismissed{': known' if why else ''}"


def test_a_bisection_that_a_person_stopped_leaves_the_point_open_and_is_not_repeated(watched):
    watched.true = {FIRST: step(40, 1.03)}
    watched.measure(60)
    scan.scan_due()
    [point] = watched.points()
    assert (point.row.state, of_point_reason(point.row)) == (PointState.CHECKING, "bisection 1")
    with transaction() as session:
        bisections.stop(session, 1, "ada")
    watched.settle()
    [point] = watched.points()
    assert (point.row.state, point.row.reason_code) == (PointState.OPEN, "inconclusive")
    assert of_point_reason(point.row).startswith("bisection 1 was inconclusive: Stopped by ada.")
    follow_up.follow_due()
    assert [one.row.bisection_id for one in watched.points()] == [1]


def test_a_point_that_cannot_be_bisected_says_why(watched):
    watched.true = {FIRST: step(40, 1.03)}
    watched.measure(60)
    with transaction() as session:
        recipe = session.scalars(select(RecipeRow)).one()
        recipe.text = RECIPE.replace('devices = ["cpu"]', 'devices = ["h200"]')
    scan.scan_due()
    [point] = watched.points()
    assert (point.row.state, point.row.reason_code) == (PointState.OPEN, "not_bisectable")
    assert of_point_reason(point.row).startswith("cannot be bisected: Target norms is not measured on cpu")


def test_where_nothing_is_new_nothing_is_followed(anywhere, monkeypatch):
    """Control looks every few seconds: a point that waits for weeks must not be followed each time."""
    anywhere.true = {FIRST: step(40, 0.96)}
    anywhere.measure(60)
    followed = []
    monkeypatch.setattr(follow_up, "follow", lambda session, target, device: followed.append(device))
    for _ in range(3):
        scan.scan_due()
    assert followed == ["cpu"]
    anywhere.measure(1)
    scan.scan_due()
    follow_up.follow_due()
    assert followed == ["cpu"] * 3


def test_a_history_that_cannot_be_looked_at_is_let_be_for_a_while(watched, monkeypatch):
    watched.measure(20)
    other = Watched(name="other", seed=1).register()
    other.true = {FIRST: step(40, 1.05)}
    other.measure(60)
    with transaction() as session:
        session.execute(update(RecipeRow).where(RecipeRow.target_id == watched.target(session).id).values(text="no = "))
    failed = []
    monkeypatch.setattr(scan.log, "exception", lambda *_, target, **__: failed.append(target))
    monkeypatch.setattr(follow_up.log, "exception", lambda *_, **__: None)
    for _ in range(5):
        scan.scan_due()
    assert failed == [1, 1, 1]
    assert places(other.points()) == [40], "the others do not wait for it"


def test_a_point_whose_revision_left_the_mainline_is_closed(watched):
    watched.true = {FIRST: step(40, 0.96)}
    watched.measure(50)
    scan.scan_due()
    with transaction() as session:
        session.execute(update(Revision).where(Revision.ordinal == 40).values(ordinal=None))
    follow_up.follow_due()
    [point] = watched.points()
    assert of_point_reason(point.row) == "the mainline was rewritten without its revision"


def test_a_run_is_looked_at_once(watched):
    watched.measure(20)
    scan.scan_due()
    with reading() as session:
        before = session.scalars(select(Run.scanned_at)).all()
    assert None not in before
    scan.scan_due()
    with reading() as session:
        assert session.scalars(select(Run.scanned_at)).all() == before
