"""What needs a person, one line each: regressions first, then runs, then the service itself.  Pure."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from service.db.models import Target
from service.domain.metrics import metric_of, percent
from service.domain.states import FoundBy, OutboxState, RegressionState
from service.domain.stats import counts
from service.domain.text import counted, in_bytes, lasted, listed, one_line, short
from service.reports.health.facts import (
    DeviceQueue,
    FailedHead,
    GivenUp,
    HealthFacts,
    HeldRuns,
    OpenIncident,
    TargetLately,
    WorkerState,
)

MAX_NEEDS = 8  # lines that are shown at once
MAX_INCIDENTS = 4  # of them
MAX_CAUSE = 1000  # characters: the page cuts what does not fit, and shows the rest where the pointer rests
SILENT_S = 300.0  # control polls every target once a minute
RETIRED_S = 14 * 86_400.0  # a worker that was not seen for so long has left the fleet
MIN_POLL_FAILURES = 3
MIN_FREE = 2 << 30  # bytes
OPERATOR = "operator"
WORKERS = "/workers"
CommitAddress = Callable[[Target, str], str | None]


@dataclass(frozen=True)
class Link:
    """Where something is shown."""

    text: str
    href: str


@dataclass(frozen=True)
class Need:
    """Something that a person must look at.  `tone` is its kind of trouble, which has a mark and a colour."""

    tone: str
    what: str
    detail: str
    act: Link
    since: float | None  # None where the database does not know
    owner: str | None  # None: nobody is assigned
    source: Link | None = None
    of: str = ""  # target or device, for a summary

    @property
    def key(self) -> str:
        """An id of its element that stays while the line does."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.tone} {self.act.href} {self.of}".lower()).strip("-")


@dataclass(frozen=True)
class Disk:
    """The disk of the state folder."""

    free: int
    total: int

    @property
    def used(self) -> float:
        return 1 - self.free / self.total


@dataclass(frozen=True)
class Needs:
    """The lines in order: those that are shown, and the rest."""

    shown: tuple[Need, ...]
    rest: tuple[Need, ...]
    unassigned: int

    @property
    def count(self) -> int:
        return len(self.shown) + len(self.rest)


def needs(facts: HealthFacts, disk: Disk, commit: CommitAddress) -> Needs:
    """All that needs a person; `commit` is the address of a commit at the forge of its target, if it has one.

    Where there is too much for one screen, further incidents give way to what else there is.  The sample needs nobody.
    """
    facts = facts.watched
    names = {one.row.id: one.row for one in facts.targets}
    incidents = [_incident(one, names[one.target_id], commit, facts.now) for one in facts.incidents if one.count]
    others = [
        *_wrong(facts.targets),
        *_failed(facts.failed, facts.given_up),
        *_held(facts.queues.held),
        *_workers(facts),
        *_control(facts),
        *_outbox(facts),
        *_forge(facts),
        *_disk(disk),
        *_polls(facts),
        *_without_recipe(facts),
    ]
    every = [*incidents, *others]
    unassigned = sum(one.owner is None for one in every)
    if len(every) <= MAX_NEEDS:
        return Needs(tuple(every), (), unassigned)
    first = incidents[: max(MAX_INCIDENTS, MAX_NEEDS - len(others))]
    shown = [*first, *others[: MAX_NEEDS - len(first)]]
    rest = [*incidents[len(first) :], *others[MAX_NEEDS - len(first) :]]
    return Needs(tuple(shown), tuple(rest), unassigned)


def of_target(one: TargetLately, failed: Sequence[FailedHead], held: Sequence[HeldRuns]) -> list[Need]:
    """What a person must handle in one target, except its regressions."""
    return [*_wrong([one]), *_failed(failed, None), *_held(held)]


