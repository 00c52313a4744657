"""Regressions from the verdict that opens them until they are over, in the ledger.

Of each kind of change one test runs on PostgreSQL as well.
"""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier

import pytest
from sqlalchemy import func, select, update

from service.commands import arguments
from service.db.engine import clock, reading, transaction
from service.db.models import (
    Bisection,
    Gap,
    Incident,
    RecipeRow,
    RegressionEvent,
    RegressionRow,
    Revision,
    Run,
    Series,
    Target,
)
from service.domain.metrics import SeriesKey
from service.domain.policy.policy import Policy
from service.domain.regressions.lifecycle import Action, Transition
from service.domain.states import OPEN_REGRESSIONS, FoundBy, Outcome, Purpose, RegressionState, RunState, SearchState
from service.errors import BadInput, Conflict, NotFound
from service.ledger import targets
from service.ledger.bisections import bisections
from service.ledger.regressions import after_run, listing, transitions
from service.ledger.runs import revisions
from service.ledger.targets import series_ids
from service.reports.views import IncidentView, RegressionHistory, RegressionView
from tests import world
from tests.shell import kernelwatch

FAST, WIDE = "rmsnorm.fwd.512x512.fp32", "rmsnorm.fwd.64x4096.fp32"
RECIPE = f"""
devices = ["cpu"]
suite = "smoke"
sota = "inductor"
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
[suites]
smoke = ["{FAST}", "{WIDE}"]
"""
both = pytest.mark.usefixtures("either")  # set up before what a test asks for itself


@dataclass
class Line:
    """A mainline c0, c1, … of which each commit has the one before as parent, and the verdicts of its runs.

    A verdict is a ratio; one in a tuple is an undecided suspicion.
    """

    target_id: int
    left_out: frozenset[str] = frozenset()  # cases that its runs do not measure

    def commit(self, place: int) -> None:
        with transaction() as session:
            world.commit(session, self.target_id, place, subject=f"change {place}")

    def measured(
        self,
        place: int,
        *,
        baseline: int | None = None,
        good: dict[str, float] | None = None,
        since: int = 0,
        slow: dict[str, float | tuple[float]] | None = None,
        release: str = "v1",
        why: str | None = None,
        purpose: Purpose = Purpose.WATCH,
        **cases: float | tuple[float],
    ) -> int:
        """Record a run: `wide=1.5` against its baseline, and against c`since` (`good`) or the `release` (`slow`)."""
        self.commit(place)
        with transaction() as session:
            run = self._run(session, place, place - 1 if baseline is None else baseline, purpose)
            for name, case in (("fast", FAST), ("wide", WIDE)):
                if name not in self.left_out:
                    judge(session, run, case, cases.get(name, 1.0), why)
                else:
                    world.judged(session, run, case, outcome=Outcome.REMOVED)
            for against, sha, found in (("last_good", f"c{since}", good), ("pinned", release, slow)):
                for name, ratio in (found or {}).items():
                    judge(session, run, {"fast": FAST, "wide": WIDE}[name], ratio, why, against, sha)
            if run.watched:
                after_run.note_regressions(session, run, Policy())
            return run.id

    def judged(self, place: int, outcome: Outcome, ratio: float | None = None) -> None:
        """Record a run of which only the outcome at the wide case against the parent is known."""
        with transaction() as session:
            run = self._run(session, place, place - 1, Purpose.WATCH)
            found = {"outcome": outcome, "ratio": ratio, "smallest_change": 0.01, "baseline": run.baseline}
            world.judged(session, run, WIDE, **found)
            after_run.note_regressions(session, run, Policy())

    def _run(self, session, place: int, baseline: int, purpose: Purpose) -> Run:
        known = {"state": RunState.DONE, "finished_at": clock(session), "purpose": purpose}
        base = f"c{baseline}" if baseline >= 0 else None
        return world.run(session, world.commit(session, self.target_id, place), baseline=base, **known)

    # -- what there is to see

    def standing(self) -> list[tuple[str, float]]:
        return [(one.row.case, one.row.ratio) for one in self.listed(*OPEN_REGRESSIONS)][::-1]

    def listed(self, *states: RegressionState) -> Sequence[RegressionView]:
        with reading() as session:
            return listing.listed(session, states=states).items

    def life(self, regression_id: int = 1) -> RegressionHistory:
        with reading() as session:
            return listing.one(session, regression_id)

    def history(self, regression_id: int = 1) -> list[str]:
        return [event.what for event in self.life(regression_id).events]

    def state(self, regression_id: int = 1) -> str:
        return self.life(regression_id).regressed.row.state.value

    def incidents(self, *, open_only: bool = False) -> Sequence[IncidentView]:
        with reading() as session:
            return listing.incidents(session, open_only=open_only).items

    def do(self, transition: Transition, regression_id: int = 1) -> None:
        with transaction() as session:
            transitions.apply(session, regression_id, transition)


