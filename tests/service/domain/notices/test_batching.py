"""When events become a message, which of them, and which are worth none."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.notices import HOUR_S, MAX_CHANGES, NEWS_S, EventKind, Pending, Plan, Rules, SentBefore, plan
from service.domain.text import DAY_S

OPENED, FIXED, REOPENED = EventKind.REGRESSION_OPENED, EventKind.REGRESSION_FIXED, EventKind.REGRESSION_REOPENED
ACCEPTED, FAILED = EventKind.REGRESSION_ACCEPTED, EventKind.RUN_FAILED
NOW = 1_000_000.0
RULES = Rules(wait_s=300, urgent_wait_s=60, per_hour=2)


def events(*kinds: EventKind, ago_s: float = 400.0, subject: str = "regression 1") -> list[Pending]:
    """Events of one subject, one second after the other, with the ids 1, 2, …"""
    return [Pending(n, kind, subject, "series 1", NOW - ago_s + n) for n, kind in enumerate(kinds, 1)]


IS_OPEN = SentBefore(open_subjects=frozenset({"regression 1"}))


@pytest.mark.parametrize(
    ("pending", "sent", "expected"),
    [
        pytest.param([], SentBefore(), Plan(), id="nothing"),
        pytest.param(events(OPENED), SentBefore(), Plan(send=(1,)), id="waited"),
        pytest.param(events(OPENED, ago_s=30), SentBefore(), Plan(), id="waits"),
        pytest.param(events(FAILED, ago_s=100), SentBefore(), Plan(), id="the less severe wait longer"),
        pytest.param(events(OPENED, ago_s=100), SentBefore(), Plan(send=(1,)), id="the severe do not"),
        pytest.param(
            events(FAILED, OPENED, ago_s=100), SentBefore(), Plan(send=(1, 2)), id="and take the others along"
        ),
        pytest.param(events(OPENED, ago_s=-50), SentBefore(), Plan(send=(1,)), id="the clock was set back"),
        pytest.param(events(OPENED, FIXED), SentBefore(), Plan(cancel=(1, 2)), id="fixed before it was sent"),
        pytest.param(events(OPENED, ACCEPTED, FIXED), SentBefore(), Plan(cancel=(1, 2, 3)), id="with what was between"),
        pytest.param(events(OPENED, ACCEPTED), SentBefore(), Plan(send=(1, 2)), id="accepted is news of its own"),
        pytest.param(events(FIXED), SentBefore(), Plan(send=(1,)), id="fixed, opened before anybody subscribed"),
        pytest.param(events(FIXED), IS_OPEN, Plan(send=(1,)), id="fixed"),
        pytest.param(events(FIXED, REOPENED), IS_OPEN, Plan(cancel=(1, 2)), id="as it was"),
        pytest.param(events(FIXED, REOPENED, FIXED), IS_OPEN, Plan(cancel=(1, 2), send=(3,)), id="fixed in the end"),
        pytest.param(
            events(OPENED, FIXED, REOPENED), SentBefore(), Plan(cancel=(1, 2), send=(3,)), id="open in the end"
        ),
        pytest.param(events(OPENED), SentBefore(messages=(NOW - 10, NOW - 20)), Plan(), id="the hour is spent"),
        pytest.param(
            events(OPENED),
            SentBefore(messages=(NOW - 10, NOW - HOUR_S)),
            Plan(send=(1,)),
            id="a message of an hour ago",
        ),
        pytest.param(events(OPENED, ago_s=NEWS_S + 2), SentBefore(), Plan(drop=(1,)), id="too old"),
        pytest.param(
            events(OPENED),
            SentBefore(changes={"series 1": [NOW - 100] * MAX_CHANGES}),
            Plan(),
            id="it changes too often",
        ),
        pytest.param(
            events(OPENED),
            SentBefore(changes={"series 1": [NOW - 100] * (MAX_CHANGES - 1) + [NOW - DAY_S]}),
            Plan(send=(1,)),
            id="a change of yesterday",
        ),
        pytest.param(
            events(FAILED),
            SentBefore(changes={"series 1": [NOW] * 9}),
            Plan(send=(1,)),
            id="a failed run changes nothing",
        ),
    ],
)
def test_plan(pending: Sequence[Pending], sent: SentBefore, expected: Plan) -> None:
    assert plan(pending, sent, RULES, NOW) == expected


def test_a_series_that_changes_back_and_forth_is_sent_so_often_in_a_day() -> None:
    """Its regression is another one each time."""
    pending = [Pending(n, OPENED, f"regression {n}", "series 1", NOW - 400 + n) for n in range(1, 6)]
    assert plan(pending, SentBefore(), RULES, NOW) == Plan(send=(1, 2, 3))


KINDS = st.sampled_from([OPENED, FIXED, REOPENED, ACCEPTED, FAILED])


@given(st.lists(st.tuples(KINDS, st.integers(1, 4), st.floats(-100, NEWS_S + 100))), st.floats(0, 9))
def test_an_event_has_one_fate_and_none_is_lost(made: list[tuple[EventKind, int, float]], messages: float) -> None:
    pending = [
        Pending(n, kind, f"regression {of}", f"series {of % 2}", NOW - ago_s)
        for n, (kind, of, ago_s) in enumerate(made)
    ]
    found = plan(pending, SentBefore(messages=(NOW,) * int(messages)), RULES, NOW)
    fates = [*found.send, *found.cancel, *found.drop]
    assert len(fates) == len(set(fates))
    assert set(fates) <= {one.id for one in pending}
    later = plan([one for one in pending if one.id not in fates], SentBefore(), RULES, NOW + 2 * NEWS_S)
    assert {*fates, *later.drop} == {one.id for one in pending}
