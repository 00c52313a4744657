"""API keys that are revoked and rotated at the same moment."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from sqlalchemy import select

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


def test_a_key_that_is_revoked_at_this_moment_gets_no_successor(key: str) -> None:
    revoked, known = Event(), Event()

    def revoke() -> None:
        with transaction() as session:
            keys.revoke(session, key)
            session.flush()
            revoked.set()
            known.wait(0.5)  # in vain on SQLite, where nobody else has a transaction until this one ends

    def rotate() -> None:
        assert revoked.wait(30)
        with transaction() as session:
            keys.one(session, key)
            known.set()
            keys.rotate(session, key)

    with ThreadPoolExecutor(2) as both:
        revoking, rotating = both.submit(revoke), both.submit(rotate)
        revoking.result(30)
        with pytest.raises(Refused, match="has ended"):
            rotating.result(30)
    with reading() as session:
        assert len(session.scalars(select(ApiKey)).all()) == 1


def test_a_rotated_key_can_be_revoked_at_the_same_moment(key: str) -> None:
    rotated, known = Event(), Event()

    def rotate() -> None:
        with transaction() as session:
            keys.rotate(session, key)
            session.flush()
            rotated.set()
            known.wait(0.5)

    def revoke() -> None:
        assert rotated.wait(30)
        with transaction() as session:
            keys.one(session, key)
            known.set()
            keys.revoke(session, key)

    with ThreadPoolExecutor(2) as both:
        for one in [both.submit(rotate), both.submit(revoke)]:
            one.result(30)
    with reading() as session:
        assert [one.revoked_at is None for one in session.scalars(select(ApiKey).order_by(ApiKey.id))] == [False, True]