def judge(
    session,
    run: Run,
    case: str,
    ratio: float | tuple[float],
    why: str | None = None,
    against: str = "parent",
    baseline: str | None = None,
) -> None:
    """Store what the run found of a case against a baseline; against its own where none is named."""
    suspected, size = isinstance(ratio, tuple), ratio[0] if isinstance(ratio, tuple) else ratio
    limit = 1.03 if against == "pinned" else 1.01
    outcome = (
        "inconclusive" if suspected else "regression" if size > limit else "improvement" if size < 0.99 else "steady"
    )
    found = {"outcome": outcome, "ratio": size, "low": size * 0.99, "high": size * 1.01, "suspected": suspected}
    cause = {"cause_kind": "code", "cause_text": why} if size > 1.01 and why else {}
    sides = {"baseline_kind": against, "baseline": baseline or run.baseline}
    world.judged(session, run, case, reason="measured", smallest_change=0.01, **found, **cause, **sides)


@pytest.fixture
def line(state: Path) -> Line:
    made = Line(world.target(RECIPE).id)
    made.measured(0, baseline=-1)
    return made


# -- opened, and fixed by a measurement


@both
def test_a_regression_is_opened_with_its_culprit_and_fixed_by_a_measurement(line):
    slow = line.measured(1, wide=1.5, why="the kernel now spills 50 registers")
    line.measured(2)
    [one] = line.listed(*OPEN_REGRESSIONS)
    assert (one.row.case, one.row.state, one.row.good, one.row.culprit) == (WIDE, "open", "c0", "c1")
    assert (one.run.id, one.row.cause_text) == (slow, "the kernel now spills 50 registers")

    mending = line.measured(3, wide=0.66)
    life = line.life()
    assert (life.regressed.row.state, life.regressed.fixed_by.id) == ("fixed", mending)
    assert [(event.what, event.who, event.run_id) for event in life.events] == [
        ("opened", "kernelwatch", slow),
        ("fixed", "kernelwatch", mending),
    ]
    assert life.events[-1].words == "as fast at c3 as it was at c0"


def correct_now(line: Line, place: int, ratio: float, policy: Policy, outcome: str = "regression") -> None:
    """Record a run whose parent was wrong at the wide case, and took so much less."""
    line.commit(place)
    with transaction() as session:
        run = line._run(session, place, place - 1, Purpose.WATCH)
        unfit = {"reason_code": "baseline_unfit", "reason_args": {"state": "invalid", "said": "y is wrong"}}
        world.judged(session, run, WIDE, outcome="new", baseline=run.baseline, **unfit)
        sizes = {"ratio": ratio, "low": ratio * 0.9, "high": ratio * 1.1, "baseline": run.baseline}
        args = {"ratio": ratio, "baseline": run.baseline, "limit": 0.02}
        changed = {"reason_code": "changed", "reason_args": args}
        world.judged(session, run, WIDE, baseline_kind="wrong_parent", outcome=outcome, **sizes, **changed)
        after_run.note_regressions(session, run, policy)


def test_right_results_that_take_longer_than_wrong_ones_stand_until_they_are_faster(line):
    """Atomics of Liger's pull request 815 were everybody's baseline for four months, because its parent was wrong."""
    correct_now(line, 1, 2.5, Policy())
    assert line.standing() == [(WIDE, 2.5)]
    [opened] = line.life().events
    assert opened.words == "150.0% slower than c0, whose results were wrong"
    assert line.life().regressed.row.culprit == "c1"
    correct_now(line, 1, 2.5, Policy())
    assert len(line.standing()) == 1, "measured again"

    line.measured(2)
    assert line.state() == "open"
    line.measured(3, wide=0.5)
    assert line.state() == "open", "by a part of it"
    line.measured(4, wide=0.85)
    assert line.state() == "fixed", "as fast as far as can be known of two sessions: 2.5, or 2.25, times 0.425"


@pytest.mark.parametrize(
    ("ratio", "outcome", "policy"),
    [
        (1.015, "regression", Policy()),
        (1.5, "inconclusive", Policy()),
        (2.5, "regression", Policy(gate={"slower-than-wrong": "pass"})),
    ],
)
def test_right_results_that_do_not_surely_take_longer_or_may_do_so_open_nothing(line, ratio, outcome, policy):
    correct_now(line, 1, ratio, policy, outcome)
    assert line.standing() == []