def _incident(one: OpenIncident, target: Target, commit: CommitAddress, now: float) -> Need:
    name = target.name
    drift = one.found_by == {FoundBy.PINNED}
    noun = f"regression{'s' * (one.count != 1)}"
    what = f"{one.count} {noun}, in small steps" if drift else f"{one.count} {noun}"
    case = one.worst.case if one.worst else ""
    metric = metric_of(case)
    most = percent(one.high, metric)
    if one.count > 1 and f"{one.low:.3f}" != f"{one.high:.3f}":
        most = f"{counts.difference(one.low) if metric.counts else f'{(one.low - 1) * 100:.1f}'} to {most}"
    place = f"{name} on {listed(sorted(one.devices))}"
    parts = [f"{place}: {most}"]
    if one.due_at is not None and one.due_at < now:
        parts.insert(0, f"overdue for {lasted(now - one.due_at)}")
    if one.worst and one.worst.cause:
        parts.append(one_line(one.worst.cause, MAX_CAUSE))
    if case:
        parts.append(f"worst {case}" if one.count > 1 else case)
    if one.states[RegressionState.BISECTING]:
        parts.append("a bisection is running")
    if one.accepted:
        parts.append(f"{one.accepted} more accepted")
    number = one.worst.regression_id if one.worst else 0
    owner = " and ".join(sorted(one.assignees)) if one.assignees else None
    whole = one.count > 1 and len(one.incidents) == 1
    page = f"/incidents/{min(one.incidents)}" if whole else f"/regressions/{number}"
    return Need(
        tone="drift" if drift else "regression",
        what=what,
        detail="; ".join(parts),
        act=Link("Open" if owner else "Triage", page),
        since=one.opened_at,
        owner=owner if owner is None or one.assigned >= one.count else f"{owner}, {one.count - one.assigned} open",
        source=Link(short(one.sha), commit(target, one.sha) or _target(name)) if one.sha else None,
        of=f"{place}, {percent(one.high, metric)}",
    )


def _wrong(targets: Iterable[TargetLately]) -> Iterator[Need]:
    """Wrong and failed cases of the newest revision."""
    for one in targets:
        for run in one.newest.values():
            if run.broken:
                noun = f"wrong or failed case{'s' * (run.broken != 1)}"
                yield Need(
                    tone="invalid",
                    what=f"{run.broken} {noun}",
                    detail=f"{one.row.name} on {run.device}, at its newest revision",
                    act=Link("Open", f"/runs/{run.run_id}"),
                    since=run.at,
                    owner="maintainer",
                    source=Link(short(run.sha), f"/runs/{run.run_id}"),
                    of=f"{one.row.name} on {run.device}",
                )


def _failed(failed: Sequence[FailedHead], given_up: GivenUp | None) -> Iterator[Need]:
    for run in failed:
        yield Need(
            tone="failed",
            what="Build failed" if run.in_build else "Run failed",
            detail=f"{run.target} on {run.device}: {one_line(run.reason) or 'no reason is known'}",
            act=Link("Log" if run.in_build else "Open", f"/runs/{run.run_id}"),
            since=run.finished_at,
            owner=run.author or None,
            source=Link(short(run.sha), f"/runs/{run.run_id}"),
            of=f"{run.target} on {run.device}",
        )
    if given_up is not None:
        count = given_up.count
        yield Need(
            tone="failed",
            what=f"{count} run{'s' * (count != 1)} of pull requests given up",
            detail="in the last day, and through no fault of a build",
            act=Link("Open", f"/runs/{given_up.last_run_id}"),
            since=given_up.last_at,
            owner=OPERATOR,
        )


def _held(held: Iterable[HeldRuns]) -> Iterator[Need]:
    for one in held:
        pulls = f", of {one.pulls} pull request{'s' * (one.pulls != 1)}" if one.pulls else ""
        waits = "waits" if one.count == 1 else "wait"
        yield Need(
            tone="held",
            what=f"{one.count} run{'s' * (one.count != 1)} {waits} for approval",
            detail=f"{one.target}{pulls}: code of strangers is not run before somebody has read it",
            act=Link("Review", f"/runs/{one.first_run_id}"),
            since=one.since,
            owner="maintainer",
            of=one.target,
        )


