"""From a decision of the ledger to what channels get: batched, capped, in order, and only what its reader may know."""

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from service.db.engine import clock, reading, transaction
from service.db.models import Account, ChannelHealth, Notice, NoticeMessage, RegressionRow, Role, Run, Target, Worker
from service.domain.regressions.lifecycle import Action, Transition
from service.domain.states import FoundBy, GateAction, NoticeState, OutboxState, Priority, RunState
from service.domain.text import DAY_S
from service.errors import BadInput, Conflict, NotFound
from service.ledger.access import sign_ins
from service.ledger.notices import happenings, subscriptions
from service.ledger.notices import happenings as silent_workers
from service.ledger.regressions import transitions
from service.ledger.regressions.transitions import Slower
from service.ledger.runs import queue
from service.settings import settings
from tests import world
from tests.fakes.api import Api, new_key
from tests.fakes.receivers import Mailbox
from tests.service.ledger.notices.conftest import OLD_SECRET, SECRET, Channels, send, set_channels, subscribe

CASE = "rmsnorm.fwd.64x4096.bf16"
DOCS = Path(__file__).parents[4] / "docs"
WAIT_S = 400.0  # longer than any event waits


def slower(
    target: Target, place: int, *cases: str, device: str = "h200", ratio: float = 1.102, **run: Any
) -> list[int]:
    """A run of the mainline commit at this place shows that these cases are slower."""
    with transaction() as session:
        shown = world.run(session, world.commit(session, target.id, place), device=device, **run)
        found = [
            transitions.Opening(shown, Slower("norms", case, ratio), FoundBy.PAIR, f"c{place - 1}") for case in cases
        ]
        rows = transitions.open_all(session, found, clock(session))
        return [row.id for row in rows]


def fixed(target: Target, regression_id: int, place: int, **run: Any) -> None:
    """A run of the commit at this place shows that a regression is fixed."""
    with transaction() as session:
        shown = world.run(session, world.commit(session, target.id, place), device="h200", **run)
        row = session.get_one(RegressionRow, regression_id)
        transitions.change(session, row, Transition(Action.FIX, run_id=shown.id), clock(session))


def now() -> float:
    with reading() as session:
        return clock(session)


def states() -> list[NoticeState]:
    with reading() as session:
        return list(session.scalars(select(Notice.state).order_by(Notice.id)))


@pytest.fixture
def target(channels: Channels) -> Target:
    return world.target()


def test_a_regression_is_one_message_for_people_and_one_for_programs(
    either: str, channels: Channels, mailbox: Mailbox, target: Target
) -> None:
    for channel in ("chat", "hook", "mail"):
        subscribe(channel, target)
    slower(target, 1, CASE)
    assert send(now()) == 0, "it waits for others"
    assert send(now() + WAIT_S) == 3
    assert send(now() + 2 * WAIT_S) == 0

    [posted] = channels.slack.documents
    [attachment] = posted["attachments"]
    assert attachment["title"] == "✗ norms on h200: 1 regression, 10.2 % slower, since c1"
    row = f"`{CASE} of norms on h200: 10.2 % slower since c1` <http://127.0.0.1:8712/regressions/1>"
    assert attachment["text"].startswith(row)
    [document] = channels.verified()
    assert (document["type"], document["data"]["title"]) == ("notice", attachment["title"])
    [event] = document["data"]["events"]
    assert (event["kind"], event["severity"], event["case"], event["ratio"]) == (
        "regression.opened",
        "fail",
        CASE,
        1.102,
    )
    assert event["url"] == "http://127.0.0.1:8712/regressions/1"
    [mail] = mailbox.mails
    assert "1 regression" in str(mail["subject"]) or "=?utf-8?" in str(mail["subject"]).lower()
    assert mail["to"] == "ada@example.org"


def test_200_cases_with_one_cause_are_one_message(channels: Channels, target: Target) -> None:
    for channel in ("chat", "hook"):
        subscribe(channel, target)
    slower(target, 1, *(f"rmsnorm.fwd.{n}x4096.bf16" for n in range(1, 251)))
    assert send(now() + WAIT_S) == 2
    [posted] = channels.slack.documents
    assert "250 regressions, up to 10.2 % slower" in posted["attachments"][0]["title"]
    assert len(posted["attachments"][0]["text"].split("\n\n")) == 3, "one row, the rest, and a link"
    [document] = channels.verified()
    assert document["data"]["counts"] == {"regression.opened": 250}
    assert (len(document["data"]["events"]), document["data"]["left_out"]) == (200, 50)