def test_small_improvements_mend_together(line):
    line.measured(1, wide=1.5)
    line.measured(2, wide=0.82)
    assert line.standing() == [(WIDE, 1.5)]
    line.measured(4, wide=0.80)  # c3 changed nothing that matters
    assert line.standing() == []


@both
def test_a_direct_comparison_with_what_was_good_fixes_what_no_step_showed(line):
    line.measured(1, wide=1.05)
    line.measured(2, wide=1.0, good={"wide": 1.05})
    assert line.state() == "open"
    line.measured(3, wide=1.0, good={"wide": 1.0})
    assert line.state() == "fixed"


def test_what_is_still_slower_than_the_last_good_revision_stands_whatever_the_steps_say(line):
    line.measured(1, wide=1.05)
    line.measured(2, wide=0.95, good={"wide": 1.03})
    line.measured(3)
    assert line.state() == "open"


@pytest.mark.parametrize(
    "outcome", [Outcome.FAILED, Outcome.INVALID, Outcome.INCONCLUSIVE, Outcome.REMOVED, Outcome.NEW]
)
def test_a_run_that_measured_nothing_fixes_nothing_however_small_the_regression_is(line, outcome):
    line.judged(1, Outcome.REGRESSION, 1.009)
    line.judged(2, outcome)
    assert line.history() == ["opened"]


@both
def test_a_pinned_baseline_fixes_nothing_that_is_slower_by_less_than_a_leak(line):
    """The good revision is the last release: the session measures it twice, with two limits."""
    line.measured(1, wide=1.025)
    line.measured(2, good={"wide": 1.025}, slow={"wide": 1.025}, release="c0")
    line.measured(3, slow={"wide": 1.025}, release="c0")  # the last good revision had no turn
    assert line.history() == ["opened"]
    line.measured(4, good={"wide": 1.0}, slow={"wide": 1.025}, release="c0")
    assert line.history() == ["opened", "fixed"]


def test_what_is_slower_than_the_pinned_baseline_stands_whatever_the_steps_say(line):
    line.measured(1, wide=1.05)
    line.measured(2, wide=0.955, slow={"wide": 1.04}, release="c0")
    assert line.state() == "open"


def test_measuring_an_old_regression_again_opens_nothing_that_nobody_closes(line):
    line.measured(1, wide=1.5)
    line.measured(2, wide=0.66)
    line.measured(1, wide=1.5)
    assert (line.standing(), len(line.listed())) == ([], 1)


def test_a_fix_that_was_measured_before_the_regression_closes_it_all_the_same(line):
    line.commit(1)
    line.measured(2, wide=0.66)
    line.measured(1, wide=1.5)
    assert line.history() == ["opened", "fixed"]


def test_what_was_measured_again_counts_as_it_was_seen_last(line):
    line.measured(1, wide=1.5)
    line.measured(2, wide=1.2)
    line.measured(3, wide=0.66)
    assert line.standing() == [(WIDE, 1.5)], "one of the two was mended"
    line.measured(2)  # it was not slower after all
    assert line.standing() == []


def test_searches_and_calibrations_neither_open_nor_fix(line):
    line.measured(1, wide=1.5)
    line.measured(2, wide=0.66, purpose=Purpose.BISECTION)
    line.measured(3, fast=1.5, purpose=Purpose.CALIBRATION)
    assert line.standing() == [(WIDE, 1.5)]


# -- acknowledged


@both
def test_an_acknowledged_regression_stands_until_its_day_has_come(line):
    line.measured(1, wide=1.5)
    with reading() as session:
        tomorrow = clock(session) + 86_400
    line.do(Transition(Action.ACKNOWLEDGE, "ada", "the fast path was wrong", until=tomorrow))
    assert (line.state(), line.standing()) == ("acknowledged", [(WIDE, 1.5)])
    assert transitions.expire_due() == 0

    with transaction() as session:
        session.execute(update(RegressionRow).values(until=tomorrow - 2 * 86_400))
    assert transitions.expire_due() == 1
    assert transitions.expire_due() == 0
    [*_, said, ended] = line.life().events
    assert (said.who, said.what, said.words, said.state) == (
        "ada",
        "acknowledged",
        "the fast path was wrong",
        "acknowledged",
    )
    assert (ended.who, ended.what, ended.state) == ("kernelwatch", "acknowledgement ended", "open")