def _workers(facts: HealthFacts) -> Iterator[Need]:
    for queue in facts.queues.devices:
        silent = [one for one in queue.workers if not one.online and abs(facts.now - one.row.seen_at) < RETIRED_S]
        if queue.queued and not queue.taken:
            yield _not_taken(queue, facts.now)
        elif silent:
            first = silent[0]
            others = f" and {len(silent) - 1} more of {queue.device}" if len(silent) > 1 else f" ({queue.device})"
            yield Need(
                tone="failed",
                what="Worker silent" if len(silent) == 1 else f"{len(silent)} workers silent",
                detail=f"{one_line(first.row.name, 60)}{others} {_last_heard(first, facts.now)}",
                act=Link("Workers", WORKERS),
                since=None if first.ahead_s(facts.now) else max(one.row.seen_at for one in silent),
                owner=OPERATOR,
                of=queue.device,
            )


def _last_heard(worker: WorkerState, now: float) -> str:
    """`was last heard in run 7 3.0 h ago`.  Workers report by the clock of the database, which may be set back."""
    if ahead_s := worker.ahead_s(now):
        return f"has not been heard since the clock of the database was set back by {lasted(ahead_s)} or more"
    measured = f" in run {worker.run.run_id}" if worker.run else ""
    return f"was last heard{measured} {lasted(now - worker.row.seen_at)} ago"


def _not_taken(queue: DeviceQueue, now: float) -> Need:
    online = [one for one in queue.workers if one.online]
    if not queue.workers:
        why = "no worker of it was ever seen"
    elif not online:
        last = max(queue.workers, key=lambda one: one.row.seen_at)
        why = f"{one_line(last.row.name, 60)} {_last_heard(last, now)}"
    elif not any(one.takes_runs for one in online):
        why = f"its workers are paused by {listed(sorted({one.row.paused_by or 'somebody' for one in online}))}"
    else:
        why = f"the sandbox does not work there: {one_line(online[0].row.sandbox or '')}"
    runs = f"{queue.queued} run{'s wait' if queue.queued != 1 else ' waits'}"
    return Need(
        tone="failed",
        what=f"Nobody takes runs of {queue.device}",
        detail=f"{runs}, the oldest for {lasted(max(0.0, now - queue.oldest_at))}: {why}",
        act=Link("Workers", WORKERS),
        since=queue.oldest_at,
        owner=OPERATOR,
        of=queue.device,
    )


def control_silent_since(facts: HealthFacts) -> float | None:
    """Since when no target was polled although all were due; None while control polls, or has nothing to poll."""
    due = [one.row.poll_at for one in facts.targets if one.row.paused_at is None]
    return max(due) if due and max(due) < facts.now - SILENT_S else None


def control_polls(facts: HealthFacts) -> bool:
    """Whether a target is watched, and was polled when it was due."""
    return any(one.row.paused_at is None for one in facts.targets) and control_silent_since(facts) is None


def _control(facts: HealthFacts) -> Iterator[Need]:
    silent = control_silent_since(facts)
    if silent is not None:
        yield Need(
            tone="failed",
            what="Control is silent",
            detail="no target is polled: new commits, webhooks and comments wait. Is its process running?",
            act=Link("Workers", WORKERS),
            since=silent,
            owner=OPERATOR,
        )
    elif facts.oldest_delivery is not None:
        yield Need(
            tone="failed",
            what="Webhooks wait",
            detail="control polls, but does not process them; its log says why",
            act=Link("Workers", WORKERS),
            since=facts.oldest_delivery,
            owner=OPERATOR,
        )


