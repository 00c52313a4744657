"""What needs a person, in words and in order; what is fine; what changed."""

from dataclasses import replace
from typing import Any

import pytest

from service.db.models import Target, Worker
from service.domain.health.overview import DeviceResult, StripRevision
from service.domain.states import FoundBy, OutboxState, RegressionState, RunState, TargetKind
from service.domain.text import is_recent
from service.reports.health.facts import (
    DeviceQueue,
    DriftedCases,
    FailedHead,
    GivenUp,
    HealthFacts,
    HeldRuns,
    OpenIncident,
    Queues,
    RecentRun,
    StackChange,
    TargetLately,
    UnsentMessages,
    WorkerState,
    WorstCase,
)
from service.reports.health.lately import fine, since_yesterday, target_lines
from service.reports.health.needs import MAX_NEEDS, Disk, Need, headline, needs, summary

NOW = 1_790_000_000.0
ROOM = Disk(free=500 << 30, total=1000 << 30)


def commit(of: Target, sha: str) -> str | None:
    return f"https://forge.example/{of.forge}/commit/{sha}" if of.forge else None


def target(**columns: Any) -> TargetLately:
    usual: dict[str, Any] = {"id": 1, "name": "norms", "kind": TargetKind.GIT, "forge": "example/norms", "poll_at": NOW}
    usual |= {"poll_failures": 0, "poll_error": None, "paused_at": None, "forge_paused_until": 0.0, "recipe_id": 1}
    return TargetLately(Target(**usual | {"created_at": NOW - 9e6, "forge_error": None} | columns))


def facts(**known: Any) -> HealthFacts:
    quiet = HealthFacts(
        now=NOW,
        since=NOW - 86_400.0,
        targets=[target()],
        incidents=[],
        failed=[],
        given_up=None,
        unsent=[],
        oldest_delivery=None,
        quarantined=(0, 0),
        queues=Queues((), ()),
        nights=[],
        fixed=[],
        drifted=[],
        stacks=[],
    )
    return replace(quiet, **known)


def incident(**known: Any) -> OpenIncident:
    one = OpenIncident(target_id=1, revision_id=5, run_id=None, devices={"h200"}, found_by={FoundBy.PAIR})
    one.states[RegressionState.OPEN] = 34
    one.low, one.high, one.opened_at, one.sha = 1.03, 1.24, NOW - 1300.0, "c70e75923b" * 4
    one.worst = WorstCase(17, "rmsnorm.fwd.32768x8192.bf16", 1.24, "num_warps 8 → 16")
    for name, value in known.items():
        setattr(one, name, value)
    return one


def found(known: HealthFacts, disk: Disk = ROOM) -> tuple[Need, ...]:
    return needs(known, disk, commit).shown


def worker(**columns: Any) -> WorkerState:
    usual: dict[str, Any] = {"name": "box/h100-0", "device": "h100", "seen_at": NOW, "sandbox": None, "paused_at": None}
    row = Worker(**usual | columns)
    return WorkerState(row, bool(is_recent(row.seen_at, NOW, 60.0)), None)


def queue(*workers: WorkerState, **known: Any) -> Queues:
    usual: dict[str, Any] = {"queued": 41, "oldest_at": NOW - 7200.0, "untrusted": 41, "workers": list(workers)}
    return Queues((DeviceQueue("h100", **usual | known),), ())


def test_an_incident_is_one_line_with_its_size_its_cause_and_nobody() -> None:
    [line] = found(facts(incidents=[incident()]))
    assert line.what == "34 regressions"
    assert line.detail == ("norms on h200: 3.0 to 24.0 % slower; num_warps 8 → 16; worst rmsnorm.fwd.32768x8192.bf16")
    assert (line.tone, line.owner, line.since) == ("regression", None, NOW - 1300.0)
    assert (line.act.text, line.act.href) == ("Triage", "/regressions/17")
    assert line.source is not None
    assert line.source.href == f"https://forge.example/example/norms/commit/{'c70e75923b' * 4}"


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"assignees": {"ada"}, "assigned": 34}, "ada"),
        ({"assignees": {"ada", "bob"}, "assigned": 34}, "ada and bob"),
        ({"assignees": {"ada"}, "assigned": 30}, "ada, 4 open"),
        ({}, None),
    ],
)
def test_an_incident_is_somebodys_or_nobodys(known: dict[str, Any], expected: str | None) -> None:
    assert found(facts(incidents=[incident(**known)]))[0].owner == expected