def test_what_is_acknowledged_can_still_be_fixed(line):
    line.measured(1, wide=1.5)
    line.do(Transition(Action.ACKNOWLEDGE, "ada", "wanted"))
    line.measured(2, wide=0.66)
    assert line.history() == ["opened", "acknowledged", "fixed"]


# -- dismissed, reopened


def test_a_dismissed_regression_does_not_come_back_by_itself(line):
    line.measured(1, wide=1.5)
    line.do(Transition(Action.DISMISS, "ada", "the machine was being serviced"))
    line.measured(1, wide=1.5)
    line.measured(2, wide=1.49, baseline=0)  # c1 was skipped
    assert (line.standing(), line.history()) == ([], ["opened", "dismissed"])
    line.measured(3, wide=1.5)
    assert line.standing() == [(WIDE, 1.5)], "another one is another one"


@both
def test_a_fix_that_a_person_doubts_has_to_be_measured_again(line):
    line.measured(1, wide=1.5)
    mending = line.measured(2, wide=0.66)
    line.do(Transition(Action.REOPEN, "ada", "my own numbers say otherwise"))
    line.measured(3)
    assert line.state() == "open", "that it was once faster is what is doubted"
    assert [event.run_id for event in line.life().events if event.what == "reopened"] == [mending]
    line.measured(4, good={"wide": 1.0})
    assert line.history() == ["opened", "fixed", "reopened", "fixed"]


def test_nobody_fixes_by_hand_and_every_refusal_says_what_to_do(line):
    line.measured(1, wide=1.5)
    with pytest.raises(Conflict, match="dismiss it with a reason instead"):
        line.do(Transition(Action.FIX, "ada"))
    with pytest.raises(BadInput, match="Give the reason why it is not a regression"):
        line.do(Transition(Action.DISMISS, "ada"))
    with pytest.raises(Conflict, match="it is open already"):
        line.do(Transition(Action.REOPEN, "ada"))
    with pytest.raises(NotFound, match=r"No regression 99\. `kernelwatch regression list`"):
        line.do(Transition(Action.NOTE, "ada", "seen"), 99)
    with pytest.raises(NotFound, match="No incident 99"), transaction() as session:
        transitions.apply_to_incident(session, 99, Transition(Action.NOTE, "ada", "seen"))
    assert line.history() == ["opened"]


def test_assigned_due_and_noted(line):
    line.measured(1, wide=1.5)
    line.do(Transition(Action.ASSIGN, "ada", "to bob", assignee="bob"))
    line.do(Transition(Action.DUE, "ada", due_at=5e9))
    line.do(Transition(Action.NOTE, "bob", "it is the wide path"))
    row = line.life().regressed.row
    assert (row.assignee, row.due_at, row.state) == ("bob", 5e9, "open")
    assert line.history() == ["opened", "assigned", "due", "note"]


# -- cases that are measured no more


def recipe_becomes(line: Line, text: str, *left_out: str) -> None:
    """Of which the runs leave these cases out."""
    line.left_out = frozenset(left_out)
    with transaction() as session:
        targets.adopt_recipe(session, session.get_one(Target, line.target_id), text, {})


NARROW = RECIPE.replace(f', "{WIDE}"', "")


@both
def test_a_case_that_the_recipe_names_no_more_is_removed_and_stands_again_when_it_returns(line):
    line.measured(1, wide=1.5, fast=1.3)
    recipe_becomes(line, NARROW, "wide")
    removing = line.measured(2)
    assert line.standing() == [(FAST, 1.3)]
    [wide] = line.listed(RegressionState.REMOVED)
    assert (wide.row.case, wide.row.fixed_by) == (WIDE, removing)
    assert line.life(wide.row.id).events[-1].words == f"the recipe has no {WIDE} of norms on cpu any more"

    line.measured(3)
    assert line.history(wide.row.id) == ["opened", "removed"]
    recipe_becomes(line, RECIPE)
    line.measured(4)
    assert line.history(wide.row.id) == ["opened", "removed", "measured again"]
    assert sorted(line.standing()) == sorted([(FAST, 1.3), (WIDE, 1.5)])
    line.measured(5, wide=0.66)
    assert line.state(wide.row.id) == "fixed"


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(RECIPE.replace("providers.norms", "providers.renamed"), id="a renamed provider"),
        pytest.param(RECIPE.replace('["cpu"]', '["h200"]'), id="a device less"),
        pytest.param(RECIPE.replace("rmsnorm.fwd =", "rmsnorm.bwd ="), id="no function for it"),
    ],
)
def test_whatever_takes_a_case_away_removes_its_regression(line, recipe):
    line.measured(1, wide=1.5)
    recipe_becomes(line, recipe, "fast", "wide")
    line.measured(2)
    assert line.state() == "removed"
    assert not line.incidents(open_only=True)


