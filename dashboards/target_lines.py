"""Lines of tables: the revisions of a target on each device, and what one revision made slower on all devices."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.db.models import Target
from service.domain.health.overview import Mark, mark_of
from service.domain.metrics import metric_of, percent
from service.domain.states import CLOSED_REGRESSIONS, FoundBy, RegressionState, RunState, TargetKind
from service.domain.text import lasted, listed, one_line, short
from service.domain.verdicts import totals
from service.domain.verdicts.totals import SotaMean
from service.ledger.health.mainline import MainlineRevision
from service.ledger.regressions.grouped import ACCEPTED
from service.reports.health.facts import OpenIncident, RecentRun, TargetLately
from service.reports.health.lately import BEHIND, LEVEL
from service.reports.health.needs import MAX_CAUSE, MIN_POLL_FAILURES, CommitAddress, Link

_SIGNS = {
    Mark.SLOWER: ("slower", "▲"),
    Mark.FASTER: ("faster", "▼"),
    Mark.STEADY: ("steady", "–"),
    Mark.FAILED: ("failed", "✕"),
    Mark.UNMEASURED: ("unmeasured", "…"),
}


@dataclass(frozen=True)
class DeviceCell:
    """What a revision did on one device."""

    run_id: int
    tone: str
    sign: str
    text: str  # "3 slower"
    mean: float | None  # times SOTA
    step: float | None  # the mean over that of the revision before; None where the cases differ
    title: str

    @property
    def behind(self) -> bool:
        return self.mean is not None and self.mean > BEHIND

    @property
    def moved(self) -> bool:
        return self.step is not None and abs(self.step - 1) >= LEVEL


def rows(found: Sequence[MainlineRevision], shown: int) -> list[tuple[MainlineRevision, dict[str, DeviceCell]]]:
    """The first revisions, newest first, with their cells; those after them only tell what was before."""
    before = dict[str, SotaMean]()
    made = []
    for one in reversed(found):
        cells = {device: _cell(run, before.get(device)) for device, run in one.runs.items()}
        before |= {device: run.result.mean for device, run in one.runs.items() if run.result.mean is not None}
        made.append((one, cells))
    return made[::-1][:shown]


def cells(runs: Mapping[str, RecentRun]) -> dict[str, DeviceCell]:
    """The cells of a head of a pull request."""
    return {device: _cell(run, None) for device, run in runs.items()}


def _cell(run: RecentRun, before: SotaMean | None) -> DeviceCell:
    tone, sign = _SIGNS[mark_of([run.result])]
    mean = run.result.mean
    step = totals.change({"": mean}, {"": before}) if mean and before else None
    counts = _counts(run)
    said = [counts, f"{mean.ratio:.3f} times {run.sota or 'SOTA'}" if mean else ""]
    if step is not None and abs(step - 1) >= 0.0005:
        said.append(f"{(step - 1) * 100:+.1f} % since the revision before")
    return DeviceCell(run.run_id, tone, sign, counts, mean.ratio if mean else None, step, "; ".join(filter(None, said)))


def _counts(run: RecentRun) -> str:
    if run.state != RunState.DONE:
        return {RunState.LEASED: "running", RunState.HELD: "needs approval"}.get(RunState(run.state), run.state)
    named = ((run.result.slower, "slower"), (run.result.newly_broken, "newly wrong"), (run.result.faster, "faster"))
    return ", ".join(f"{n} {word}" for n, word in named if n)


def changes(one: TargetLately) -> dict[str, float]:
    """The change of the mean over a week, as a ratio, on each device where it can be compared."""
    found = {}
    for device, mean in one.means.items():
        then = one.a_week_ago.get(device)
        change = totals.change({device: mean}, {device: then.mean}) if then and then.mean else None
        if change is not None:
            found[device] = change
    return found


def verdict(one: TargetLately, regressions: int, behind: int) -> str:
    """The state of a target: its change over a week where it is the largest, and what is open."""
    if not one.revisions:
        nothing = "no releases yet" if one.row.kind is TargetKind.PACKAGE else "no revisions yet"
        return f"{nothing}; paused" if one.row.paused_at is not None else nothing
    parts = []
    compared = changes(one)
    moved = {device: change for device, change in compared.items() if abs(change - 1) >= LEVEL}
    if moved:
        device = max(moved, key=lambda name: abs(math.log(moved[name])))
        change = moved[device]
        word = "slower" if change > 1 else "faster"
        parts.append(f"{abs(change - 1) * 100:.1f} % {word} than a week ago on {device}")
    elif compared:
        parts.append("as fast as a week ago")
    elif not one.newest:
        parts.append("not measured yet")
    broken = sum(run.broken for run in one.newest.values())
    if broken:
        parts.append(f"{broken} wrong or failed")
    if regressions:
        parts.append(f"{regressions} open regression{'s' * (regressions != 1)}")
    elif one.newest:
        parts.append("no open regressions")
    if one.row.paused_at is not None:
        parts.append("paused")
    elif one.row.poll_failures >= MIN_POLL_FAILURES:
        parts.append("not polled")
    if not regressions and behind:
        parts.append(f"{behind} behind SOTA")
    return "; ".join(parts)


def devices(found: Iterable[MainlineRevision], wanted: Iterable[str]) -> list[str]:
    """The devices of the columns: those of the recipe, then others that were measured."""
    measured = {device for one in found for device in one.runs}
    return list(dict.fromkeys((*wanted, *sorted(measured))))


MAX_OWNERS = 3


@dataclass(frozen=True)
class RegressionLine:
    """One line.  `owner` is None where nobody is assigned to something that is open."""

    key: str
    tone: str
    count: int
    what: str  # "9 regressions"
    target: str
    sample: bool
    devices: str
    size: str  # of the worst case
    detail: str
    subject: str  # of the commit
    since: Link | None
    opened_at: float
    owner: str | None
    open: int  # of the cases of an owner's line: those without one
    due: str
    overdue: bool
    stake_us: float | None
    act: Link
    params: tuple[tuple[str, str], ...]  # which name the group in an address


def lines(
    found: Iterable[OpenIncident], targets: dict[int, Target], commit: CommitAddress, now: float
) -> list[RegressionLine]:
    """One line for each group."""
    return [_line(one, targets[one.target_id], commit, now) for one in found]


def _line(one: OpenIncident, target: Target, commit: CommitAddress, now: float) -> RegressionLine:
    closed = next((state for state in CLOSED_REGRESSIONS if one.states[state]), None)
    total = one.states.total()
    accepted = not closed and not one.count
    owner = listed(sorted(one.assignees)[:MAX_OWNERS]) if one.assignees else None
    worst = one.worst
    number = worst.regression_id if worst else 0
    params = (("revision", one.sha),) if one.revision_id is not None else (("run", str(one.run_id)),)
    return RegressionLine(
        key=f"{one.target_id}-{one.revision_id or 0}-{one.run_id or 0}",
        tone=closed.value if closed else "acknowledged" if accepted else _tone(one),
        count=total,
        what=f"{total} {'accepted' if accepted else closed.value if closed else 'regression' + 's' * (total != 1)}",
        target=target.name,
        sample=one.sample,
        devices=listed(sorted(one.devices)),
        size=percent(worst.ratio, metric_of(worst.case)) if worst else "",
        detail="; ".join(_detail(one)),
        subject=one.subject,
        since=_since(one, target, commit),
        opened_at=one.opened_at,
        owner=owner if owner or not (closed or accepted or one.sample) else "",
        open=0 if closed or owner is None else one.count - one.assigned,
        due=_due(one, now),
        overdue=one.due_at is not None and one.due_at < now,
        stake_us=one.stake_us,
        act=Link("Open" if owner or closed or accepted or one.sample else "Triage", f"/regressions/{number}"),
        params=(("target", target.name), *params),
    )


def _since(one: OpenIncident, target: Target, commit: CommitAddress) -> Link | None:
    """The commit at its forge, or else the run that measured it."""
    if not one.sha or one.worst is None:
        return None
    return Link(short(one.sha), commit(target, one.sha) or f"/runs/{one.worst.run_id}")


def _tone(one: OpenIncident) -> str:
    if one.found_by == {FoundBy.PINNED}:
        return "drift"
    for state in (RegressionState.OPEN, RegressionState.BLAMED, RegressionState.BISECTING):
        if one.states[state]:
            return state.value
    return RegressionState.OPEN.value


def _detail(one: OpenIncident) -> list[str]:
    """The cause, the worst case, and what happens to it."""
    parts = []
    if one.worst:
        if one.worst.cause:
            parts.append(one_line(one.worst.cause, MAX_CAUSE))
        parts.append(f"worst {one.worst.case}" if one.states.total() > 1 else one.worst.case)
    if one.found_by == {FoundBy.PINNED}:
        parts.append("in small steps")
    if one.states[RegressionState.BISECTING]:
        parts.append("a bisection is running")
    if one.states[ACCEPTED] and one.count:
        parts.append(f"{one.states[ACCEPTED]} accepted")
    return parts


def _due(one: OpenIncident, now: float) -> str:
    if one.due_at is None:
        return ""
    days = lasted(abs(now - one.due_at))
    return f"overdue for {days}" if one.due_at < now else f"due in {days}"
