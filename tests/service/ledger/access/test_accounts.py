"""Roles of people, when several requests of one person ask the forge for them at the same time."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pytest
from sqlalchemy import select

from service.db.engine import reading, transaction
from service.db.models import Account, Role
from service.forge.forge import ForgeFailed
from service.ledger.access import accounts
from service.ledger.intake import registry
from service.settings import settings
from tests import world

WRITERS = 4  # threads of the API that change something


class FakeForge:
    """A forge with one permission for everybody.  `before_answer` runs once the answer is known."""

    def __init__(self) -> None:
        self.role = "write"
        self.requests = 0
        self.failure: ForgeFailed | None = None
        self.before_answer: Callable[[], object] = lambda: None

    def permission(self, _repo: str, _login: str, _user_id: int) -> str:
        self.requests += 1
        role = self.role
        self.before_answer()
        if self.failure is not None:
            raise self.failure
        return role


@pytest.fixture
def forge(monkeypatch: pytest.MonkeyPatch) -> FakeForge:
    fake = FakeForge()
    monkeypatch.setattr(accounts, "connect", lambda _kind: fake)
    return fake


@pytest.fixture
def ada(either: str, forge: FakeForge) -> int:
    """The account of a person who has a role on each of two targets."""
    for name in ("norms", "other"):
        world.target(name=name, forge=f"octo/{name}")
    with transaction() as session:
        person = Account(issuer=settings().github_url, subject="1", login="ada", created_at=0.0, signed_in_at=0.0)
        session.add(person)
    accounts.refresh_roles(person.id, older_than_s=0.0)
    return person.id


def roles_of(account_id: int) -> list[str]:
    with reading() as session:
        ours = select(Role.permission).where(Role.account_id == account_id).order_by(Role.target_id)
        return [*session.scalars(ours)]


def test_several_requests_of_a_person_refresh_roles_at_once(ada: int, forge: FakeForge) -> None:
    asked = Barrier(WRITERS, timeout=30)
    forge.before_answer = asked.wait
    forge.role = "triage"

    with ThreadPoolExecutor(WRITERS) as writers:
        [*writers.map(lambda _: accounts.refresh_roles(ada, older_than_s=0.0), range(WRITERS))]

    assert roles_of(ada) == ["triage", "triage"]


@pytest.mark.parametrize(("older", "newer"), [("write", "none"), ("none", "write")])
def test_an_older_answer_does_not_replace_a_newer_one(ada: int, forge: FakeForge, older: str, newer: str) -> None:
    asked, go_on = Event(), Event()

    def wait() -> None:
        asked.set()
        assert go_on.wait(30)

    forge.role, forge.before_answer = older, wait
    with ThreadPoolExecutor(1) as writer:
        slow = writer.submit(accounts.refresh_roles, ada, older_than_s=0.0)
        assert asked.wait(30)
        time.sleep(0.01)  # SQLite's clock counts milliseconds
        forge.role, forge.before_answer = newer, lambda: None
        accounts.refresh_roles(ada, older_than_s=0.0)
        time.sleep(0.01)
        forge.role = older  # of the other target, which the slow request asks about only now
        go_on.set()
        slow.result(30)

    assert roles_of(ada) == [newer, older]


@pytest.mark.parametrize(
    ("failure", "requests"),
    [
        (ForgeFailed("The forge does not answer.", passing=True), 1),
        (ForgeFailed("There is no such repository.", code=404, passing=False), 2),
    ],
    ids=["an outage", "a refusal"],
)
def test_a_forge_that_is_away_is_asked_once(ada: int, forge: FakeForge, failure: ForgeFailed, requests: int) -> None:
    """Each further request would hold up the person, and a thread of the API, until its timeout."""
    forge.requests, forge.failure = 0, failure
    accounts.refresh_roles(ada, older_than_s=0.0)
    assert forge.requests == requests
    assert roles_of(ada) == ["none", "none"]


def test_a_target_that_is_removed_meanwhile_does_not_matter(ada: int, forge: FakeForge) -> None:
    def remove() -> None:
        forge.before_answer = lambda: None
        registry.remove("norms")

    forge.role, forge.before_answer = "triage", remove
    accounts.refresh_roles(ada, older_than_s=0.0)
    assert roles_of(ada) == ["triage"]