def test_only_a_later_revision_measured_by_the_recipe_as_it_is_removes_a_case(line):
    line.measured(3, wide=1.5, baseline=0)
    recipe_becomes(line, NARROW, "wide")
    line.measured(2, baseline=0)
    assert line.state() == "open", "an older revision"
    with transaction() as session:
        before = session.scalars(select(RecipeRow.id).order_by(RecipeRow.id)).first()
        revision = world.commit(session, line.target_id, 4)
        run = world.run(session, revision, recipe_id=before, state=RunState.DONE, finished_at=clock(session))
        after_run.note_regressions(session, run, Policy())
    assert line.state() == "open", "measured by a recipe that has the case"
    recipe_becomes(line, NARROW, "wide")
    line.left_out = frozenset()
    line.measured(5)
    assert line.state() == "open", "it was measured all the same"
    recipe_becomes(line, NARROW + f'nightly = ["{WIDE}"]\n', "wide")
    line.measured(6)
    assert line.state() == "open", "another suite of the recipe has it"


def test_a_case_that_is_measured_no_more_is_not_behind_sota_any_more(line):
    run_id = line.measured(1)
    far = {"behind_sota": True, "since_run_id": run_id, "last_run_id": run_id, "ratio_then": 2.0, "ratio_now": 2.0}
    with transaction() as session:
        keys = [SeriesKey.of(line.target_id, "cpu", "norms", case) for case in (FAST, WIDE)]
        session.add_all(Gap(series_id=one, own=2.0, sota=1.0, **far) for one in series_ids(session, keys).values())
    recipe_becomes(line, NARROW, "wide")
    line.measured(2)
    with reading() as session:
        assert session.scalars(select(Series.printed).join(Gap).where(Gap.behind_sota)).all() == [FAST]


def test_a_removed_case_stands_again_if_the_revision_that_showed_it_leaves_the_mainline(line):
    line.measured(1, wide=1.5)
    recipe_becomes(line, NARROW, "wide")
    line.measured(2)
    with transaction() as session:
        revisions.revisions_left(session, session.get_one(Target, line.target_id), ["c2"])
    assert line.history() == ["opened", "removed", "fix undone"]
    assert line.standing() == [(WIDE, 1.5)]


# -- a rewritten mainline


@both
def test_what_left_the_mainline_stands_no_longer_and_what_it_had_fixed_stands_again(line):
    line.measured(1, wide=1.5)
    line.measured(2, wide=0.66, fast=1.3)
    assert (line.state(1), line.state(2)) == ("fixed", "open")

    with transaction() as session:
        revisions.revisions_left(session, session.get_one(Target, line.target_id), ["c2"])
    assert (line.state(1), line.state(2)) == ("open", "fixed")
    assert line.history(1) == ["opened", "fixed", "fix undone"]
    assert line.life(1).events[-1].words == "the mainline was rewritten without the revision that fixed it"
    assert line.history(2) == ["opened", "left the mainline"]
    [wide] = line.incidents(open_only=True)
    assert [row.id for row in wide.regressions] == [1]

    with transaction() as session:
        session.execute(update(Revision).where(Revision.sha == "c2").values(ordinal=2))
        transitions.revisions_returned(session, line.target_id)
    assert line.history(2) == ["opened", "left the mainline", "returned to the mainline"]
    assert line.state(2) == "open"


# -- incidents


@both
def test_cases_that_one_commit_slowed_down_are_one_incident_that_closes_with_the_last(line):
    line.measured(1, wide=1.5, fast=1.2, why="the kernel now spills 50 registers")
    [happening] = line.incidents(open_only=True)
    assert [row.case for row in happening.regressions] == [WIDE, FAST]
    assert (happening.row.cause_kind, happening.row.cause_text) == ("code", "the kernel now spills 50 registers")
    assert happening.row.revision.sha == "c1"
    assert [row.case for row in line.life(1).siblings] == [WIDE]

    line.measured(2, wide=0.66)
    assert line.incidents(open_only=True)
    line.do(Transition(Action.DISMISS, "ada", "too small to matter"), 1)
    assert line.incidents(open_only=True) == ()
    [over] = line.incidents()
    assert over.row.closed_at is not None
    line.do(Transition(Action.REOPEN, "ada"), 1)
    assert line.incidents(open_only=True)