def test_who_subscribed_to_something_else_hears_nothing(channels: Channels, target: Target) -> None:
    other = world.target(name="softmax")
    subscribe("hook", target, device="h100")
    subscribe("hook", target, device="b*")
    subscribe("hook", other)
    subscribe("hook", target, kinds=["gap", "run.failed"])
    wanted = {
        subscribe("hook", target, device="h2??"),
        subscribe("hook"),
        subscribe("hook", target, kinds=["regression"]),
    }
    slower(target, 1, CASE)
    send(now() + WAIT_S)
    assert {one["data"]["subscription_id"] for one in channels.verified()} == wanted


def test_a_severity_is_the_smallest_that_is_sent(channels: Channels, target: Target) -> None:
    grave, every = (subscribe("hook", target, severity=one) for one in (GateAction.FAIL, GateAction.PASS))
    [found] = slower(target, 1, CASE)
    with transaction() as session:
        transitions.apply(session, found, Transition(Action.ACKNOWLEDGE, "ada", "exact sums"))
    send(now() + WAIT_S)
    kinds = {one["data"]["subscription_id"]: [*one["data"]["counts"]] for one in channels.verified()}
    assert kinds == {grave: ["regression.opened"], every: ["regression.opened", "regression.accepted"]}


def test_what_is_fixed_at_once_is_no_news_and_later_it_is(channels: Channels, target: Target) -> None:
    subscribe("hook", target)
    [first] = slower(target, 1, CASE)
    fixed(target, first, 2)
    assert send(now() + WAIT_S) == 0
    assert states() == [NoticeState.CANCELLED] * 2
    [second] = slower(target, 3, CASE)
    send(now() + WAIT_S)
    fixed(target, second, 4)
    send(now() + 2 * WAIT_S)
    assert [one["data"]["title"] for one in channels.verified()] == [
        "✗ norms on h200: 1 regression, 10.2 % slower, since c3",
        "✓ norms on h200: 1 regression fixed",
    ]


def test_a_case_that_flaps_is_sent_three_times_a_day(channels: Channels, target: Target) -> None:
    subscribe("hook", target)
    at = now()
    for n in range(12):
        [found] = slower(target, 2 * n + 1, CASE)
        send(at := at + 2000)
        fixed(target, found, 2 * n + 2)
        send(at := at + 2000)
    kinds = [[*one["data"]["counts"]] for one in channels.verified()]
    assert kinds == [["regression.opened"], ["regression.fixed"], ["regression.opened"]]
    send(at + 86_400)
    assert len(channels.verified()) <= 4, "what is left of it"


