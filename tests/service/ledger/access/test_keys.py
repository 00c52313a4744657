"""API keys that are revoked and rotated at the same moment."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.engine import reading, transaction
from service.db.models import ApiKey
from service.domain.access import NamedGrant, Scope
from service.errors import Refused
from service.ledger.access import keys


@pytest.fixture
def key(either: str) -> str:
    """The prefix of a key that is valid."""
    with transaction() as session:
        return keys.create(session, "ci", [NamedGrant(Scope.READ, None)])[0].prefix


Change = Callable[[Session, str], object]


@contextmanager
def at_once(first: Change, second: Change, key: str) -> Iterator["tuple[Future[None], Future[None]]"]:
    """Both changes of a key: the second one has read the key before the transaction of the first one ends."""
    changed, known = Event(), Event()

    def change_first() -> None:
        with transaction() as session:
            first(session, key)
            session.flush()
            changed.set()
            known.wait(0.5)  # times out on SQLite, where one transaction runs at a time

    def change_second() -> None:
        assert changed.wait(30)
        with transaction() as session:
            keys.one(session, key)
            known.set()
            second(session, key)

    with ThreadPoolExecutor(2) as both:
        yield both.submit(change_first), both.submit(change_second)


def test_a_key_that_is_revoked_at_the_same_moment_gets_no_successor(key: str) -> None:
    with at_once(keys.revoke, keys.rotate, key) as (revoking, rotating):
        revoking.result(30)
        with pytest.raises(Refused, match="has ended"):
            rotating.result(30)
    with reading() as session:
        assert len(session.scalars(select(ApiKey)).all()) == 1


def test_a_rotated_key_can_be_revoked_at_the_same_moment(key: str) -> None:
    with at_once(keys.rotate, keys.revoke, key) as changes:
        for one in changes:
            one.result(30)
    with reading() as session:
        assert [one.revoked_at is None for one in session.scalars(select(ApiKey).order_by(ApiKey.id))] == [False, True]