def test_what_two_commits_did_is_two_incidents_and_what_nobody_knows_is_one(line):
    line.measured(1, fast=1.2)
    line.measured(2, wide=1.5)
    assert [len(one.regressions) for one in line.incidents()] == [1, 1]

    line.measured(5, fast=1.2, baseline=3)  # c4 was skipped: either may have done it
    line.measured(6, wide=1.2, baseline=3)
    assert [len(one.regressions) for one in line.incidents()] == [2, 1, 1]


def test_a_whole_incident_is_acknowledged_at_once(line):
    line.measured(1, wide=1.5, fast=1.2)
    line.measured(2, wide=0.66)
    transition = Transition(Action.ACKNOWLEDGE, "ada", "wanted")
    with transaction() as session:
        done = transitions.apply_to_incident(session, 1, transition)
    assert [row.case for row in done] == [FAST], "what is fixed already needs no acknowledgement"
    line.do(Transition(Action.REOPEN, "ada"), 1)
    line.do(Transition(Action.REOPEN, "ada"), 2)
    with transaction() as session, pytest.raises(Conflict, match="it is open already"):
        transitions.apply_to_incident(session, 1, Transition(Action.REOPEN, "ada"))


# -- suspicions and leaks


@both
def test_a_suspicion_that_a_later_session_confirms_is_a_regression_of_the_revision_that_was_suspected(line):
    suspected = line.measured(1, wide=(1.04,))
    assert line.standing() == []
    line.measured(2, good={"wide": 1.05})
    [one] = line.listed(*OPEN_REGRESSIONS)
    assert (one.run.id, one.row.culprit, one.row.good, one.row.ratio) == (suspected, "c1", "c0", 1.05)
    assert line.life().events[0].words.startswith("suspected before, and confirmed by the session of c2")
    line.measured(3, good={"wide": 1.05})
    assert len(line.listed()) == 1
    line.measured(4, good={"wide": 1.0})
    assert line.state() == "fixed"


def test_what_a_revision_did_itself_is_not_laid_on_the_one_that_was_suspected(line):
    line.measured(1, wide=(1.04,))
    line.measured(2, wide=1.5, good={"wide": 1.505})
    [one] = line.listed()
    assert (one.row.culprit, one.row.ratio) == ("c2", 1.5)


@both
def test_a_leak_is_opened_when_two_successive_revisions_show_it(line):
    first = line.measured(1, slow={"wide": 1.05})
    assert line.standing() == [], "one session alone may have been unlucky"
    line.measured(2, slow={"wide": 1.0})
    line.measured(3, slow={"wide": 1.05})
    assert line.standing() == []
    second = line.measured(4, slow={"wide": 1.04})
    [one] = line.listed()
    assert (one.row.found_by, one.row.good, one.row.ratio, one.row.culprit) == (FoundBy.PINNED, "v1", 1.04, None)
    assert first < one.run.id < second
    line.measured(5, slow={"wide": 1.05})
    assert len(line.listed()) == 1
    line.measured(6, slow={"wide": 1.0})
    assert line.history() == ["opened", "fixed"]


def test_a_leak_is_over_within_its_own_limit(line):
    for place in (1, 2):
        line.measured(place, slow={"wide": 1.05}, release="c0")
    line.measured(3, wide=0.96, good={"wide": 1.025}, slow={"wide": (1.025,)}, release="c0")
    assert line.state() == "open", "undecided against the pinned baseline, and slower than the same revision"
    line.measured(4, good={"wide": 1.02}, slow={"wide": 1.02}, release="c0")
    assert line.history() == ["opened", "fixed"]


def test_the_order_of_measuring_does_not_matter_to_a_leak(line):
    line.commit(1)
    line.measured(2, slow={"wide": 1.05})
    line.measured(1, slow={"wide": 1.05})
    [one] = line.listed()
    assert one.run.revision.sha == "c1"


def test_a_leak_that_a_regression_explains_is_none(line):
    line.measured(1, wide=1.05, slow={"wide": 1.05})
    line.measured(2, slow={"wide": 1.06})
    assert [one.row.found_by for one in line.listed()] == [FoundBy.PAIR]
    line.measured(3, slow={"wide": 1.12})
    line.measured(4, slow={"wide": 1.12})
    assert [one.row.found_by for one in line.listed()] == [FoundBy.PINNED, FoundBy.PAIR]