def test_a_storm_is_capped_and_nothing_of_it_is_lost(
    channels: Channels, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELWATCH_NOTICES_WAIT_S", "0")
    monkeypatch.setenv("KERNELWATCH_NOTICES_URGENT_WAIT_S", "0")
    settings.cache_clear()
    subscribe("hook", target)
    at = now()
    for n in range(100):
        slower(target, 10 * n + 1, f"rmsnorm.fwd.{n + 1}x64.bf16")
        send(at + 36 * n)
    assert len(channels.verified()) == 6
    send(at + 3700)
    assert sum(one["data"]["counts"]["regression.opened"] for one in channels.verified()) == 100
    assert len(channels.verified()) == 7


def test_a_channel_that_comes_back_gets_the_rest_in_one_message(channels: Channels, target: Target) -> None:
    subscribe("hook", target)
    subscribe("chat", target)
    channels.hook.status = 503
    at = now() + WAIT_S
    for n in range(12):
        slower(target, 10 * n + 1, f"rmsnorm.fwd.{n + 1}x64.bf16")
        send(at := at + 300)
    assert len(channels.slack.received) == 6, "the other channel goes on, up to its cap"
    tried = len(channels.hook.received)
    assert tried <= 12, "it is asked ever less often"
    with reading() as session:
        health = session.scalars(select(ChannelHealth).where(ChannelHealth.channel == "hook")).one()
        assert (health.failures, health.error) == (tried, "the receiver answered 503")
    channels.hook.status = 204
    send(at := at + 3600)
    send(at := at + 300)
    arrived = channels.verified()[tried:]
    assert [one["data"]["counts"]["regression.opened"] for one in arrived] == [1, 11]
    ids = {one.headers["webhook-id"] for one in channels.hook.received[: tried + 1]}
    assert len(ids) == 1, "a repeat has the id of the first attempt"
    with reading() as session:
        assert session.scalars(select(ChannelHealth.error).where(ChannelHealth.channel == "hook")).one() is None


def test_after_a_week_the_rest_is_counted(channels: Channels, target: Target) -> None:
    subscribe("hook", target)
    channels.hook.status = 500
    slower(target, 1, CASE)
    at = now() + WAIT_S
    send(at)
    for n in range(3):
        slower(target, 10 * n + 11, CASE)
    send(at := at + 8 * 86_400)
    channels.hook.status = 200
    with transaction() as session:
        session.execute(update(ChannelHealth).values(paused_until=0.0))
    found = [regression_id for place in (101, 111) for regression_id in slower(target, place, f"{CASE}.call")]
    with transaction() as session:
        session.execute(update(Notice).where(Notice.subject.in_([f"regression {one}" for one in found])).values(at=at))
    before = len(channels.hook.received)
    send(at + WAIT_S)
    [document] = channels.verified()[before:]
    assert document["data"]["dropped"] == 4
    assert sum(document["data"]["counts"].values()) == 2


@pytest.mark.parametrize(
    ("answers", "refusals", "ends"),
    [
        ([400] * 5, 5, OutboxState.FAILED),
        ([410] * 5, 0, OutboxState.WAITING),
        ([302] * 5, 0, OutboxState.WAITING),
        ([503] * 6 + [422], 1, OutboxState.WAITING),
        ([400, 503] * 4 + [400], 5, OutboxState.FAILED),
    ],
)
def test_a_message_that_is_refused_five_times_is_given_up_and_one_whose_channel_is_away_is_not(
    channels: Channels, target: Target, answers: list[int], refusals: int, ends: OutboxState
) -> None:
    subscribe("hook", target)
    channels.hook.headers = {"location": f"{channels.slack.address}/elsewhere"}
    slower(target, 1, CASE)
    at = now() + WAIT_S
    for status in answers:
        channels.hook.status = status
        send(at := at + 3600)
    assert len(channels.hook.received) == len(answers)
    with reading() as session:
        message = session.scalars(select(NoticeMessage)).one()
        assert (message.state, message.attempts) == (ends, refusals)
        assert message.error is not None
        assert f"answered {status}" in message.error
    assert channels.slack.received == [], "redirects are not followed"


def test_a_receiver_says_when_to_come_back(channels: Channels, target: Target) -> None:
    subscribe("hook", target)
    channels.hook.status, channels.hook.headers = 429, {"retry-after": "1200"}
    slower(target, 1, CASE)
    at = now() + WAIT_S
    send(at)
    channels.hook.status = 200
    assert send(at + 1100) == 0
    assert send(at + 1201) == 1


def test_a_receiver_that_hangs_holds_up_nobody(
    channels: Channels, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.channels.channels._TIMEOUT", 0.3)
    channels.hook.hang_s = 60
    subscribe("hook", target)
    subscribe("hook")
    subscribe("chat", target)
    slower(target, 1, CASE)
    assert send(now() + WAIT_S) == 1
    assert len(channels.slack.received) == 1
    assert len(channels.hook.received) == 1, "the second message waits with the first"


def test_a_secret_is_rotated(channels: Channels, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe("hook", target)
    set_channels(monkeypatch, channels.hook, secret=SECRET, secret_old=OLD_SECRET)
    slower(target, 1, CASE)
    send(now() + WAIT_S)
    [request] = channels.hook.received
    assert len(request.headers["webhook-signature"].split()) == 2
    assert channels.verified(SECRET) == channels.verified(OLD_SECRET)


def test_the_page_verifies_a_signature_in_ten_lines(channels: Channels, target: Target) -> None:
    subscribe("hook", target)
    slower(target, 1, CASE)
    send(now() + WAIT_S)
    [request] = channels.hook.received
    [code] = re.findall(r"^```python\n(.*?)^```$", (DOCS / "notices.md").read_text(), re.MULTILINE | re.DOTALL)
    page: dict[str, Any] = {}
    exec(code, page)
    page["verify"](SECRET, request.headers, request.body)
    for secret, body in ((OLD_SECRET, request.body), (SECRET, request.body + b" ")):
        with pytest.raises(ValueError, match="not signed"):
            page["verify"](secret, request.headers, body)
    with pytest.raises(ValueError, match="not signed"):
        page["verify"](SECRET, request.headers | {"webhook-timestamp": "1"}, request.body)


def test_two_control_processes_send_once(either: str, channels: Channels, target: Target) -> None:
    for place in range(20):
        subscribe("hook", target, device=f"h200{'*' * place}")
    slower(target, 1, CASE)
    at, begin, sent = now() + WAIT_S, threading.Barrier(4), list[int]()

    def control() -> None:
        begin.wait()
        sent.append(send(at))

    threads = [threading.Thread(target=control) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    while send(at):  # what a claim of another had left
        pass
    ids = [one.headers["webhook-id"] for one in channels.hook.received]
    assert len(ids) == len(set(ids)) == 20


def test_what_is_deleted_hears_nothing_more(channels: Channels, target: Target) -> None:
    first, second = subscribe("hook", target), subscribe("hook")
    slower(target, 1, CASE)
    with transaction() as session:
        subscriptions.remove(session, first)
    send(now() + WAIT_S)
    assert [one["data"]["subscription_id"] for one in channels.verified()] == [second]
    with transaction() as session, pytest.raises(NotFound):
        subscriptions.remove(session, first)


def test_a_subscription_is_deleted_while_a_run_records_events(either: str, channels: Channels, target: Target) -> None:
    subscription_id, errors = subscribe("hook", target), list[Exception]()

    def delete() -> None:
        try:
            with transaction() as session:
                subscriptions.remove(session, subscription_id)
        except Exception as error:
            errors.append(error)

    deleting = threading.Thread(target=delete)
    with transaction() as session:
        run = world.run(session, world.commit(session, target.id, 1), device="h200")
        happenings.run_failed(session, run, clock(session))
        deleting.start()
        deleting.join(0.5)
        assert deleting.is_alive(), "it waits"
    deleting.join()
    assert (errors, states()) == ([], [])


def test_a_subscriber_hears_only_what_they_may_read_when_it_is_sent(channels: Channels, target: Target) -> None:
    key_text = new_key("triage", name="hooks")
    api = Api(key_text)
    made = api.post("/subscriptions", {"channel": "hook"})
    assert made.status_code == 201, made.text
    slower(target, 1, CASE)
    send(now() + WAIT_S)
    assert len(channels.verified()) == 1
    slower(target, 11, CASE)
    prefix = key_text[:13]
    assert api.with_key("admin").post(f"/keys/{prefix}/revoke").status_code == 200
    send(now() + 2 * WAIT_S)
    assert len(channels.verified()) == 1
    assert states()[-1] is NoticeState.CANCELLED


@pytest.mark.parametrize("permission", ["write", "none"])
def test_a_person_hears_of_a_private_target_only_while_the_forge_lets_them_read_it(
    channels: Channels, target: Target, permission: str
) -> None:
    with transaction() as session:
        account = Account(issuer="https://forge.example", subject="7", login="bob", created_at=1.0, signed_in_at=1.0)
        session.add(account)
        session.flush()
        role = Role(account_id=account.id, target_id=target.id, permission="write", checked_at=1.0)
        session.add(role)
        session.flush()
        subscriptions.create(session, sign_ins.person(session, account), "hook", target)
        session.get_one(Target, target.id).private = True
        role.permission = permission

    slower(target, 1, CASE)
    send(now() + WAIT_S)

    may_read = permission == "write"
    assert len(channels.verified()) == may_read
    assert (NoticeState.CANCELLED in states()) is not may_read


def test_a_backfill_and_a_pull_request_send_nothing(channels: Channels, target: Target) -> None:
    subscribe("hook", target)
    [found] = slower(target, 1, CASE, priority=Priority.BACKFILL)
    fixed(target, found, 2, priority=Priority.BACKFILL)
    with transaction() as session:
        for columns in ({"priority": Priority.BACKFILL}, {"pull": 7}):
            run = world.run(session, world.commit(session, target.id, 3), state=RunState.LEASED, attempt=3, **columns)
            queue.end(session, queue.Lease(run.id, 3, "box"), RunState.FAILED, "does not build")
    assert states() == []


def test_a_failed_run_is_sent_once_its_attempts_are_spent(channels: Channels, target: Target) -> None:
    subscribe("hook", target)
    with transaction() as session:
        run = world.run(session, world.commit(session, target.id, 1), state=RunState.QUEUED)
        for attempt in (1, 2, 3):
            session.execute(update(Run).values(not_before=0.0))
            lease = queue.next_run(session, "cpu", "box", 60)
            assert lease is not None
            assert lease.attempt == attempt
            session.refresh(run)
            queue.give_back(session, lease, "the GPU fell off the bus")
    assert len(states()) == 1
    send(now() + WAIT_S)
    [document] = channels.verified()
    assert document["data"]["title"] == "! norms on cpu: 1 run failed"
    assert "the GPU fell off the bus" in document["data"]["events"][0]["text"]


def test_a_worker_that_is_lost_and_comes_back(channels: Channels, target: Target) -> None:
    subscribe("hook")
    subscribe("hook", target)
    with transaction() as session:
        rows = {"box/h200-0": 0.0, "old/h200-0": 5 * 86_400.0, "new/h200-0": -320.0}
        for name, silent_s in rows.items():
            seen_at = clock(session) - 320 - silent_s
            session.add(Worker(name=name, device="h200", description="", started_at=0.0, seen_at=seen_at))
    assert silent_workers.note_lost() == 1
    assert silent_workers.note_lost() == 0
    send(now() + WAIT_S)
    with transaction() as session:
        session.execute(update(Worker).where(Worker.name == "box/h200-0").values(seen_at=clock(session)))
    assert silent_workers.note_lost() == 1
    send(now() + 3 * WAIT_S)
    said = [(one["data"]["title"], one["data"]["events"][0]["by"]) for one in channels.verified()]
    assert said == [("! h200: 1 worker lost", "box/h200-0"), ("✓ h200: 1 worker back", "box/h200-0")]


def test_a_gpu_that_mostly_waits_for_processes_is_told_of_once_a_day(channels: Channels, target: Target) -> None:
    subscribe("hook")
    took = {"slow/h200-0": ("h200", 31.0), "quick/h200-0": ("h200", 29.0), "slow/cpu-0": ("cpu", 31.0)}
    with transaction() as session:
        midnight = clock(session) // DAY_S * DAY_S
        for place, (name, (device, start_s)) in enumerate(took.items()):
            for ago_s in (60.0, DAY_S + 60.0):
                trial = {"seconds": {"start": start_s, "rounds": 30.0, "timed": 20.0}}
                ended = {"state": RunState.DONE, "finished_at": midnight - ago_s, "worker": name}
                of = world.commit(session, target.id, 2 * place + (ago_s > DAY_S))
                world.run(session, of, device=device, telemetry={"trials": [trial]}, **ended)
        world.totalled(session)
    for _ in range(2):
        happenings.note_starting()
    send(now() + WAIT_S)
    [document] = channels.verified()
    assert document["data"]["title"] == "! h200: 1 worker mostly starting processes"
    [event] = document["data"]["events"]
    assert event["by"] == "slow/h200-0"
    assert "61.0 s: start 31.0, rounds 30.0" in event["text"]


def test_names_from_elsewhere_do_nothing(channels: Channels, mailbox: Mailbox, target: Target) -> None:
    for channel in ("chat", "mail"):
        subscribe(channel, target)
    evil = "<!channel> @everyone\r\nBcc: all@example.org <script>alert(1)</script> `x` [a](http://b)"
    with transaction() as session:
        commit = world.commit(session, target.id, "v1 <!here>", ordinal=1, parent="c0")
        run = world.run(session, commit, device="h200", state=RunState.LEASED, attempt=1)
        queue.end(session, queue.Lease(run.id, 1, "box"), RunState.FAILED, evil)
    assert send(now() + WAIT_S) == 2
    text = json.dumps(channels.slack.documents, ensure_ascii=False)
    assert "<!channel>" not in text
    assert "<!here>" not in text
    [mail] = mailbox.mails
    assert mail["bcc"] is None
    html = next(part for part in mail.walk() if part.get_content_type() == "text/html").get_payload(decode=True)
    assert b"<script>" not in html


def test_what_cannot_be_subscribed(channels: Channels, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe("hook", target)
    for error, said, channel, options in (
        (Conflict, "Subscription 1 is the same", "hook", {}),
        (NotFound, "Known channels: chat, hook, mail", "pager", {}),
        (BadInput, "'regresion' is no kind of event", "hook", {"kinds": ["regresion"]}),
    ):
        with pytest.raises(error, match=said):
            subscribe(channel, target, **options)
    for url, secret, said in (
        ("http://hooks.example.org/", SECRET, "plain http"),
        ("https://hooks.example.org/", None, "needs a secret"),
        ("https://hooks.example.org/", "hunter2hunter2", "a secret is whsec_"),
        ("nothing://x", None, "Apprise does not know"),
    ):
        monkeypatch.setenv("KERNELWATCH_CHANNELS", json.dumps({"bad": {"url": url, "secret": secret}}))
        settings.cache_clear()
        with pytest.raises(BadInput, match=said):
            subscribe("bad", target)
