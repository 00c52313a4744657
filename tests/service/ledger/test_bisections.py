"""Bisections in the ledger: steps are runs, and the runs are all that is remembered."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier

import pytest
from sqlalchemy import func, select, update

from kernels.cases import Role
from service.db.engine import reading, transaction
from service.db.models import Bisection, RecipeRow, RegressionEvent, RegressionRow, Revision, Run, Target
from service.domain.bisection.search import REPEATS
from service.domain.policy.recipes import parse
from service.domain.states import OPEN_SEARCHES, FoundBy, Purpose, RegressionState, RunState, SearchState, TargetKind
from service.domain.verdicts.session_result import SessionResult
from service.errors import BadInput, Conflict, NotFound, SourceFailed
from service.ledger.bisections import advance, bisections
from service.ledger.bisections.steps import moved_between
from service.ledger.runs import queue, recording
from service.reports.views import BisectionView
from service.sources.source import Found
from tests import world
from tests.shell import attempt

FAST, WIDE = "rmsnorm.fwd.512x512.fp32", "rmsnorm.fwd.64x4096.fp32"
RECIPE = f"""
devices = ["cpu"]
sota = "inductor"
suite = "both"

[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"

[suites]
both = ["{FAST}", "{WIDE}"]

[policy.bisect]
max_runs = 20
max_runs_per_day = 5
"""


@dataclass
class Mainline:
    """c0, c1, … c8, each the first parent of the next; how slow each is, and which do not build."""

    slowness: dict[str, Callable[[int], float]] = field(default_factory=dict)
    broken: frozenset[int] = frozenset()
    given_up: int = 0  # so many of the next runs fail because of the machine

    def target(self) -> Target:
        with reading() as session:
            return session.execute(select(Target)).scalar_one()

    def start(self, good: int = 0, bad: int = 8, cases: tuple[str, ...] = (), **rest: object) -> int:
        with transaction() as session:
            target = session.execute(select(Target)).scalar_one()
            ends = (f"c{good}", f"c{bad}")
            return bisections.start(session, target, "cpu", *ends, cases, **({"asked_by": "ada"} | rest)).id

    def settle(self, most: int = 100) -> None:
        """Control and a worker take turns until neither has anything to do."""
        for _ in range(most):
            advance.advance_due()
            if not self.measure():
                return

    def measure(self) -> bool:
        with transaction() as session:
            lease = queue.next_run(session, "cpu", "worker", 60)
        if lease is None:
            return False
        with reading() as session:
            run = session.get_one(Run, lease.run_id)
            head, base = int(session.get_one(Revision, run.revision_id).sha[1:]), int(run.baseline[1:])
        with transaction() as session:
            if self.given_up:
                self.given_up -= 1
                recording.fail(session, lease, "given up after 3 attempts: No space left on device")
            elif head in self.broken:
                recording.fail(session, lease, "the build failed", "error: no such header")
            else:
                recording.record(session, lease, self.found(run, head, base))
        return True

    def found(self, run: Run, head: int, base: int) -> SessionResult:
        taken = []
        for case in run.only_cases or (FAST, WIDE):
            slow = self.slowness.get(case, lambda place: 1.0)
            sides = ((Role.HEAD, head), (Role.PARENT, base))
            taken += [world.took(role, case, 100 * slow(place)) for role, place in sides]
        return world.session_of(taken, f"c{base}")

    def see(self, bisection_id: int) -> BisectionView:
        with reading() as session:
            return bisections.one(session, bisection_id)

    def runs(self) -> list[Run]:
        with reading() as session:
            return list(session.execute(select(Run).where(Run.purpose == Purpose.BISECTION).order_by(Run.id)).scalars())

    def regression(self, place: int, case: str, culprit: str | None = None) -> int:
        """The mainline found a case slower at a revision that was compared with an old one."""
        with transaction() as session:
            run = watched(session, place, baseline="c0")
            return world.regression(session, run, case, 1.5, found_by=FoundBy.PAIR, culprit=culprit).id

    def life(self, regression_id: int) -> tuple[RegressionState, str | None, list[str]]:
        """Its state, whom it is blamed on, and what happened to it."""
        with reading() as session:
            row = session.get_one(RegressionRow, regression_id)
            events = select(RegressionEvent.what).where(RegressionEvent.regression_id == regression_id)
            return row.state, row.culprit, list(session.execute(events.order_by(RegressionEvent.id)).scalars())


def watched(session, place: int, baseline: str, **values: object) -> Run:
    known = {"baseline": baseline, "suite": "both", "state": RunState.DONE}
    return world.run(session, world.commit(session, 1, place), **known | values)


def slow_from(place: int, ratio: float = 1.5) -> Callable[[int], float]:
    return lambda at: ratio if at >= place else 1.0


def nine_revisions() -> Mainline:
    target = world.target(RECIPE)
    with transaction() as session:
        for place in range(9):
            world.commit(session, target.id, place, subject=f"work {place}")
    return Mainline()


@pytest.fixture
def mainline(state: Path) -> Mainline:
    return nine_revisions()


@pytest.fixture
def either_mainline(either: str) -> Mainline:
    """On SQLite, and once more on PostgreSQL: for what leans on locks, clocks or JSON."""
    return nine_revisions()


def test_a_search_ends_in_the_culprit_with_its_proof(either_mainline):
    either_mainline.slowness = {WIDE: slow_from(5)}
    search = either_mainline.start()
    either_mainline.settle()

    found = either_mainline.see(search)
    assert (found.row.state, found.row.culprit) == (SearchState.FOUND, "c5")
    assert found.words.startswith(f"c5 is 50.0 % slower at {WIDE} (norms) against its parent c4 (2 fresh trials)")
    asked = [(one.step.revision, one.step.against, one.run.only_cases) for one in found.steps]
    assert asked == [
        ("c8", "c0", [FAST, WIDE]),
        ("c4", "c0", [WIDE]),
        ("c6", "c0", [WIDE]),
        ("c5", "c0", [WIDE]),
        ("c5", "c4", [WIDE]),
    ], "both ends first, then only what moved, and the proof in a session of its own"
    assert {run.priority for run in either_mainline.runs()} == {40}
    assert found.row.finished_at


def test_it_goes_on_where_it_was_whoever_restarts(either_mainline):
    """A worker dies in a step, control looks ten times, a machine gives up: the search is the same."""
    either_mainline.slowness = {WIDE: slow_from(3)}
    search = either_mainline.start()
    for _ in range(10):
        advance.advance_due()
    assert len(either_mainline.runs()) == 1, "looking again asks for nothing again"
    with transaction() as session:
        assert queue.next_run(session, "cpu", "a worker that dies", lease_s=-1)
    with transaction() as session:
        queue.sweep(session)
        session.execute(update(Run).values(not_before=0.0))
    either_mainline.given_up = 1
    either_mainline.settle()

    found = either_mainline.see(search)
    assert found.row.culprit == "c3"
    assert [one.answered.answer.value for one in found.steps[:2]] == ["undecided", "bad"]
    assert found.steps[0].step.words == "given up after 3 attempts: No space left on device"


def test_what_does_not_build_is_skipped_and_what_is_known_not_to_is_not_tried(mainline):
    mainline.slowness, mainline.broken = {WIDE: slow_from(5)}, frozenset({3, 4})
    with transaction() as session:
        watched(session, 3, "c2", state=RunState.FAILED, log="error: no such header")
    search = mainline.start()
    mainline.settle()

    found = mainline.see(search)
    assert found.row.state is SearchState.RANGE
    assert found.progress.suspects == ("c3", "c4", "c5")
    assert found.words.startswith("One of 3 revisions (c3 … c5): some could not be tested (c4: the build")
    assert "c3" not in {one.step.revision for one in found.steps}


def test_no_search_follows_a_regression_that_does_not_repeat(mainline):
    search = mainline.start()
    mainline.settle()
    found = mainline.see(search)
    assert (found.row.state, len(found.steps)) == (SearchState.NOT_REPRODUCED, 1)
    assert found.words.startswith("c8 is not slower than c0")


def test_asking_twice_is_asking_once_while_it_is_open(mainline):
    mainline.slowness = {WIDE: slow_from(5)}
    first = mainline.start(cases=(WIDE,))
    assert mainline.start(cases=(WIDE,)) == first
    assert mainline.start(cases=(FAST,)) != first, "that is another question"
    assert mainline.start(good=1, cases=(WIDE,)) != first
    mainline.settle()
    assert mainline.start(cases=(WIDE,)) != first, "and so is asking again"


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"good": 4, "bad": 4}, "Both ends are c4"),
        ({"good": 8, "bad": 0}, "c8 is not on the first-parent line of c0"),
        (
            {"cases": ("rmsnorm.fwd.1x1.fp32",)},
            f"Suite both has no case rmsnorm.fwd.1x1.fp32; it has 2, the first is {FAST}",
        ),
        ({"suite": "none"}, "There is no suite 'none'"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_how_to_mend_it(mainline, wish, said):
    with pytest.raises(BadInput, match=said.replace(".", r"\.")):
        mainline.start(**wish)


def test_a_device_that_the_recipe_does_not_have_is_refused(mainline):
    with transaction() as session, pytest.raises(BadInput, match="not measured on h200; its recipe says cpu"):
        bisections.start(session, mainline.target(), "h200", "c0", "c8", (), asked_by="ada")


def test_two_controls_at_once_ask_for_one_step(either_mainline):
    either_mainline.slowness = {WIDE: slow_from(5)}
    search, together = either_mainline.start(), Barrier(2)

    def look() -> None:
        together.wait()
        advance.advance_due()

    for _ in range(5):
        with ThreadPoolExecutor(2) as controls:
            list(controls.map(lambda _: look(), range(2)))
        assert len([run for run in either_mainline.runs() if run.state is RunState.QUEUED]) == 1
        assert either_mainline.measure()
    advance.advance_due()
    assert either_mainline.see(search).row.culprit == "c5"
    assert len(either_mainline.runs()) == 5


def test_two_ask_at_once_for_the_same_search(either_mainline):
    together = Barrier(2)

    def ask(_: int) -> int:
        together.wait()
        return either_mainline.start()

    with ThreadPoolExecutor(2) as people:
        assert len(set(people.map(ask, range(2)))) == 1


def test_a_search_ends_when_its_source_says_whether_the_culprit_is_a_merge(mainline, monkeypatch):
    def ended(_: Target) -> None:
        raise SourceFailed("The repository took 4000 s.")

    mainline.slowness = {WIDE: slow_from(5)}
    search = mainline.start()
    with monkeypatch.context() as patch:
        patch.setattr(advance, "open_source", ended)
        mainline.settle()
        assert mainline.see(search).row.state in OPEN_SEARCHES
    advance.backoff.forget()
    mainline.settle()
    assert mainline.see(search).row.culprit == "c5"


# -- budgets and stopping


def test_a_budget_ends_a_search_with_what_is_left(mainline):
    mainline.slowness = {WIDE: slow_from(5)}
    search = mainline.start(max_runs=3)
    mainline.settle()
    found = mainline.see(search)
    assert found.row.state is SearchState.STOPPED
    assert found.words == "The budget of 3 runs is spent; remaining suspects: 2 revisions (c5 … c6)."


def test_what_kernelwatch_starts_by_itself_waits_for_the_next_day(either_mainline, monkeypatch):
    either_mainline.slowness = {WIDE: slow_from(5), FAST: slow_from(2)}
    first = either_mainline.start(cases=(WIDE,), asked_by="kernelwatch")
    second = either_mainline.start(cases=(FAST,), asked_by="kernelwatch")
    policy = parse(RECIPE).policy_on("cpu")
    with reading() as session:
        assert bisections.may_start(session, either_mainline.target(), policy)
    either_mainline.settle()
    with reading() as session:
        assert not bisections.may_start(session, either_mainline.target(), policy)
    assert len(either_mainline.runs()) == 5
    assert {either_mainline.see(one).row.state for one in (first, second)} <= {
        SearchState.SEARCHING,
        SearchState.PROVING,
    }
    waiting = either_mainline.see(first)
    assert waiting.words.startswith("waits for tomorrow's budget (5 steps a day); "), "and whoever asks is told"
    assert waiting.words.count("budget") == 1
    with monkeypatch.context() as patch:
        patch.setattr(bisections, "advance", lambda *_: pytest.fail("until then nobody locks or reads anything for it"))
        advance.advance_due()
    for _ in range(3):  # days
        with transaction() as session:
            session.execute(update(Run).values(created_at=Run.created_at - 90_000))
        either_mainline.settle()
    assert [either_mainline.see(one).row.culprit for one in (first, second)] == ["c5", "c2"]


def test_what_a_person_starts_has_no_daily_budget(mainline):
    mainline.slowness = {WIDE: slow_from(5), FAST: slow_from(2)}
    both = [mainline.start(cases=(case,)) for case in (WIDE, FAST)]
    mainline.settle()
    assert [mainline.see(one).row.culprit for one in both] == ["c5", "c2"]


def test_a_person_stops_a_search(mainline):
    mainline.slowness = {WIDE: slow_from(5)}
    search = mainline.start()
    advance.advance_due()
    mainline.measure()
    advance.advance_due()
    with transaction() as session:
        bisections.stop(session, search, "ada")

    found = mainline.see(search)
    assert found.row.state is SearchState.STOPPED
    assert found.words == "Stopped by ada. 8 of 8 revisions left: c1 … c8."
    assert mainline.runs()[-1].state is RunState.CANCELLED
    assert not mainline.measure()
    with transaction() as session, pytest.raises(Conflict, match="ended already: stopped"):
        bisections.stop(session, search, "ada")
    with transaction() as session, pytest.raises(NotFound, match="bisection list"):
        bisections.stop(session, 99, "ada")


def test_a_step_that_somebody_cancels_is_asked_again(mainline):
    mainline.slowness = {WIDE: slow_from(5)}
    search = mainline.start()
    advance.advance_due()
    with transaction() as session:
        queue.cancel(session, mainline.runs()[0].id, "ada")
    mainline.settle()
    assert mainline.see(search).row.culprit == "c5"


def test_a_recipe_that_no_longer_has_the_case_ends_the_search(mainline):
    search = mainline.start()
    with transaction() as session:
        session.execute(update(RecipeRow).values(text=RECIPE.replace(f', "{WIDE}"', "")))
    advance.advance_due()
    found = mainline.see(search)
    assert found.row.state is SearchState.STOPPED
    assert found.words.startswith(f"The recipe changed: suite both no longer has {WIDE}. Start a new bisection")


@pytest.mark.parametrize(
    ("slow", "broken", "most", "code"),
    [
        (slow_from(5), frozenset(), None, 0),
        (slow_from(5), frozenset({4}), None, 1),
        (slow_from(5), frozenset(), 3, 2),
        (slow_from(9), frozenset(), None, 125),
        (slow_from(5), frozenset({8}), None, 125),
    ],
)
def test_a_script_learns_the_end_from_the_exit_code(mainline, slow, broken, most, code):
    mainline.slowness, mainline.broken = {WIDE: slow}, broken
    search = mainline.start(max_runs=most)
    show = ("bisection", "show", str(search), "--format", "md")
    assert attempt(*show).exit_code == 0, "it goes on"
    mainline.settle()
    shown = attempt(*show)
    assert shown.exit_code == code
    assert shown.stdout.startswith(f"bisection {search} of norms on cpu: ")
    assert f"{mainline.see(search).row.state}: " in shown.stdout


def test_an_end_that_stays_undecided_is_not_said_to_be_steady(mainline):
    mainline.slowness, mainline.given_up = {WIDE: slow_from(5)}, REPEATS
    search = mainline.start()
    mainline.settle()
    assert "stayed undecided in 3 sessions" in mainline.see(search).words
    assert attempt("bisection", "show", str(search)).exit_code == 3


# -- lines


def found(place: int, parent: str) -> Found:
    return Found(f"c{place}", parent, f"work {place}", "Ada", 0.0, ())


def test_revisions_that_nobody_knew_get_rows_and_their_place(either_mainline):
    with transaction() as session:
        world.commit(session, 1, 10)  # the mainline goes on, and control has only seen its newest
    search = either_mainline.start(bad=10)
    assert either_mainline.see(search).row.line == [], "the ledger has a gap: control asks the source"
    with transaction() as session:
        bisections.store_line(session, search, [found(place, f"c{place - 1}") for place in range(1, 11)])
    with reading() as session:
        known = session.execute(select(Revision.sha).where(Revision.ordinal.is_not(None)).order_by(Revision.ordinal))
        assert list(known.scalars()) == [f"c{place}" for place in range(11)]
    either_mainline.slowness = {WIDE: slow_from(9)}
    either_mainline.settle()
    assert either_mainline.see(search).row.culprit == "c9"


def test_releases_are_a_line_by_their_version(mainline):
    """The final release before a final one is its parent, and a prerelease lies between them all the same."""
    with transaction() as session:
        target = session.execute(select(Target)).scalar_one()
        line = [found(1, "c0"), found(2, "c0"), found(3, "c2")]
        ends = (session, target, "cpu", "c0", "c3", ())
        with pytest.raises(BadInput, match="first-parent line"):
            bisections.start(*ends, asked_by="ada", line=line)
        target.kind = TargetKind.PACKAGE
        assert bisections.start(*ends, asked_by="ada", line=line).line == ["c0", "c1", "c2", "c3"]


def test_a_line_that_is_none_ends_the_search(mainline):
    with transaction() as session:
        session.execute(update(Revision).where(Revision.sha == "c4").values(parent="elsewhere"))
    search = mainline.start()
    advance.advance_due()
    found = mainline.see(search)
    assert found.row.state is SearchState.STOPPED
    assert "/nowhere" in found.words, "the source says why"


def test_the_cases_that_the_newest_comparison_of_the_ends_found_slower(mainline):
    mainline.slowness = {WIDE: slow_from(5)}
    with transaction() as session:
        watched(session, 8, "c0", state=RunState.QUEUED)
    mainline.measure()
    with reading() as session:
        assert moved_between(session, mainline.target(), "cpu", "c0", "c8") == [WIDE]
        assert moved_between(session, mainline.target(), "cpu", "c1", "c8") == []


# -- regressions


def test_the_regressions_of_a_search_are_bisecting_and_then_blamed(either_mainline):
    either_mainline.slowness = {WIDE: slow_from(5)}
    wide, fast, before = (either_mainline.regression(*one) for one in ((6, WIDE), (6, FAST), (1, WIDE)))
    either_mainline.start(good=2)
    assert either_mainline.life(wide)[0] is RegressionState.BISECTING
    assert either_mainline.life(fast)[0] is RegressionState.BISECTING
    assert either_mainline.life(before)[0] is RegressionState.OPEN, "it was there before the good end"
    either_mainline.settle()

    assert either_mainline.life(wide) == (RegressionState.BLAMED, "c5", ["bisecting", "blamed"])
    assert either_mainline.life(fast) == (RegressionState.OPEN, None, ["bisecting", "nobody blamed"]), (
        "c5 does not explain it"
    )


def test_regressions_are_open_again_where_a_search_names_nobody(mainline):
    wide = mainline.regression(6, WIDE)
    search = mainline.start()
    with transaction() as session:
        bisections.stop(session, search, "ada")
    assert mainline.life(wide) == (RegressionState.OPEN, None, ["bisecting", "nobody blamed"])


def test_searches_are_listed_with_what_they_found(mainline):
    mainline.slowness = {WIDE: slow_from(5)}
    done = mainline.start(cases=(WIDE,))
    mainline.settle()
    waiting = mainline.start(cases=(FAST,))
    with reading() as session:
        rows = bisections.listed(session, mainline.target()).items
        assert [(row.id, row.target.name, row.culprit) for row in rows] == [
            (waiting, "norms", None),
            (done, "norms", "c5"),
        ]
        assert [row.id for row in bisections.listed(session, open_only=True).items] == [waiting]
        with pytest.raises(NotFound):
            bisections.one(session, 99)
        assert session.execute(select(func.count()).select_from(Bisection)).scalar_one() == 2