def test_a_dismissed_leak_comes_back_only_when_it_has_grown(line):
    line.measured(1, slow={"wide": 1.05})
    line.measured(2, slow={"wide": 1.05})
    line.do(Transition(Action.DISMISS, "ada", "the release had a bug"))
    line.measured(3, slow={"wide": 1.06})
    assert line.standing() == []
    line.measured(4, slow={"wide": 1.12})
    line.measured(5, slow={"wide": 1.12})
    assert line.standing() == [(WIDE, 1.12)]


# -- whom to blame


@both
def test_where_a_revision_was_passed_over_a_search_begins_by_itself_and_ends_in_a_culprit(line):
    line.commit(1)
    line.measured(2, wide=1.5, baseline=0)
    assert line.life().regressed.row.culprit is None
    assert bisections.start_due() == 1
    assert bisections.start_due() == 0
    assert line.state() == "bisecting"
    [search] = line.life().bisections
    assert (search.good, search.bad, search.cases, search.incident_id) == ("c0", "c2", [WIDE], 1)

    proof = line.measured(1, purpose=Purpose.BISECTION, wide=1.5)
    with transaction() as session:
        found = session.get_one(Bisection, search.id)
        found.state, found.culprit, found.reason = SearchState.FOUND, "c1", "c1 did it"
        for _ in range(2):  # a control process that died may say it again
            transitions.search_ended(session, found, proof)
    row = line.life().regressed.row
    assert (row.state, row.culprit) == ("blamed", "c1")
    assert line.history() == ["opened", "bisecting", "blamed"]
    assert line.life().events[-1].run_id == proof
    line.measured(3, wide=0.66)
    assert line.state() == "fixed"


def test_a_search_that_finds_nobody_leaves_the_regression_open_and_is_not_begun_again(line):
    line.commit(1)
    line.measured(2, wide=1.5, baseline=0)
    bisections.start_due()
    with transaction() as session:
        bisections.stop(session, 1, "ada")
    assert line.history() == ["opened", "bisecting", "nobody blamed"]
    assert line.state() == "open"
    assert bisections.start_due() == 0


def test_a_search_that_cannot_begin_says_why_once(line):
    line.commit(1)
    line.measured(2, wide=1.5, baseline=0)
    with transaction() as session:
        session.execute(update(RecipeRow).values(text=RECIPE.replace(f', "{WIDE}"', "")))
    assert bisections.start_due() == 0
    assert bisections.start_due() == 0
    assert line.history() == ["opened", "nobody blamed"]
    assert "no bisection was started: Suite smoke has no case" in line.life().events[-1].words


def test_a_policy_without_searches_begins_none(line):
    line.commit(1)
    line.measured(2, wide=1.5, baseline=0)
    with transaction() as session:
        session.execute(update(RecipeRow).values(text=RECIPE + "[policy.bisect]\nautomatic = false\n"))
    assert bisections.start_due() == 0
    assert line.history() == ["opened"]


def test_an_acknowledged_regression_that_is_blamed_stays_acknowledged(line):
    line.commit(1)
    line.measured(2, wide=1.5, baseline=0)
    bisections.start_due()
    line.do(Transition(Action.ACKNOWLEDGE, "ada", "wanted"))
    with transaction() as session:
        found = session.get_one(Bisection, 1)
        found.state, found.culprit, found.reason = SearchState.FOUND, "c1", "c1 did it"
        transitions.search_ended(session, found)
    row = line.life().regressed.row
    assert (row.state, row.culprit) == ("acknowledged", "c1")


def test_history_opens_a_regression_once(line):
    run_id = line.measured(1)
    slower = transitions.Slower("norms", WIDE, 1.06, 1.05, 1.07)
    for _ in range(2):
        with transaction() as session:
            run = session.get_one(Run, run_id)
            row = transitions.open_one(session, run, slower, found_by=FoundBy.HISTORY, good="c0", words="a step")
    assert (row.id, line.history(), len(line.incidents())) == (1, ["opened"], 1)


# -- at a terminal