def _outbox(facts: HealthFacts) -> Iterator[Need]:
    paused = {one.row.id for one in facts.targets if one.row.forge_paused_until > facts.now}
    names = {one.row.id: one.row.name for one in facts.targets}
    words = {OutboxState.WAITING: "not sent for minutes", OutboxState.FAILED: "that could not be sent"}
    for state, said in words.items():
        late = [one for one in facts.unsent if one.state == state and one.target_id not in paused]
        count = sum(one.count for one in late)
        if not count:
            continue
        error = next((one.error for one in late if one.error), None)
        run_id = next((one.run_id for one in late if one.run_id is not None), None)
        targets = listed(sorted({names[one.target_id] for one in late if one.target_id in names})[:3])
        yield Need(
            tone="failed",
            what=f"{count} message{'s' * (count != 1)} {said}",
            detail=f"{targets}: {one_line(error) if error else 'nobody has tried yet'}",
            act=Link("Open", f"/runs/{run_id}" if run_id is not None else _target(names[late[0].target_id])),
            since=min(one.since for one in late),
            owner=OPERATOR,
        )


def _forge(facts: HealthFacts) -> Iterator[Need]:
    paused = [one.row for one in facts.targets if one.row.forge and one.row.forge_paused_until > facts.now]
    if paused:
        ends_in_s = min(row.forge_paused_until for row in paused) - facts.now
        yield Need(
            tone="failed",
            what="Comments are paused",
            detail=f"{listed([row.name for row in paused[:3]])}, for {lasted(ends_in_s)} more:"
            f" {one_line(paused[0].forge_error or 'the forge asked for it')}",
            act=Link("Open", _target(paused[0].name)),
            since=None,
            owner=OPERATOR,
        )


def _disk(disk: Disk) -> Iterator[Need]:
    if disk.free < MIN_FREE:
        yield Need(
            tone="failed",
            what="Disk nearly full",
            detail=f"{in_bytes(disk.free)} of {in_bytes(disk.total)} are left in the state folder",
            act=Link("Ready?", "/readyz"),
            since=None,
            owner=OPERATOR,
        )


def _polls(facts: HealthFacts) -> Iterator[Need]:
    failing = [one.row for one in facts.targets if one.row.poll_failures >= MIN_POLL_FAILURES]
    failing.sort(key=lambda row: -row.poll_failures)
    for row in failing[:2] if len(failing) < 3 else failing[:1]:
        others = f" and {len(failing) - 1} more" if len(failing) > 2 else ""
        yield Need(
            tone="failed",
            what="Not polled" if len(failing) < 3 else f"{len(failing)} targets are not polled",
            detail=f"{row.name}{others}: failed {row.poll_failures} times in a row:"
            f" {one_line(row.poll_error or 'no reason is known')}",
            act=Link("Open", _target(row.name)),
            since=None,
            owner=OPERATOR,
            of=row.name,
        )


def _without_recipe(facts: HealthFacts) -> Iterator[Need]:
    bare = [one.row for one in facts.targets if one.row.recipe_id is None and one.row.paused_at is None]
    if bare:
        yield Need(
            tone="new",
            what="No recipe" if len(bare) == 1 else f"{len(bare)} targets have no recipe",
            detail=f"{listed([row.name for row in bare[:3]])}: nothing is measured without one",
            act=Link("Open", _target(bare[0].name)),
            since=min(row.created_at for row in bare),
            owner="maintainer",
            of=bare[0].name,
        )


def _target(name: str) -> str:
    return f"/targets/{quote(name, safe='')}"


def headline(found: Needs, facts: HealthFacts) -> str:
    """The verdict in figures."""
    if not facts.targets:
        return "No targets yet"
    if found.count:
        return f"{found.count} item{'s need' if found.count != 1 else ' needs'} attention"
    watched = len(facts.watched.targets)
    if not watched:
        return "The sample is loaded, and no target is watched yet"
    return f"{watched} target{'s' * (watched != 1)}, and nothing needs attention"


def summary(found: Needs, facts: HealthFacts) -> str:
    """How much of it is nobody's, the first line in short, and what the sample has besides."""
    first: Sequence[Need] = found.shown[:1]
    parts = [f"{found.unassigned} unassigned"] if found.unassigned else []
    parts += [f"first: {one.what}" + (f", {one.of}" if one.of else "") for one in first]
    of_sample = sum(one.count for one in facts.of_sample.incidents)
    parts += [f"{counted(of_sample, 'regression')} of the sample"] if of_sample else []
    return " · ".join(parts)
