"""Each decision is sent once, in its newest form, whatever fails on the way."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from service.db import wakeups
from service.db.engine import clock, reading, transaction
from service.db.models import OutboxMessage, Run, Target
from service.domain.states import OutboxState
from service.forge.github import App, GitHub, Token, connect
from service.ledger import targets
from service.ledger.locking import backoff
from service.ledger.notify import outbox
from tests import world
from tests.fakes.github import FakeGitHub, app_key

REPO, SHA = "acme/norms", "a" * 40
KEY, MARKER = "comment:1:7", "<!-- kernelwatch:norms:7 -->"
RECIPE = 'devices = ["cpu"]\n[providers.norms]\nrmsnorm.fwd = "norms:rmsnorm"\n'
WAITING, SENT, PREVIEW, FAILED = OutboxState.WAITING, OutboxState.SENT, OutboxState.PREVIEW, OutboxState.FAILED


@pytest.fixture
def forge() -> FakeGitHub:
    return FakeGitHub()


@pytest.fixture
def client(forge: FakeGitHub) -> Callable[[], GitHub]:
    made = GitHub(Token("a-token"), forge.client(), sleep=lambda _: None)
    return lambda *_: made


@pytest.fixture
def app(forge: FakeGitHub) -> Callable[[], GitHub]:
    made = GitHub(App("1", app_key()), forge.client(), sleep=lambda _: None)
    return lambda *_: made


@pytest.fixture
def run(state: Path) -> Run:
    """A run of pull request 7, of a target with a forge."""
    return make_run(REPO)


@pytest.fixture
def run_on_either(either: str) -> Run:
    """The same on SQLite, and once more on PostgreSQL."""
    return make_run(REPO)


def make_run(forge: str | None, name: str = "norms") -> Run:
    with transaction() as session:
        target = targets.register(session, name, location="/norms", forge=forge, recipe_text=RECIPE)
        return world.run(session, world.commit(session, target.id, SHA), pull=7, created_at=clock(session))


def say(run: Run, body: str) -> None:
    tell(run, KEY, "comment", {"pull": 7, "body": body})


def check(run: Run, conclusion: str | None = "success", sha: str = SHA) -> None:
    status = "completed" if conclusion else "in_progress"
    payload = {"sha": sha, "name": "kernelwatch / norms / cpu", "status": status, "conclusion": conclusion}
    tell(
        run,
        f"check:1:{sha}",
        "check",
        {
            **payload,
            "title": "Steady",
            "summary": "All is well.",
            "url": "http://here/1",
            "commit_status": conclusion or "pending",
        },
    )


def tell(run: Run, key: str, kind: str, payload: dict[str, Any]) -> None:
    with transaction() as session:
        outbox.enqueue(session, key, kind, session.get_one(Target, run.target_id), run, payload)


def effect() -> OutboxMessage:
    [only] = effects()
    return only


def effects() -> list[OutboxMessage]:
    with reading() as session:
        return list(session.execute(select(OutboxMessage).order_by(OutboxMessage.id)).scalars())


def database_now() -> float:
    with reading() as session:
        return clock(session)


def later(client: Callable[[], GitHub], seconds: float = 4000) -> int:
    """Look again after a while."""
    return outbox.deliver_due(client, now=database_now() + seconds)


def test_a_comment_is_sent_and_then_edited_in_place(
    forge: FakeGitHub, client: Callable[[], GitHub], run_on_either: Run
) -> None:
    say(run_on_either, "1 regression")
    assert outbox.deliver_due(client) == 1
    assert outbox.deliver_due(client) == 0
    say(run_on_either, "no action needed")
    assert outbox.deliver_due(client) == 1

    assert forge.comments_on(REPO, 7) == [f"{MARKER}\nno action needed"]
    assert [one.edits for one in forge.comments.values()] == [1]
    assert (effect().state, effect().version, effect().attempts, effect().error) == (SENT, 2, 0, None)


def test_a_check_follows_its_run(forge: FakeGitHub, app: Callable[[], GitHub], run: Run) -> None:
    check(run, None)
    outbox.deliver_due(app)
    assert forge.checks[REPO, SHA]["status"] == "in_progress"
    check(run, "neutral")
    outbox.deliver_due(app)
    assert forge.checks[REPO, SHA]["conclusion"] == "neutral"
    assert len(forge.check_runs) == 1


def test_a_token_may_not_write_checks_and_sends_a_status(
    forge: FakeGitHub, client: Callable[[], GitHub], run: Run
) -> None:
    check(run, None)
    outbox.deliver_due(client)
    check(run, "failure")
    outbox.deliver_due(client)
    assert [one["state"] for one in forge.statuses[REPO, SHA]] == ["pending", "failure"]
    assert effect().state is SENT


def test_saying_the_same_again_sends_nothing(forge: FakeGitHub, client: Callable[[], GitHub], run: Run) -> None:
    for _ in range(3):
        say(run, "no action needed")
        outbox.deliver_due(client)
    assert len(forge.writes()) == 1
    assert effect().version == 1


def test_only_the_newest_words_are_sent(forge: FakeGitHub, client: Callable[[], GitHub], run: Run) -> None:
    for body in ("queued", "measuring", "no action needed"):
        say(run, body)
    outbox.deliver_due(client)
    assert len(forge.writes()) == 1
    assert forge.comments_on(REPO, 7) == [f"{MARKER}\nno action needed"]


def test_a_body_brings_its_own_marker(forge: FakeGitHub, client: Callable[[], GitHub], run: Run) -> None:
    say(run, "<!-- kernelwatch:norms:7:h200 -->\nno action needed")
    outbox.deliver_due(client)
    assert forge.comments_on(REPO, 7) == ["<!-- kernelwatch:norms:7:h200 -->\nno action needed"]


def test_nothing_leaves_a_transaction_that_is_rolled_back(
    forge: FakeGitHub, client: Callable[[], GitHub], run: Run
) -> None:
    with pytest.raises(RuntimeError), transaction() as session:  # noqa: PT012
        outbox.enqueue(session, KEY, "comment", session.get_one(Target, run.target_id), run, {"pull": 7, "body": "oh"})
        raise RuntimeError
    assert outbox.deliver_due(client) == 0
    assert forge.requests == []


# -- what breaks on the way


def test_words_that_change_while_they_are_sent_are_sent_again(forge: FakeGitHub, run: Run) -> None:
    class Slow(GitHub):
        """Whose first comment takes so long that the verdict changes meanwhile."""

        def upsert_comment(self, repo: str, number: int, marker: str, body: str, known_id: str | None = None) -> str:
            if "first" in body:
                say(run, "second")
                assert outbox.deliver_due(lambda _: self) == 0, "nobody else may send while this is on its way"
            return super().upsert_comment(repo, number, marker, body, known_id)

    say(run, "first")
    assert outbox.deliver_due(lambda _: Slow(Token("a-token"), forge.client(), sleep=lambda _: None)) == 2
    assert forge.comments_on(REPO, 7) == [f"{MARKER}\nsecond"]
    assert (effect().state, effect().version) == (SENT, 2)


def test_older_words_that_arrive_last_do_not_stay(forge: FakeGitHub, client: Callable[[], GitHub], run: Run) -> None:
    class Stuck(GitHub):
        """Whose send takes longer than its claim: somebody else has sent newer words meanwhile."""

        def upsert_comment(self, repo: str, number: int, marker: str, body: str, known_id: str | None = None) -> str:
            say(run, "second")
            assert later(client) == 1
            return super().upsert_comment(repo, number, marker, body, known_id)

    stuck = Stuck(Token("a-token"), forge.client(), sleep=lambda _: None)
    say(run, "first")
    outbox.deliver_due(lambda _: stuck if effect().version == 1 else client())
    outbox.deliver_due(client)
    assert forge.comments_on(REPO, 7) == [f"{MARKER}\nsecond"]
    assert effect().state is SENT


def test_a_sender_that_dies_after_posting_leaves_no_second_comment(
    forge: FakeGitHub, client: Callable[[], GitHub], run: Run
) -> None:
    class Dies(GitHub):
        def upsert_comment(self, repo: str, number: int, marker: str, body: str, known_id: str | None = None) -> str:
            super().upsert_comment(repo, number, marker, body, known_id)
            raise KeyboardInterrupt

    say(run, "1 regression")
    with pytest.raises(KeyboardInterrupt):
        outbox.deliver_due(lambda _: Dies(Token("a-token"), forge.client(), sleep=lambda _: None))
    assert (effect().state, effect().remote_id) == (WAITING, None)
    assert outbox.deliver_due(client) == 0, "its claim stands for a while"

    assert later(client) == 1
    assert len(forge.comments_on(REPO, 7)) == 1
    assert effect().state is SENT


def test_a_post_that_was_committed_but_not_heard_is_not_repeated(
    forge: FakeGitHub, client: Callable[[], GitHub], run: Run
) -> None:
    forge.fail_next("502-after-commit")
    say(run, "1 regression")
    assert outbox.deliver_due(client) == 0
    assert "502" in str(effect().error)
    assert later(client) == 1
    assert len(forge.comments_on(REPO, 7)) == 1


@pytest.mark.parametrize("fault", ["502", "unreachable"])
def test_what_passes_is_tried_less_and_less_often(
    forge: FakeGitHub, client: Callable[[], GitHub], run: Run, fault: str
) -> None:
    say(run, "1 regression")
    waits = []
    for _ in range(4):
        forge.fail_next(fault)
        before = max(database_now(), effect().next_at)
        assert outbox.deliver_due(client, now=before) == 0
        waits.append(effect().next_at - before)
        backoff.forget()  # of an outage
    assert waits == pytest.approx([10, 20, 40, 80])
    assert effect().state is WAITING
    assert later(client) == 1
    assert (effect().attempts, effect().error) == (0, None)


def test_what_does_not_pass_in_a_week_is_given_up(forge: FakeGitHub, client: Callable[[], GitHub], run: Run) -> None:
    say(run, "1 regression")
    while effect().state is WAITING:
        forge.fail_next("502")
        outbox.deliver_due(client, now=max(database_now(), effect().next_at))
        backoff.forget()
    assert effect().state is FAILED
    assert effect().next_at - database_now() > 7 * 24 * 3600


def test_a_refusal_is_final_until_there_is_something_new_to_say(
    forge: FakeGitHub, client: Callable[[], GitHub], run: Run
) -> None:
    forge.fail_next("gone")
    say(run, "1 regression")
    assert outbox.deliver_due(client) == 0
    assert effect().state is FAILED
    assert str(effect().error).startswith(f"GitHub answered 404 to POST /repos/{REPO}/issues/7/comments")
    assert later(client) == 0

    say(run, "no action needed")
    assert outbox.deliver_due(client) == 1
    assert effect().state is SENT


@pytest.mark.parametrize(("limit", "least_s"), [("secondary", 7), ("primary", 500)])
def test_a_rate_limit_of_a_token_pauses_everything_and_says_so(
    forge: FakeGitHub, client: Callable[[], GitHub], run: Run, limit: str, least_s: float
) -> None:
    for number in range(9):
        check(run, sha=f"{number}" * 40)
    forge.fail_next(limit, "/statuses")
    began = database_now()
    for seconds in range(6):
        assert outbox.deliver_due(client, now=began + seconds) == 0
        check(run, sha="9" * 40)  # and what comes later waits as well
    assert len([path for _, path in forge.requests if "/statuses" in path]) == 1
    assert {one.state for one in effects()} == {WAITING}
    with reading() as session:
        target = session.get_one(Target, run.target_id)
    assert least_s - 1 <= target.forge_paused_until - began <= 601
    assert "GitHub answered 403" in str(target.forge_error)
    assert later(client) == 10


def test_a_rate_limit_of_an_installation_pauses_its_owner_alone(
    forge: FakeGitHub, app: Callable[[], GitHub], run: Run
) -> None:
    with transaction() as session:
        other = targets.register(session, "other", location="/other", forge="octo/norms", recipe_text=RECIPE)
        theirs = world.run(session, world.commit(session, other.id, "b" * 40), pull=7, created_at=clock(session))
    check(run)
    tell(theirs, "comment:2:7", "comment", {"pull": 7, "body": "steady"})
    forge.fail_next("secondary", "/check-runs", "GET")
    assert outbox.deliver_due(app) == 1
    assert forge.comments_on("octo/norms", 7)
    assert later(app, 11) == 1


@pytest.mark.parametrize("fault", ["502", "unreachable"])
def test_three_failures_in_a_row_are_an_outage_and_the_others_wait_for_seconds(
    forge: FakeGitHub, client: Callable[[], GitHub], run: Run, fault: str
) -> None:
    for number in range(10):
        check(run, sha=f"{number}" * 40)
    for _ in range(3):
        forge.fail_next(fault, "/check-runs", "GET")
    for _ in range(5):
        assert outbox.deliver_due(client) == 0
    assert len(forge.requests) == 3
    assert [one.next_at > outbox.at_once("check") for one in effects()] == [True] * 3 + [False] * 7
    backoff.forget()
    assert outbox.deliver_due(client) == 7


def test_one_that_cannot_be_sent_does_not_hold_up_the_next(
    forge: FakeGitHub, client: Callable[[], GitHub], run: Run
) -> None:
    tell(run, "broken", "comment", {"pull": 7})
    check(run)
    assert outbox.deliver_due(client) == 1
    with reading() as session:
        broken = session.execute(select(OutboxMessage).where(OutboxMessage.key == "broken")).scalar_one()
    assert broken.state is FAILED
    assert broken.error is not None
    assert broken.error.startswith("internal error: ValidationError: 1 validation error for CommentPayload\nbody\n")


def test_targets_take_turns_however_many_messages_one_has(
    forge: FakeGitHub, client: Callable[[], GitHub], run_on_either: Run
) -> None:
    small = make_run("acme/small", "small")
    for number in range(1, 7):
        tell(run_on_either, f"comment:1:{number}", "comment", {"pull": number, "body": "large"})
    for number in (1, 2):
        tell(small, f"comment:2:{number}", "comment", {"pull": number, "body": "small"})
    assert outbox.deliver_due(client) == 8
    sent = [comment.body.splitlines()[-1] for comment in forge.comments.values()]
    assert sent == ["large", "small", "large", "small", *["large"] * 4]


def test_what_people_read_goes_before_checks(
    forge: FakeGitHub, client: Callable[[], GitHub], run_on_either: Run
) -> None:
    for number in range(3):
        check(run_on_either, sha=f"{number}" * 40)
    tell(run_on_either, "comment:1:7", "comment", {"pull": 7, "body": "slower"})
    assert outbox.deliver_due(client) == 4
    sent = [request for request in forge.requests if request[0] == "POST"]
    assert "/comments" in sent[0][1], "it was the last one to be queued"


def test_several_senders_send_each_thing_once(forge: FakeGitHub, run_on_either: Run) -> None:
    for number in range(8):
        tell(run_on_either, f"comment:1:{number}", "comment", {"pull": number, "body": "hello"})

    def send(_: int) -> int:
        return outbox.deliver_due(lambda _: GitHub(Token("a-token"), forge.client(), pause_s=0))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(send, range(4))) == 8
    assert sorted(one.number for one in forge.comments.values()) == list(range(8))


def test_two_who_say_the_same_thing_first_at_once_both_succeed(run_on_either: Run) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: say(run_on_either, f"device {number}"), range(8)))
    assert (effect().state, effect().version) == (WAITING, 8)


# -- nobody to send to


def test_without_a_forge_it_is_kept_to_be_looked_at(state: Path, client: Callable[[], GitHub]) -> None:
    say(make_run(None), "the comment that a pull request would have received")
    assert outbox.deliver_due(client) == 0
    assert effect().state is PREVIEW
    assert effect().payload["body"].startswith("the comment")


def test_without_credentials_it_waits_and_says_what_is_missing(
    forge: FakeGitHub, client: Callable[[], GitHub], run: Run
) -> None:
    say(run, "1 regression")
    assert outbox.deliver_due() == 0
    assert effect().state is WAITING
    assert "KERNELWATCH_GITHUB_TOKEN" in str(effect().error)

    say(run, "no action needed")
    assert later(client) == 1
    assert forge.comments_on(REPO, 7) == [f"{MARKER}\nno action needed"]


def test_a_token_that_was_revoked_loses_nothing(
    forge: FakeGitHub, client: Callable[[], GitHub], run_on_either: Run
) -> None:
    forge.tokens.clear()
    for number in range(10):
        check(run_on_either, sha=f"{number}" * 40)
    assert (later(client, 0), later(client, 60)) == (0, 0)
    assert len(forge.requests) == 1, "whoever knocks too often is shut out"
    assert "401" in str(effects()[0].error)

    forge.tokens.add("a-token")
    assert later(client, 601) == 10


def test_an_app_that_is_installed_later_loses_nothing(forge: FakeGitHub, app: Callable[[], GitHub], run: Run) -> None:
    forge.app_installed = False
    check(run)
    assert outbox.deliver_due(app) == 0
    assert str(effect().error).startswith(f"The GitHub App is not installed on {REPO}")

    forge.app_installed = True
    assert later(app) == 1
    assert forge.checks[REPO, SHA]["conclusion"] == "success"


def test_a_token_that_comes_after_a_week_finds_only_news(client: Callable[[], GitHub], run: Run) -> None:
    say(run, "1 regression")
    for day in range(9):
        later(connect, day * 86400)
    assert effect().state is FAILED
    assert later(client, 9 * 86400) == 0


@pytest.fixture
def woken() -> Iterator[list[str]]:
    seen: list[str] = []
    wakeups.send_with(seen.append)
    yield seen
    wakeups.send_with(None)


def test_whoever_sends_is_woken(run: Run, woken: list[str]) -> None:
    say(run, "1 regression")
    assert woken == ["control"]