def test_the_command_lists_what_stands_by_incident(line):
    assert kernelwatch("regression list").stdout == "No open regressions. Use `--all` to include closed ones.\n"
    line.measured(1, wide=1.5, fast=1.02, why="the kernel now spills 50 registers")
    kernelwatch("regression acknowledge 1 --reason 'exact sums first' --until 2999-12-24 --as ada")
    kernelwatch("regression assign 1 bob --as ada")
    kernelwatch("regression due 1 2999-11-30 --as ada")
    assert kernelwatch("regression list norms").stdout == (
        "incident 1 of norms on cpu, by c1: the kernel now spills 50 registers\n"
        "id  case                      provider  change         state         note\n"
        " 2  rmsnorm.fwd.64x4096.fp32  norms     50.0 % slower  open\n"
        " 1  rmsnorm.fwd.512x512.fp32  norms     2.0 % slower   acknowledged"
        '  until 2999-12-24, bob, due 2999-11-30, "exact sums first"\n'
    )
    [one] = json.loads(kernelwatch("regression list --state acknowledged --format json").stdout)["items"]
    assert (one["assignee"], one["acknowledged_until"], one["culprit"]) == ("bob", "2999-12-24T00:00:00Z", "c1")
    line.measured(2, wide=0.66)
    assert "50.0 % slower" not in kernelwatch("regression list").stdout
    assert "50.0 % slower  fixed" in kernelwatch("regression list --all").stdout


def test_the_command_shows_a_whole_life(line):
    line.measured(1, wide=1.5, fast=1.02)
    kernelwatch("regression note 2 'it is the wide path' --as ada")
    shown = kernelwatch("regression show 2").stdout
    assert "regression 2: norms rmsnorm.fwd.64x4096.fp32 of norms on cpu" in shown
    assert "50.0 % slower (1.485 to 1.515), found at c1 in run 2 against c0" in shown
    assert "incident: 1, 2 regressions" in shown
    assert "note by ada: it is the wide path" in shown
    assert len(json.loads(kernelwatch("incident show 1 --format json").stdout)["regressions"]) == 2
    document = json.loads(kernelwatch("regression show 2 --format json").stdout)
    assert [event["action"] for event in document["events"]] == ["opened", "note"]


def test_the_command_does_the_same_to_a_whole_incident(line):
    line.measured(1, wide=1.5, fast=1.02)
    assert kernelwatch("regression dismiss 1 --reason 'the machine' --incident").stdout == (
        "regression 1 (rmsnorm.fwd.512x512.fp32) is dismissed.\nregression 2 (rmsnorm.fwd.64x4096.fp32) is dismissed.\n"
    )
    kernelwatch("regression reopen 2 --reason 'it is not the machine'")
    assert (line.state(1), line.state(2)) == ("dismissed", "open")


def test_a_user_whom_the_system_has_no_name_for_is_a_number(monkeypatch):
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(arguments.getpass, "getuser", nameless)
    assert arguments.this_person() == f"user {os.getuid()}"


def test_a_person_in_the_services_container_is_not_the_service(monkeypatch):
    """Its user is named as the service is: their searches would have its budget, their quarantines its releases."""
    monkeypatch.setattr(arguments.getpass, "getuser", lambda: "kernelwatch")
    assert arguments.this_person() == "a person, as kernelwatch"


# -- several at once


@both
def test_two_workers_that_find_two_cases_of_one_event_open_one_incident(line):
    line.commit(1)
    runs = []
    for case in (FAST, WIDE):
        with transaction() as session:
            run = line._run(session, 1, 0, Purpose.WATCH)
            judge(session, run, case, 1.5)
            runs.append(run.id)
    together = Barrier(2)

    def note(run_id: int) -> None:
        together.wait()
        with transaction() as session:
            after_run.note_regressions(session, session.get_one(Run, run_id), Policy())

    with ThreadPoolExecutor(2) as workers:
        list(workers.map(note, runs))
    with reading() as session:
        assert session.scalar(select(func.count()).select_from(Incident)) == 1
        assert session.scalar(select(func.count()).select_from(RegressionRow)) == 2


@both
def test_a_person_and_a_worker_take_turns(line):
    line.measured(1, wide=1.5)
    line.commit(2)
    with transaction() as session:
        run = line._run(session, 2, 1, Purpose.WATCH)
        judge(session, run, WIDE, 0.66)
    together = Barrier(2)

    def note() -> None:
        together.wait()
        with transaction() as session:
            after_run.note_regressions(session, session.get_one(Run, run.id), Policy())

    def dismiss() -> None:
        together.wait()
        with suppress(Conflict):  # the measurement came first
            line.do(Transition(Action.DISMISS, "ada", "too small"))

    with ThreadPoolExecutor(2) as both:
        for done in [both.submit(note), both.submit(dismiss)]:
            done.result()
    assert line.history() in (["opened", "fixed"], ["opened", "dismissed"])
    with reading() as session:
        last = session.scalars(select(RegressionEvent).order_by(RegressionEvent.id.desc())).first()
    assert last.state is line.life().regressed.row.state