def test_an_accepted_incident_needs_nobody() -> None:
    accepted = incident()
    accepted.states.clear()
    accepted.states[RegressionState.ACKNOWLEDGED] = 3
    assert found(facts(incidents=[accepted])) == ()
    known = facts(incidents=[accepted])
    assert "3 regressions accepted" in fine(known, target_lines(known), ROOM)


def test_drift_overdue_and_bisections_are_said() -> None:
    drift = incident(found_by={FoundBy.PINNED}, due_at=NOW - 86_400.0 * 3)
    drift.states[RegressionState.BISECTING] = 2
    [line] = found(facts(incidents=[drift]))
    assert (line.tone, line.what) == ("drift", "36 regressions, in small steps")
    assert line.detail.startswith("overdue for 3 days; norms on h200")
    assert line.detail.endswith("a bisection is running")


FAILED = FailedHead(9, "norms", "h200", "abc", "Ada", "`make` ended with 1", NOW - 60, in_build=True)
LATE = UnsentMessages(1, OutboxState.WAITING, 3, NOW - 900, "502 from the forge", 12)


@pytest.mark.parametrize(
    ("known", "what", "detail"),
    [
        ({"failed": [FAILED]}, "Build failed", "norms on h200: `make` ended with 1"),
        ({"failed": [replace(FAILED, in_build=False)]}, "Run failed", "norms on h200: `make` ended with 1"),
        ({"given_up": GivenUp(2, 8, NOW)}, "2 runs of pull requests given up", "through no fault of a build"),
        (
            {"queues": Queues((), (HeldRuns("norms", 3, 4, NOW - 600, 2),))},
            "3 runs wait for approval",
            "norms, of 2 pull requests",
        ),
        ({"queues": queue()}, "Nobody takes runs of h100", "41 runs wait, the oldest for 2.0 h: no worker of it was"),
        (
            {"queues": queue(worker(seen_at=NOW - 10_800))},
            "Nobody takes runs of h100",
            "box/h100-0 was last heard 3.0 h ago",
        ),
        (
            {"queues": queue(worker(seen_at=NOW + 10_800))},
            "Nobody takes runs of h100",
            "box/h100-0 has not been heard since the clock of the database was set back by 3.0 h or more",
        ),
        (
            {"queues": queue(worker(), worker(name="box/h100-1", seen_at=NOW + 10_800))},
            "Worker silent",
            "box/h100-1 (h100) has not been heard since the clock of the database was set back by 3.0 h or more",
        ),
        (
            {"queues": queue(worker(paused_at=NOW, paused_by="ada"))},
            "Nobody takes runs of h100",
            "its workers are paused by ada",
        ),
        (
            {"queues": queue(worker(sandbox="bubblewrap is not installed"))},
            "Nobody takes runs of h100",
            "the sandbox does not work there: bubblewrap is not installed",
        ),
        (
            {"queues": queue(worker(), worker(name="box/h100-1", seen_at=NOW - 10_800))},
            "Worker silent",
            "box/h100-1 (h100) was last heard 3.0 h ago",
        ),
        ({"targets": [target(poll_at=NOW - 900)]}, "Control is silent", "no target is polled"),
        ({"oldest_delivery": NOW - 900}, "Webhooks wait", "control polls, but does not process them"),
        ({"unsent": [LATE]}, "3 messages not sent for minutes", "norms: 502 from the forge"),
        (
            {"unsent": [replace(LATE, state=OutboxState.FAILED, count=1)]},
            "1 message that could not be sent",
            "norms: 502 from the forge",
        ),
        (
            {"targets": [target(forge_paused_until=NOW + 600, forge_error="401: Bad credentials")]},
            "Comments are paused",
            "norms, for 10 min more: 401: Bad credentials",
        ),
        (
            {"targets": [target(poll_failures=17, poll_error="no such host")]},
            "Not polled",
            "norms: failed 17 times in a row: no such host",
        ),
        ({"targets": [target(recipe_id=None)]}, "No recipe", "norms: nothing is measured without one"),
    ],
)
def test_each_kind_of_trouble_is_one_line(known: dict[str, Any], what: str, detail: str) -> None:
    [line] = found(facts(**known))
    assert line.what == what
    assert detail in line.detail
    assert line.act.href.startswith("/")


@pytest.mark.parametrize(
    "known",
    [
        {},
        {"queues": queue(worker())},
        {"queues": queue(worker(sandbox="no"), untrusted=0)},  # all that waits may run without one
        {"queues": queue(worker(paused_at=NOW), queued=0)},
        {"queues": queue(worker(), worker(name="old", seen_at=NOW - 90 * 86_400.0))},  # it has left the fleet
        {"targets": [target(poll_at=NOW - 900, paused_at=NOW)]},
        {"targets": [target(poll_at=NOW - 900), target(id=2, name="other", poll_at=NOW + 20)]},
        {"targets": [target(poll_failures=1, poll_error="once")]},
        {"targets": [target(forge=None, forge_paused_until=NOW + 600)]},
        {"targets": []},
    ],
)
def test_what_is_fine_needs_nobody(known: dict[str, Any]) -> None:
    assert found(facts(**known)) == ()


