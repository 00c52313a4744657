"""The lines of the list of regressions: each is what one revision made slower, on all devices."""

from collections.abc import Iterable
from dataclasses import dataclass

from service.db.models import Target
from service.domain.metrics import metric_of, percent
from service.domain.states import CLOSED_REGRESSIONS, FoundBy, RegressionState
from service.domain.text import lasted, listed, one_line, short
from service.ledger.regressions.filters import ACCEPTED
from service.reports.health.facts import OpenIncident
from service.reports.health.needs import CommitAddress, Link

MAX_OWNERS = 3


@dataclass(frozen=True)
class RegressionLine:
    """One line.  `owner` is None where nobody is assigned to something that is open."""

    key: str
    tone: str
    count: int
    what: str  # "9 regressions"
    target: str
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
        devices=listed(sorted(one.devices)),
        size=percent(worst.ratio, metric_of(worst.case)) if worst else "",
        detail="; ".join(_detail(one)),
        subject=one.subject,
        since=_since(one, target, commit),
        opened_at=one.opened_at,
        owner=owner if owner or not (closed or accepted) else "",
        open=0 if closed or owner is None else one.count - one.assigned,
        due=_due(one, now),
        overdue=one.due_at is not None and one.due_at < now,
        stake_us=one.stake_us,
        act=Link("Open" if owner or closed or accepted else "Triage", f"/regressions/{number}"),
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
    """The worst case, the cause, and what happens to it."""
    parts = []
    if one.worst:
        parts.append(f"worst {one.worst.case}" if one.states.total() > 1 else one.worst.case)
        if one.worst.cause:
            parts.append(one_line(one.worst.cause))
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
