"""The life of a regression as tables: what may be done in which state, what follows, and what a person has to say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.attribution.causes import Kind
from service.domain.regressions.lifecycle import (
    BY_HAND,
    Action,
    CaseStep,
    Member,
    Transition,
    changes,
    check_by_hand,
    common_cause,
    fixed_by_run,
    follows,
    is_over,
    one_event,
    possible,
    unexplained,
)
from service.domain.states import OPEN_REGRESSIONS, Outcome, RegressionState
from service.errors import BadInput, Conflict

OPEN, ACKNOWLEDGED, BISECTING = RegressionState.OPEN, RegressionState.ACKNOWLEDGED, RegressionState.BISECTING
BLAMED, FIXED, DISMISSED = RegressionState.BLAMED, RegressionState.FIXED, RegressionState.DISMISSED
NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("state", "action", "after"),
    [
        (OPEN, Action.ACKNOWLEDGE, ACKNOWLEDGED),
        (ACKNOWLEDGED, Action.ACKNOWLEDGE, ACKNOWLEDGED),  # with another reason, or for longer
        (ACKNOWLEDGED, Action.EXPIRE, OPEN),
        (OPEN, Action.SEARCH, BISECTING),
        (BISECTING, Action.BLAME, BLAMED),
        (BISECTING, Action.GIVE_UP, OPEN),
        (BISECTING, Action.ACKNOWLEDGE, ACKNOWLEDGED),
        (ACKNOWLEDGED, Action.BLAME, ACKNOWLEDGED),  # who did it is known then, and it is still accepted
        (BLAMED, Action.FIX, FIXED),
        (ACKNOWLEDGED, Action.FIX, FIXED),
        (BLAMED, Action.DISMISS, DISMISSED),
        (DISMISSED, Action.REOPEN, OPEN),
        (FIXED, Action.REOPEN, OPEN),
        (FIXED, Action.UNDO, OPEN),
        (OPEN, Action.LEAVE, FIXED),
        (FIXED, Action.RETURN, OPEN),
        (DISMISSED, Action.NOTE, DISMISSED),
        (FIXED, Action.ASSIGN, FIXED),
    ],
)
def test_what_follows(state, action, after):
    assert follows(state, action) is after


@pytest.mark.parametrize(
    ("state", "action", "told"),
    [
        (FIXED, Action.ACKNOWLEDGE, "It is fixed, so it is closed; reopen it first if it is still slow."),
        (DISMISSED, Action.DISMISS, "It is dismissed, so it is closed; reopen it first if it is still slow."),
        (OPEN, Action.REOPEN, "It is open, so it is open already."),
        (BISECTING, Action.REOPEN, "It is bisecting, so it is open already."),
        (DISMISSED, Action.FIX, "It is dismissed, so it is closed and cannot be fixed; reopen it first."),
        (OPEN, Action.UNDO, "It is open, so it cannot be fix undone."),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do_instead(state, action, told):
    assert not possible(state, action)
    with pytest.raises(Conflict) as refused:
        follows(state, action)
    assert str(refused.value) == told


@given(st.sampled_from(RegressionState), st.sampled_from(BY_HAND))
def test_nobody_fixes_or_blames_by_hand(state, action):
    if possible(state, action):
        assert follows(state, action) not in (FIXED, BLAMED, BISECTING) or follows(state, action) is state


@given(st.lists(st.sampled_from(Action), max_size=30))
def test_whatever_happens_a_measurement_can_fix_what_stands_and_a_person_can_reopen_what_does_not(actions):
    state = OPEN
    for action in actions:
        if possible(state, action):
            state = follows(state, action)
    assert possible(state, Action.FIX) == (state in OPEN_REGRESSIONS)
    assert possible(state, Action.REOPEN) or state in (OPEN, BISECTING, BLAMED)


@pytest.mark.parametrize(
    ("transition", "told"),
    [
        (Transition(Action.ACKNOWLEDGE, "ada"), "Give the reason why it is accepted"),
        (Transition(Action.ACKNOWLEDGE, "ada", "  "), "Give the reason why it is accepted"),
        (Transition(Action.DISMISS, "ada"), "Give the reason why it is not a regression"),
        (Transition(Action.NOTE, "ada", ""), "A note needs a text"),
        (Transition(Action.ACKNOWLEDGE, "ada", "wanted", until=NOW - 1), "cannot end in the past"),
        (
            Transition(Action.ASSIGN, "ada", assignee="x" * 81),
            "'xxxxxxxxxxxxxxxxxxxx' is no name: it has 1 to 80 characters, and no control characters.",
        ),
        (Transition(Action.REOPEN, " "), "' ' is no name"),
        (Transition(Action.REOPEN, "eve\x00"), "no control characters"),
    ],
)
def test_a_person_has_to_say_enough(transition, told):
    with pytest.raises(BadInput, match=told.replace("(", r"\(")):
        check_by_hand(transition, NOW)


def test_a_fix_is_measured_and_never_said():
    with pytest.raises(Conflict, match="fixed once a measurement shows it; dismiss it with a reason instead"):
        check_by_hand(Transition(Action.FIX, "ada"), NOW)
    with pytest.raises(Conflict, match="A regression is not marked as blamed by hand"):
        check_by_hand(Transition(Action.BLAME, "ada"), NOW)


def test_reopening_forgets_why_it_was_over():
    kept = changes(Transition(Action.REOPEN, "ada"), NOW)
    assert kept == {"reason": None, "until": None, "fixed_at": None, "fixed_by": None}
    assert changes(Transition(Action.FIX, run_id=7), NOW) == {"fixed_at": NOW, "fixed_by": 7}
    assert changes(Transition(Action.NOTE, "ada", "seen"), NOW) == {}


# -- incidents


@pytest.mark.parametrize(
    ("place", "culprit", "incident", "culprits", "same"),
    [
        (5, None, 5, [], True),
        (7, None, 5, [], True),
        (8, None, 5, [], False),
        (3, "c3", 5, [], True),
        (6, "c6", 5, ["c5"], False),  # each was shown to have done its own
        (6, "c5", 5, ["c5"], True),
        (5, None, 5, ["c5"], True),
        (None, None, 5, [], False),
    ],
)
def test_what_belongs_to_one_event(place, culprit, incident, culprits, same):
    assert one_event(place, culprit, incident, culprits) is same


def test_an_incident_is_over_with_its_last_regression():
    assert not is_over([Member(FIXED, 1.5), Member(ACKNOWLEDGED, 1.2)])
    assert is_over([Member(FIXED, 1.5), Member(DISMISSED, 1.2)])


def test_the_cause_of_an_incident_is_what_most_share_in_the_words_of_the_largest():
    spills = [Member(OPEN, 1.2, "code", "spills 8 registers"), Member(OPEN, 1.5, "code", "spills 50 registers")]
    other = Member(OPEN, 2.0, "stack", "torch 2.11 → 2.13")
    unknown = [Member(OPEN, 3.0, "unknown", "nothing that is stored explains it")] * 5
    cause = common_cause([*spills, other, *unknown])
    assert (cause.cause, cause.why) == (Kind.CODE, "spills 50 registers")
    assert common_cause(unknown).cause == Kind.UNKNOWN
    assert common_cause([Member(OPEN, 1.5)]) is None


# -- is it over?

STEADY, SLOWER, FASTER = Outcome.STEADY, Outcome.REGRESSION, Outcome.IMPROVEMENT
UNDECIDED = Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("steps", "mended"),
    [
        ([], None),
        ([CaseStep(11, 6, 5, STEADY, 1.0)], None),
        ([CaseStep(11, 6, 5, FASTER, 0.66)], 11),
        ([CaseStep(11, 6, 5, FASTER, 0.82), CaseStep(12, 7, 6, FASTER, 0.8)], 12),
        ([CaseStep(11, 6, 5, SLOWER, 1.2), CaseStep(12, 7, 6, FASTER, 0.66)], None),
        ([CaseStep(11, 7, 4, STEADY, 1.0)], 11),  # compared with what was there before the regression
        ([CaseStep(11, 7, 4, UNDECIDED, 1.1)], None),
        ([CaseStep(11, 6, 5, Outcome.INVALID, None), CaseStep(12, 7, 5, FASTER, 0.66)], 12),
        ([CaseStep(11, 6, 5, FASTER, 0.66), CaseStep(12, 7, 6, SLOWER, 1.5)], 11),
        ([CaseStep(11, 6, 5, STEADY, 1.0, STEADY, 1.0)], 11),  # steps that nobody could see were enough
        ([CaseStep(11, 6, 5, FASTER, 0.66, SLOWER, 1.2)], None),  # it still is slower, whatever the steps multiply to
        ([CaseStep(11, 6, 5, FASTER, 0.66, SLOWER, 1.2), CaseStep(12, 7, 6, STEADY, 1.0)], None),
        ([CaseStep(11, 6, 5, FASTER, 0.66, SLOWER, 1.2), CaseStep(12, 7, 6, FASTER, 0.83)], 12),
        ([CaseStep(11, 6, 5, FASTER, 0.66, UNDECIDED, 1.02)], 11),  # too noisy to tell; what was confirmed counts
        ([CaseStep(11, 6, 5, STEADY, 1.0, UNDECIDED, 1.02)], None),
        ([CaseStep(11, 6, 5, FASTER, 0.66, Outcome.FAILED, None)], 11),
        ([CaseStep(11, 6, 5, FASTER, 0.9, FASTER, 0.95)], 11),
    ],
)
def test_what_mends_a_regression_of_half_its_time_at_the_fifth_revision(steps, mended):
    assert fixed_by_run(steps, 5, 1.5, 0.01) == mended


@pytest.mark.parametrize(
    ("steps", "fixing_run"),
    [
        *[
            ([CaseStep(11, 6, 5, outcome, None)], None)
            for outcome in (Outcome.FAILED, Outcome.INVALID, Outcome.REMOVED, Outcome.NEW, UNDECIDED)
        ],
        ([CaseStep(11, 6, 5, STEADY, 1.0)], None),
        ([CaseStep(11, 6, 4, UNDECIDED, 1.0)], None),
        ([CaseStep(11, 7, 4, SLOWER, 1.008)], None),  # slower than what was there before the regression
        ([CaseStep(11, 7, 4, STEADY, 1.0)], 11),
        ([CaseStep(11, 6, 5, FASTER, 0.992)], 11),
        ([CaseStep(11, 6, 5, Outcome.FAILED, None), CaseStep(12, 7, 5, FASTER, 0.992)], 12),
        ([CaseStep(11, 6, 5, Outcome.NEW, None, STEADY, 1.0)], 11),  # the parent has no times, the good revision has
        ([CaseStep(11, 6, 5, FASTER, 0.997, SLOWER, 1.006)], None),
        ([CaseStep(11, 6, 5, FASTER, 0.997, SLOWER, 1.006), CaseStep(12, 7, 6, STEADY, 1.0)], None),
        ([CaseStep(11, 6, 5, FASTER, 0.997, SLOWER, 1.006), CaseStep(12, 7, 6, Outcome.FAILED, None)], None),
    ],
)
def test_a_regression_within_the_smallest_change_is_fixed_by_evidence_alone(steps, fixing_run):
    """A confirmed slow-down may be smaller than the smallest change: the test asks for a share of it."""
    assert fixed_by_run(steps, 5, 1.009, 0.01) == fixing_run


def test_a_leak_is_not_over_because_an_older_revision_was_as_slow():
    older = [CaseStep(11, 7, 4, STEADY, 1.0)]
    assert fixed_by_run(older, 5, 1.04, 0.01, before=1.04) is None
    assert fixed_by_run(older, 5, 1.04, 0.05, before=1.04) is None
    assert fixed_by_run([*older, CaseStep(12, 8, 7, FASTER, 0.96)], 5, 1.04, 0.01, before=1.04) == 12


@given(st.floats(1.002, 3.0), st.lists(st.floats(1.0, 1.5), max_size=8))
def test_nothing_but_improvements_mends(ratio, slower):
    outcomes = [(SLOWER if one > 1.01 else STEADY, one) for one in slower]
    steps = [CaseStep(10 + at, 6 + at, 5 + at, outcome, one) for at, (outcome, one) in enumerate(outcomes)]
    assert fixed_by_run(steps, 5, ratio, 0.01) is None


def test_a_leak_is_what_the_known_regressions_leave_unexplained():
    assert unexplained(1.10, [1.05, 1.04]) == pytest.approx(1.0073, abs=1e-4)
    assert unexplained(1.10, []) == 1.10