def test_a_paused_forge_is_the_reason_and_not_its_messages() -> None:
    known = facts(targets=[target(forge_paused_until=NOW + 600)], unsent=[LATE])
    assert [one.what for one in found(known)] == ["Comments are paused"]


def test_a_full_disk_needs_the_operator() -> None:
    [line] = found(facts(), Disk(free=1 << 30, total=100 << 30))
    assert (line.what, line.detail) == ("Disk nearly full", "1.07 GB of 107 GB are left in the state folder")


def test_wrong_results_of_the_newest_revision_need_somebody() -> None:
    wrong = RecentRun(7, "h200", "abc", RunState.DONE.value, NOW - 5, None, DeviceResult(done=True), 6, broken=2)
    [line] = found(facts(targets=[replace(target(), runs=(wrong,))]))
    assert (line.what, line.act.href) == ("2 wrong or failed cases", "/runs/7")


def test_the_most_severe_comes_first_and_the_rest_is_folded() -> None:
    many = [incident(revision_id=n, worst=WorstCase(n, "rmsnorm.fwd.1x1.bf16", 1.1, None)) for n in range(9)]
    trouble = needs(facts(incidents=many, failed=[FAILED], oldest_delivery=NOW - 900), ROOM, commit)
    assert [one.what for one in trouble.shown] == ["34 regressions"] * 6 + ["Build failed", "Webhooks wait"]
    assert (len(trouble.shown), len(trouble.rest), trouble.count, trouble.unassigned) == (MAX_NEEDS, 3, 11, 9)
    keys = [one.key for one in (*trouble.shown, *trouble.rest)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"targets": []}, "No targets yet"),
        ({}, "1 target, and nothing needs attention"),
        ({"failed": [FAILED]}, "1 item needs attention"),
        ({"failed": [FAILED], "incidents": [incident()]}, "2 items need attention"),
    ],
)
def test_the_headline_is_the_verdict(known: dict[str, Any], expected: str) -> None:
    assert headline(needs(facts(**known), ROOM, commit), facts(**known)) == expected


def test_the_summary_says_how_much_is_nobodys() -> None:
    known = facts(incidents=[incident()])
    assert (
        summary(needs(known, ROOM, commit), known)
        == "1 unassigned · first: 34 regressions, norms on h200, 24.0 % slower"
    )


def test_a_target_says_the_worst_of_its_state() -> None:
    assert [line.state for line in target_lines(facts())] == ["not measured"]
    assert [line.state for line in target_lines(facts(incidents=[incident()]))] == ["34 slower"]
    revisions = tuple(
        StripRevision(n, f"c{n}", 0.0, {"h200": DeviceResult(done=True, slower=n == 1)}) for n in range(3)
    )
    [line] = target_lines(facts(targets=[replace(target(), revisions=revisions)]))
    assert line.marks_in_words == "Last 3 revisions, newest last: 1 slower, 2 steady"


def test_news_are_the_last_first() -> None:
    runs = (
        RecentRun(7, "h200", "a" * 40, RunState.DONE.value, NOW - 50, None, DeviceResult(done=True, faster=4)),
        RecentRun(8, "h200", "b" * 40, RunState.DONE.value, NOW - 9e5, None, DeviceResult(done=True, faster=4)),
    )
    release = (StripRevision(0, "0.8.6", NOW - 70), StripRevision(0, "0.8.5", NOW - 9e5))
    known = facts(
        targets=[
            replace(target(), runs=runs),
            replace(target(id=2, name="liger", kind=TargetKind.PACKAGE), revisions=release),
        ],
        incidents=[incident(opened_at=NOW - 60)],
        drifted=[DriftedCases(1, "h200", 3, NOW - 90)],
        stacks=[StackChange("h100", ("driver 580 → 595", "torch 2.12 → 2.13", "quack 1 → 2"), NOW - 80, 3)],
    )
    assert [one.text for one in since_yesterday(known)] == [
        "norms: 4 cases faster on h200 with aaaaaaaaaa",
        "norms: 34 cases slower on h200, since c70e75923b",
        "liger: release 0.8.6",
        "h100: driver 580 → 595, torch 2.12 → 2.13 and 1 more",
        "norms: 3 configurations on h200 changed without a commit",
    ]
