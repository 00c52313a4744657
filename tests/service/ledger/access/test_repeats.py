"""A request with an idempotency key is handled once."""

import pytest
from sqlalchemy import update

from service.db.engine import transaction
from service.db.models import RepeatableRequest
from service.errors import StillHandled
from service.ledger.access import repeats
from service.ledger.access.repeats import Begun, Stored, abandon, finish
from service.sources import git

REQUEST = ("person 1", "build-7", "a" * 64)

pytestmark = pytest.mark.usefixtures("either")


def begin() -> Begun:
    begun = repeats.begin(*REQUEST)
    assert isinstance(begun, Begun)
    return begun


def pass_time(begun: Begun, seconds: float) -> Begun:
    """The request, as if it had begun earlier by this."""
    earlier = Begun(begun.owner, begun.key, begun.at - seconds)
    with transaction() as session:
        session.execute(update(RepeatableRequest).where(*begun.row).values(begun_at=earlier.at))
    return earlier


def test_a_request_is_not_abandoned_while_it_may_still_fetch() -> None:
    pass_time(begin(), git._FETCH.seconds)
    with pytest.raises(StillHandled):
        repeats.begin(*REQUEST)


def test_a_request_whose_process_died_is_handled_again() -> None:
    pass_time(begin(), repeats._ABANDONED_S + 1)
    finish(begin(), 201, "the second")
    assert repeats.begin(*REQUEST) == Stored(201, "the second")


def test_a_request_that_fails_can_be_tried_again() -> None:
    abandon(begin())
    begin()


def test_a_first_request_that_fails_late_leaves_its_repeat_alone() -> None:
    first = pass_time(begin(), repeats._ABANDONED_S + 1)
    begin()
    abandon(first)
    with pytest.raises(StillHandled):
        repeats.begin(*REQUEST)


@pytest.mark.parametrize("ended", [True, False])
def test_a_first_request_that_ends_late_does_not_answer_for_its_repeat(ended: bool) -> None:
    first = pass_time(begin(), repeats._ABANDONED_S + 1)
    second = begin()
    if ended:
        finish(second, 201, "the second")
    finish(first, 201, "the first")
    if not ended:
        with pytest.raises(StillHandled):
            repeats.begin(*REQUEST)
        finish(second, 201, "the second")
    assert repeats.begin(*REQUEST) == Stored(201, "the second")
