"""Commands in comments of a pull request: from the forge's webhook to the reaction and the answer."""

import pytest
from sqlalchemy import select, update

from service.db.engine import reading, transaction
from service.db.models import AuditEntry, Bisection, Delivery, OutboxMessage, RegressionEvent, RegressionRow
from service.domain.forges import NAMES, pull_name
from service.domain.states import ForgeKind, RegressionState, RunState
from service.ledger.intake import deliveries
from tests import needs
from tests.fakes.repository import MEASURED_ANYWHERE
from tests.stories.forge.forges import story  # noqa: F401  (a fixture)
from tests.stories.test_story import WIDE, Story
from workers import control


@pytest.fixture
def written(story: Story) -> Story:  # noqa: F811
    """Ada may write to the repository."""
    story.permit("ada", "write")
    return story


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The device worker is busy elsewhere, until the patch is undone."""
    monkeypatch.setattr(control, "work", lambda device: 0)
    return monkeypatch


def states(story: Story, sha: str) -> list[RunState]:  # noqa: F811
    return [run.state for run in story.runs(sha)]


def audited(action: str) -> list[tuple[str, str]]:
    with reading() as session:
        rows = select(AuditEntry).where(AuditEntry.action == action).order_by(AuditEntry.id)
        return [(f"{one.actor_kind} {one.actor}", one.object or "") for one in session.scalars(rows)]


def test_help_lists_the_commands_to_anybody(written: Story) -> None:
    written.pull(7, action="opened", wide=201.0)
    comment = written.comment(7, "/kernelwatch help", by="grace")
    said = written.answer(comment)
    assert said.startswith("`/kernelwatch help` (grace):")
    for usage in ("run [SUITE] [DEVICE]", "rerun", "stop", "bisect", "accept REASON", "approve SHA"):
        assert f"`/kernelwatch {usage}`" in said
    assert written.reactions(comment) == ["+1"]


def test_rerun_measures_the_head_again_and_the_comment_shows_the_new_result(written: Story) -> None:
    head = written.pull(7, action="opened", wide=300.0)
    [first] = written.runs(head)

    comment = written.comment(7, "/kernelwatch rerun\r\n\r\nThe machine was hot.")

    _, second = written.runs(head)
    assert (second.state, second.pull, second.baseline) == (RunState.DONE, 7, first.baseline)
    assert f"[run {second.id}]({written.address_of(second)}) of `story` on `cpu` at `{head[:10]}`" in written.answer(
        comment
    )
    assert "is the next in the queue; it is expected to end in" in written.answer(comment)
    assert written.reactions(comment) == ["eyes"]
    report, *_ = written.said(7)
    assert "1 of 2 cases" in report
    assert f"/runs/{second.id}" in report
    assert ("person ada", f"run {second.id}") in audited("run.start")


def test_run_says_that_the_head_was_measured_and_starts_another_suite(written: Story) -> None:
    head = written.pull(7, action="opened", wide=300.0)
    again = written.comment(7, "/kernelwatch run")
    assert "was measured already; `/kernelwatch rerun` measures it once more" in written.answer(again)
    assert written.reactions(again) == ["+1"]

    quick = written.comment(7, "/kernelwatch run quick cpu")
    assert "of `quick` on `cpu`" in written.answer(quick)
    assert [run.suite for run in written.runs(head)] == ["story", "quick"]
    report, *_ = written.said(7)
    assert WIDE in report, "the comment keeps to the suite of the recipe"


def test_a_wrong_command_is_answered_with_what_to_write(written: Story) -> None:
    head = written.pull(7, action="opened", wide=203.0)
    for line, advice in {
        "/kernelwatch": "`/kernelwatch run [SUITE] [DEVICE]`",
        "/kernelwatch measure": "There is no command 'measure'. Write \\`/kernelwatch help\\`",
        "/kernelwatch rerun now": "Write \\`/kernelwatch rerun\\` on the first line",
        "/kernelwatch run slow": "There is no suite 'slow'; known: story, quick",
        "/kernelwatch run quick h200": "'h200' is no device of norms; its recipe says cpu",
        "/kernelwatch run --target other": "No target other watches this repository; norms does",
        "/kernelwatch approve HEAD": "'HEAD' is not the whole sha of a commit",
        "/kernelwatch @everyone`<!-- kernelwatch:norms:7 -->": "There is no command '@\u200beveryone",
    }.items():
        assert advice in written.answer(written.comment(7, line))
    assert len(written.runs(head)) == 1


def test_stop_cancels_what_waits_on_this_pull_request_only(written: Story, idle: pytest.MonkeyPatch) -> None:
    mine, other = written.pull(7, action="opened", wide=205.0), written.pull(8, action="opened", wide=206.0)
    comment = written.comment(7, "/kernelwatch stop")
    assert (states(written, mine), states(written, other)) == ([RunState.CANCELLED], [RunState.QUEUED])
    [run] = written.runs(mine)
    assert f"cancelled [run {run.id}]" in written.answer(comment)
    assert run.reason == "cancelled by ada"
    assert audited("run.cancel") == [("person ada", f"run {run.id}")]

    assert "nothing to stop" in written.answer(written.comment(7, "/kernelwatch stop"))
    restarted = written.comment(7, "/kernelwatch run")
    assert states(written, mine) == [RunState.QUEUED]
    assert "is number 2 in the queue" in written.answer(restarted) or "is the next" in written.answer(restarted)


@pytest.mark.every_run
@needs.skip_unless(not MEASURED_ANYWHERE, "bubblewrap")
def test_a_fork_runs_only_after_the_approval_of_exactly_its_head(written: Story) -> None:
    first = written.pull(7, action="opened", fork=True, wide=207.0)
    assert states(written, first) == [RunState.HELD]
    held = written.comment(7, "/kernelwatch run")
    assert "is held until somebody approves its commit" in written.answer(held)
    assert f"`/kernelwatch approve {first}`" in written.answer(held)
    assert states(written, first) == [RunState.HELD]

    second = written.pull(7, fork=True, wide=208.0)
    late = written.comment(7, f"/kernelwatch approve {first}")
    assert f"{first} is not the head, which is {second}" in written.answer(late)
    assert written.reactions(late) == ["confused"]
    assert states(written, second) == [RunState.HELD]

    approved = written.comment(7, f"/kernelwatch approve {second.upper()}")
    assert states(written, second) == [RunState.DONE]
    assert written.reactions(approved) == ["eyes"]
    [run] = written.runs(second)
    assert audited("run.approve") == [("person ada", f"run {run.id}")]
    written.comment(7, "/kernelwatch rerun")
    assert states(written, second) == [RunState.DONE, RunState.DONE], "the approval is of the commit"

    third = written.pull(7, fork=True, wide=209.0)
    assert states(written, third) == [RunState.HELD], "a new push is held again"
    assert "nothing is held" not in written.answer(written.comment(7, "/kernelwatch rerun"))
    assert states(written, third) == [RunState.HELD]


def test_who_may_not_write_changes_nothing(story: Story, idle: pytest.MonkeyPatch) -> None:  # noqa: F811
    head = story.pull(7, action="opened", fork=True, wide=204.0)
    commands = ("run", "rerun", "stop", f"approve {head}")
    asked = [("none", commands[:2]), ("read", commands[2:]), ("triage", commands)]
    for role, command in ((role, command) for role, several in asked for command in several):
        story.permit("mallory", role)
        comment = story.comment(7, f"/kernelwatch {command}", by="mallory")
        assert f"needs `write` permission on `{story.repo}`; you have `{role}`" in story.answer(comment)
        assert story.reactions(comment) == ["confused"]
    assert states(story, head) == [RunState.HELD]


def test_strangers_get_a_few_answers_a_day_and_then_reactions_only(written: Story) -> None:
    for number in (7, 8):
        written.pull(number, action="opened", wide=200.0 + number)

    def answered(by: str, number: int = 7, command: str = "nonsense") -> bool:
        before = len(written.answers())
        comment = written.comment(number, f"/kernelwatch {command}", by=by)
        assert written.reactions(comment) == ["+1" if command == "help" else "confused"]
        return len(written.answers()) > before

    assert [answered(f"mallory-{n % 2}", command="help" if n == 1 else "nonsense") for n in range(7)] == [True] * 5 + [
        False
    ] * 2
    *others, last = written.answers()
    assert "This is the last answer of today" in last
    assert not [one for one in others if "This is the last answer" in one]
    assert answered("ada"), "who may command something is always answered"
    assert answered("mallory-1", number=8), "each pull request counts by itself"

    silent = written.written(7, "/kernelwatch nonsense", by="mallory-1")
    for guid in ("once", "twice"):
        written.deliver(*written.comment_event(silent), guid=guid)
    assert written.reactions(silent) == ["confused"]

    with transaction() as session:
        session.execute(update(OutboxMessage).values(created_at=OutboxMessage.created_at - 86_400.0))
    assert answered("mallory-1"), "a day later"


def test_a_permission_that_was_lost_since_the_comment_counts(written: Story) -> None:
    head = written.pull(7, action="opened", fork=True, wide=211.0)
    comment = written.written(7, f"/kernelwatch approve {head}")
    written.arrive(*written.comment_event(comment))
    written.permit("ada", "read")
    written.settle()
    assert states(written, head) == [RunState.HELD]
    assert "needs `write` permission" in written.answer(comment)


def test_bots_and_kernelwatch_itself_command_nothing(written: Story) -> None:
    head = written.pull(7, action="opened", wide=205.0)
    for by, kind in (("kernelwatch-bot", "User"), ("dependabot[bot]", "Bot"), ("kernelwatch[bot]", "Bot")):
        written.permit(by, "admin")
        comment = written.comment(7, "/kernelwatch rerun", by=by, kind=kind)
        assert written.reactions(comment) == []
    assert len(written.runs(head)) == 1
    assert written.answers() == []


def test_a_command_is_carried_out_once_however_often_it_is_delivered(written: Story) -> None:
    head = written.pull(7, action="opened", wide=214.0)
    comment = written.comment(7, "/kernelwatch rerun")
    event = written.comment_event(comment)
    written.deliver(*event, guid=f"delivery-{written.last_delivery}")
    written.deliver(*event, guid="another")
    for action in written.changes_of_comments:
        written.deliver(*written.comment_event(comment, action))
    assert len(written.runs(head)) == 2
    assert len(written.answers()) == 1


def test_an_answer_that_was_posted_unheard_is_not_posted_twice(written: Story) -> None:
    written.pull(7, action="opened", wide=215.0)
    written.fail_next("502-after-commit", "comments")
    written.fail_next("502-after-commit", "reactions")
    comment = written.comment(7, "/kernelwatch rerun")
    written.messages_are_due()
    written.settle()
    assert "is the next in the queue" in written.answer(comment)
    assert len(written.answers()) == 1
    assert written.reactions(comment) == ["eyes"]


def test_a_deleted_comment_commands_nothing(written: Story) -> None:
    head = written.pull(7, action="opened", wide=216.0)
    comment = written.written(7, "/kernelwatch rerun")
    written.arrive(*written.comment_event(comment))
    written.lose_comment(comment)
    written.settle()
    assert len(written.runs(head)) == 1
    assert written.answers() == []


def test_a_comment_that_is_deleted_after_its_command_is_answered_all_the_same(
    written: Story, idle: pytest.MonkeyPatch
) -> None:
    head = written.pull(7, action="opened", wide=217.0)
    comment = written.written(7, "/kernelwatch stop")
    written.arrive(*written.comment_event(comment))
    deliveries.process_due()
    written.lose_comment(comment)
    written.settle()
    assert states(written, head) == [RunState.CANCELLED]
    assert "cancelled" in written.answer(comment)


def test_a_command_holds_for_the_head_that_the_forge_names_and_says_that_it_moved(
    written: Story, idle: pytest.MonkeyPatch
) -> None:
    old = written.pull(7, action="opened", wide=218.0)
    comment = written.written(7, "/kernelwatch run")
    written.arrive(*written.comment_event(comment))
    new = written.force_push(7)  # the delivery of it is still on its way
    written.settle()
    assert (states(written, old), states(written, new)) == ([RunState.SUPERSEDED], [RunState.QUEUED])
    said = written.answer(comment)
    assert f"at `{new[:10]}`" in said
    assert f"the head was `{old[:10]}` when the comment arrived, and is `{new[:10]}` now" in said

    written.head(7, new)
    assert len(written.runs(new)) == 1, "the delivery that comes late adds nothing"


def test_a_comment_that_arrives_before_its_pull_request_records_the_head(written: Story) -> None:
    arrive = written.deliver
    late = list[tuple[str, dict[str, object]]]()
    written.deliver = lambda event, body, **_: late.append((event, body)) or 202
    head = written.pull(7, action="opened", wide=300.0)
    written.deliver = arrive
    comment = written.comment(7, "/kernelwatch run")
    assert f"at `{head[:10]}` is the next in the queue" in written.answer(comment)
    for event, body in late:
        written.deliver(event, body)
    assert states(written, head) == [RunState.DONE]


def test_comments_on_two_pull_requests_that_arrive_together_are_kept_apart(
    written: Story, idle: pytest.MonkeyPatch
) -> None:
    heads = {number: written.pull(number, action="opened", wide=200.0 + number) for number in (7, 8)}
    asked = {7: "/kernelwatch stop", 8: "/kernelwatch run quick"}
    comments = {number: written.written(number, text) for number, text in asked.items()}
    for comment in comments.values():
        written.arrive(*written.comment_event(comment))
    written.settle()
    assert states(written, heads[7]) == [RunState.CANCELLED]
    assert states(written, heads[8]) == [RunState.QUEUED, RunState.QUEUED]
    assert "cancelled" in written.answer(comments[7])
    assert "of `quick`" in written.answer(comments[8])


def test_a_rate_limit_delays_the_answer_and_posts_it_once(written: Story) -> None:
    written.pull(7, action="opened", wide=300.0)
    written.fail_next(written.limited, "comments")
    comment = written.comment(7, "/kernelwatch rerun")
    assert written.answers() == []
    written.messages_are_due()
    assert written.answers() == [], "the forge said when it takes requests again"
    written.limits_are_over()
    written.settle()
    assert "is the next in the queue" in written.answer(comment)


def test_a_force_push_while_a_run_is_measured(written: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    work = control.work
    old = new = ""

    def pushed_meanwhile(device: str) -> int:
        nonlocal new
        if not new:
            lease = control._claim(device)
            assert lease is not None
            new = written.force_push(7)
            control.session.measure(lease, control.here())
        return work(device)

    monkeypatch.setattr(control, "work", pushed_meanwhile)
    old = written.pull(7, action="opened", wide=219.0)
    comment = written.comment(7, "/kernelwatch run")
    assert states(written, old) == [RunState.DONE]
    assert states(written, new) == [RunState.DONE]
    assert f"at `{new[:10]}`" in written.answer(comment)


def test_a_forge_that_does_not_answer_delays_a_command_and_loses_none(written: Story) -> None:
    head = written.pull(7, action="opened", wide=220.0)
    written.fail_next("502", "permission", method="GET")
    comment = written.comment(7, "/kernelwatch rerun")
    assert written.answers() == []
    written.deliveries_are_due()
    written.settle()
    assert "is the next in the queue" in written.answer(comment)
    assert len(written.runs(head)) == 2


def test_a_command_that_cannot_be_carried_out_is_answered_in_the_end(written: Story) -> None:
    written.pull(7, action="opened", wide=221.0)
    for _ in range(deliveries.GIVEN_UP):
        written.fail_next("502", "permission", method="GET")
    comment = written.comment(7, "/kernelwatch rerun")
    for _ in range(deliveries.GIVEN_UP):
        written.deliveries_are_due()
        written.settle()
    assert f"It could not be done: {NAMES[ForgeKind(written.on)]} answered 502" in written.answer(comment)
    assert written.reactions(comment) == ["confused"]
    with reading() as session:
        last = session.scalars(select(Delivery).order_by(Delivery.id.desc()).limit(1)).one()
    assert last.processed_at is not None


def test_a_closed_pull_request_is_not_measured(written: Story) -> None:
    head = written.pull(7, action="opened", wide=222.0)
    written.close(7)
    comment = written.comment(7, "/kernelwatch rerun")
    assert f"{pull_name(ForgeKind(written.on), 7).capitalize()} is closed; reopen it first" in written.answer(comment)
    assert len(written.runs(head)) == 1


def test_a_person_who_is_kept_out_here_commands_nothing(written: Story) -> None:
    written.disable("ada")
    head = written.pull(7, action="opened", wide=223.0)
    comment = written.comment(7, "/kernelwatch rerun")
    assert "The account ada is disabled here" in written.answer(comment)
    assert len(written.runs(head)) == 1


def test_a_command_is_for_every_target_or_for_the_named_one(written: Story, idle: pytest.MonkeyPatch) -> None:
    written.watch_again("other")
    head = written.pull(7, action="opened", wide=224.0)
    one = written.comment(7, "/kernelwatch stop --target other")
    assert "**other**: cancelled" in written.answer(one)
    assert states(written, head) == [RunState.QUEUED, RunState.CANCELLED]
    both = written.comment(7, "/kernelwatch run")
    assert "**norms**: [run" in written.answer(both)
    assert "**other**: [run" in written.answer(both)
    assert states(written, head) == [RunState.QUEUED, RunState.QUEUED]


def test_bisect_searches_the_commits_of_the_pull_request(written: Story) -> None:
    fast = written.pull(7, action="opened", wide=201.0)
    alone = written.comment(7, "/kernelwatch bisect")
    assert "found no case slower than its base; there is nothing to search" in written.answer(alone)
    slow = written.pull(7, wide=300.0)
    head = written.pull(7, fast=101.0)

    comment = written.comment(7, "/kernelwatch bisect")

    base = written.git("rev-parse", "main")
    assert f"on `cpu` searches `{base[:10]}..{head[:10]}` for the commit that made 1 case slower" in written.answer(
        comment
    )
    assert written.reactions(comment) == ["eyes"]
    with reading() as session:
        search = session.scalars(select(Bisection)).one()
    assert (search.cases, search.asked_by, search.line) == ([WIDE], "ada", [base, fast, slow, head])
    assert audited("bisection.start") == [("person ada", f"bisection {search.id}")]


@needs.skip_unless(not MEASURED_ANYWHERE, "bubblewrap")
def test_a_bisection_of_one_commit_or_of_a_fork_is_refused(written: Story) -> None:
    written.pull(7, action="opened", wide=300.0)
    assert "is the only commit after its base" in written.answer(written.comment(7, "/kernelwatch bisect"))
    head = written.pull(8, action="opened", fork=True, wide=300.0)
    assert "no device has measured the head yet" in written.answer(written.comment(8, "/kernelwatch bisect"))
    written.comment(8, f"/kernelwatch approve {head}")
    assert "is the only commit after its base" in written.answer(written.comment(8, "/kernelwatch bisect"))


def regressions() -> list[tuple[RegressionState, str | None, list[str]]]:
    """State and reason of the regressions, each with who changed it."""
    with reading() as session:
        events = select(RegressionEvent.who).order_by(RegressionEvent.id)
        return [
            (row.state, row.reason, list(session.scalars(events.where(RegressionEvent.regression_id == row.id))))
            for row in session.scalars(select(RegressionRow))
        ]


@pytest.mark.every_run
def test_an_accepted_head_passes_and_opens_no_alarm_when_it_is_merged(written: Story) -> None:
    written.permit("grace", "triage")
    head = written.pull(7, action="opened", wide=300.0)
    assert written.status(head).startswith("success: ")

    comment = written.comment(7, "/kernelwatch accept exact rounding costs this", by="grace")

    assert f"accepted 1 slower case at `{head[:10]}`. A new push voids this." in written.answer(comment)
    assert written.reactions(comment) == ["+1"]
    assert written.status(head) == "success: Accepted by grace: exact rounding costs this"
    report, *_ = written.said(7)
    assert "**Accepted** by grace: exact rounding costs this" in report
    assert audited("pull.accept") == [("person grace", "pull request 7")]

    written.merge(7)
    assert regressions() == [
        (RegressionState.ACKNOWLEDGED, "exact rounding costs this", ["kernelwatch", "grace"]),
    ]


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ("crash", "success: 1 of 2 cases fails"),
        ("invalid: y is wrong", "failure: 1 of 2 cases gives a wrong result"),
    ],
)
def test_an_accepted_head_is_judged_by_another_case_that_failed(written: Story, other: str, found: str) -> None:
    head = written.pull(7, action="opened", wide=300.0, fast=other)
    assert "accepted 1 slower case" in written.answer(written.comment(7, "/kernelwatch accept exact rounding"))
    assert written.status(head) == found


def test_all_commits_of_an_accepted_head_that_is_fast_forwarded_are_acknowledged(written: Story) -> None:
    written.pull(7, action="opened", wide=250.0)
    head = written.pull(7, wide=300.0)
    written.comment(7, "/kernelwatch accept exact rounding")
    before = written.git("rev-parse", "main")
    written.git("merge", "--quiet", "--ff-only", "pull-7")
    merged = written.merge_event(7, before, head, head)
    written.deliver(*written.push_event(before, head))
    written.deliver(*merged)
    assert [(state, why) for state, why, _ in regressions()] == [(RegressionState.ACKNOWLEDGED, "exact rounding")] * 2


@pytest.mark.parametrize("first_event", ["push", "merge"])
def test_only_the_commits_of_an_accepted_head_are_acknowledged_after_a_rebase(written: Story, first_event: str) -> None:
    written.pull(7, action="opened", wide=250.0)
    head = written.pull(7, wide=300.0)
    written.comment(7, "/kernelwatch accept exact rounding")
    before = written.push("slower by somebody else", wide=230.0)
    for slower in (280.0, 340.0):
        last = written.commit("pull request 7", wide=slower)
    events = [written.push_event(before, last), written.merge_event(7, before, head, last)]
    for event in events if first_event == "push" else reversed(events):
        written.deliver(*event)
    found = [state for state, _, _ in regressions()]
    assert found == [RegressionState.OPEN, RegressionState.ACKNOWLEDGED, RegressionState.ACKNOWLEDGED]


def retarget(story: Story, number: int, sha: str, branch: str) -> None:  # noqa: F811
    """Somebody chooses another base branch for a pull request."""
    event, body = story.head_event(number, sha, "synchronize")
    if story.on == "gitlab":
        body["object_attributes"].pop("oldrev")
        body["object_attributes"] |= {"target_branch": branch}
        body |= {"changes": {"target_branch": {"previous": "main", "current": branch}}}
    else:
        body["pull_request"]["base"] |= {"ref": branch, "sha": story.git("rev-parse", branch)}
        body |= {"action": "edited", "changes": {"base": {"ref": {"from": "main"}, "sha": {"from": sha}}}}
    story.deliver(event, body)


def test_another_base_is_measured_anew_and_voids_what_was_accepted(
    written: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = written.git("rev-parse", "main")
    below = written.pull(7, action="opened", wide=300.0)
    head = written.pull(7, wide=301.0)
    written.comment(7, "/kernelwatch accept exact rounding")
    written.git("branch", "next", below)

    retarget(written, 7, head, "next")
    assert "Accepted" not in written.status(head)
    assert written.status(head).startswith("success: ")

    with monkeypatch.context() as busy:
        busy.setattr(control, "work", lambda device: 0)
        retarget(written, 7, head, "main")
    assert written.status(head).startswith("pending: Queued")
    assert [run.baseline for run in written.runs(head)] == [main, below, main]
    written.settle()
    assert written.status(head).startswith("success: 1 ")
    assert states(written, head) == [RunState.DONE] * 3


def test_a_new_push_voids_what_was_accepted(written: Story) -> None:
    written.pull(7, action="opened", wide=300.0)
    written.comment(7, "/kernelwatch accept exact rounding")
    slower = written.pull(7, wide=400.0)
    assert written.status(slower).startswith("success: ")
    written.merge(7)
    assert [state for state, _, _ in regressions()] == [RegressionState.OPEN]

    late = written.comment(7, "/kernelwatch accept exact rounding, all of it")
    assert "its regressions on the mainline are acknowledged" in written.answer(late)
    assert [(state, why) for state, why, _ in regressions()] == [
        (RegressionState.ACKNOWLEDGED, "exact rounding, all of it")
    ]


def test_only_slower_cases_can_be_accepted_and_only_with_a_reason(written: Story) -> None:
    head = written.pull(7, action="opened", wide=201.0)
    assert "Write \\`/kernelwatch accept REASON\\`" in written.answer(written.comment(7, "/kernelwatch accept"))
    nothing = written.comment(7, "/kernelwatch accept it is fine")
    assert "there is nothing to accept" in written.answer(nothing)
    assert written.reactions(nothing) == ["confused"]
    wrong = written.pull(7, wide=300.0, fast="invalid: y is wrong")
    written.comment(7, "/kernelwatch accept it is fine")
    assert "Accepted" not in written.status(wrong), "a wrong result is not accepted with it"
    assert head != wrong
