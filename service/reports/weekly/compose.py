"""From the facts of a week to its document.  Pure."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from kernelwatch.documents.base import moment
from kernelwatch.documents.weekly import (
    WeeklyCountItem,
    WeeklyDismissedItem,
    WeeklyDocument,
    WeeklyDriftItem,
    WeeklyEqualCodeItem,
    WeeklyGapItem,
    WeeklyMoverItem,
    WeeklyRegressionItem,
    WeeklyTotalItem,
)
from service.domain.regressions.lifecycle import Action
from service.domain.states import OPEN_REGRESSIONS, RegressionState
from service.domain.text import listed
from service.domain.verdicts.calibration import Rate
from service.domain.weekly.weeks import TIMES, Mover, movers, time_at_stake, totals
from service.reports.schema.base import document_of
from service.reports.weekly import words
from service.reports.weekly.facts import EventFact, GapFact, RegressionFact, WeekFacts

MAX_ROWS = 20  # of each list
Item = TypeVar("Item")
Told = tuple[RegressionFact, EventFact | None]  # a regression, and the event for which it is listed


def compose(facts: WeekFacts) -> WeeklyDocument:
    """Select, sum and sort; every number of a rendering is in the document."""
    found = movers(facts.changes)
    opened, fixed, dismissed, accepted = _by_outcome(facts)
    still_open: list[Told] = [(one, None) for one in facts.regressions.values() if one.state in OPEN_REGRESSIONS]
    gaps = _last_of_each(facts.gaps)
    behind, caught_up = ([one for one in gaps if one.behind is wanted] for wanted in (True, False))
    slower, faster = ([one for one in found if (one.stake_us > 0) is wanted] for wanted in (True, False))
    counts = WeeklyCountItem(
        slower=len(slower),
        faster=len(faster),
        opened=len(opened),
        fixed=len(fixed),
        dismissed=len(dismissed),
        accepted=len(accepted),
        open=len(still_open),
        unassigned=sum(one.assignee is None for one, _ in still_open),
        gaps_opened=len(behind),
        gaps_closed=len(caught_up),
        drifts=facts.drift_count,
    )
    return WeeklyDocument(
        week=str(facts.week),
        first_day=facts.week.monday,
        last_day=facts.week.sunday,
        finished=facts.finished,
        target=facts.target,
        device=facts.device,
        title=words.title(facts.week, facts.target, facts.device),
        headline=_headline(counts, facts),
        summary=words.summary(facts.week, facts.measured, finished=facts.finished),
        counts=counts,
        measured=facts.measured,
        totals=[WeeklyTotalItem.model_validate(one) for one in totals(found)],
        slower=_moved(slower),
        faster=_moved(faster),
        opened=_grouped(opened),
        fixed=_grouped(fixed),
        dismissed=_grouped(dismissed),
        accepted=_grouped(accepted),
        open=_grouped(still_open),
        gaps_opened=_gaps(behind),
        gaps_closed=_gaps(caught_up),
        failed=list(facts.failed),
        releases=list(facts.releases),
        drifts=[WeeklyDriftItem.model_validate(one) for one in facts.drifts],
        equal_code=_equal_code(facts.equal_code),
        false_alarms=_false_alarms(counts),
    )


def _headline(counts: WeeklyCountItem, facts: WeekFacts) -> str:
    """`2 regressions opened, 1 fixed and 1 accepted; 1 gap to SOTA closed`."""
    changes = ((counts.opened, "opened"), (counts.fixed, "fixed"), (counts.dismissed, "dismissed"))
    said = [(n, what) for n, what in (*changes, (counts.accepted, "accepted")) if n]
    parts = list[str]()
    if said:
        (first, what), *rest = said
        noun = f"{_counted(first, 'regression')} {what}"
        parts.append(listed([noun, *(f"{n} {word}" for n, word in rest)]))
    gaps = [(n, what) for n, what in ((counts.gaps_opened, "opened"), (counts.gaps_closed, "closed")) if n]
    if gaps:
        (first, what), *rest = gaps
        parts.append(listed([f"{_counted(first, 'gap')} to SOTA {what}", *(f"{n} {word}" for n, word in rest)]))
    if parts:
        return "; ".join(parts)
    if not facts.measured.runs:
        return "Nothing was measured" if facts.finished else "Nothing was measured yet"
    return "No regression opened, none fixed"


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"


def _by_outcome(facts: WeekFacts) -> tuple[list[Told], list[Told], list[Told], list[Told]]:
    """Those opened in the week, and those whose last state in it is fixed, dismissed or accepted."""
    opened, last = list[Told](), dict[int, EventFact]()
    closing = {
        (Action.FIX, RegressionState.FIXED),
        (Action.DISMISS, RegressionState.DISMISSED),
        (Action.ACKNOWLEDGE, RegressionState.ACKNOWLEDGED),
    }
    final = {one.regression_id: one.state for one in facts.events}
    for one in facts.events:
        regression = facts.regressions.get(one.regression_id)
        if regression is None:
            continue
        if one.what is Action.OPEN:
            opened.append((regression, None))
        elif (one.what, final[one.regression_id]) in closing:
            last[one.regression_id] = one
    ended: dict[Action, list[Told]] = {Action.FIX: [], Action.DISMISS: [], Action.ACKNOWLEDGE: []}
    for regression_id, event in last.items():
        ended[event.what].append((facts.regressions[regression_id], event))
    return opened, ended[Action.FIX], ended[Action.DISMISS], ended[Action.ACKNOWLEDGE]


def _grouped(found: Collection[Told]) -> list[WeeklyRegressionItem]:
    """One item for each incident and event, the most time at stake first."""
    groups = defaultdict[tuple[int, float], list[Told]](list)
    for regression, event in found:
        groups[regression.incident_id or -regression.id, event.at if event else 0.0].append((regression, event))
    items = [_group(group) for group in groups.values()]
    return sorted(items, key=lambda one: (-(one.stake_us or 0.0), one.regression_ids))[:MAX_ROWS]


def _group(group: Sequence[Told]) -> WeeklyRegressionItem:
    stakes = {one.id: _stake_of(one) for one, _ in group}
    first, event = max(group, key=lambda one: (stakes[one[0].id] or 0.0, one[0].ratio, -one[0].id))
    known = [one for one in stakes.values() if one is not None]
    assignees = {one.assignee for one, _ in group}
    return WeeklyRegressionItem(
        incident_id=first.incident_id,
        regression_ids=sorted(stakes),
        target=first.series.target,
        device=first.series.device,
        cases=len(group),
        case=first.series.case,
        ratio=first.ratio,
        stake_us=sum(known) if known else None,
        state=first.state,
        revision=first.revision,
        subject=first.subject,
        run_id=first.run_id,
        opened_at=moment(min(one.opened_at for one, _ in group)),
        cause=first.cause,
        assignee=listed(sorted(one for one in assignees if one)) if assignees - {None} else None,
        due_at=_first_due(one for one, _ in group),
        at=moment(event.at) if event else None,
        who=event.who if event and event.what is not Action.FIX else None,
        reason=event.why if event and event.what is not Action.FIX else None,
        fixed_by=event.revision if event and event.what is Action.FIX else None,
    )


def _first_due(group: Iterable[RegressionFact]) -> float | None:
    return min((one.due_at for one in group if one.due_at is not None), default=None)


def _stake_of(one: RegressionFact) -> float | None:
    return time_at_stake(one.median, one.ratio) if one.series.metric in TIMES else None


def _moved(found: Iterable[Mover]) -> list[WeeklyMoverItem]:
    """One item for each metric and revision, the most time at stake first."""
    groups = defaultdict[tuple[int, str], list[Mover]](list)
    for one in found:
        groups[one.largest.run_id, one.series.metric].append(one)
    return _first(map(_revision_moved, groups.values()), lambda one: -abs(one.stake_us))


def _revision_moved(group: Sequence[Mover]) -> WeeklyMoverItem:
    first = max(group, key=lambda one: abs(one.stake_us))
    largest, series = first.largest, first.series
    named = {"cases": len(group), "stake_us": sum(one.stake_us for one in group), "case_stake_us": first.stake_us}
    moved = {"metric": series.metric.value, "ratio": first.ratio, "cause": largest.why}
    return document_of(WeeklyMoverItem, vars(series) | vars(largest) | named | moved)


def _last_of_each(gaps: Sequence[GapFact]) -> list[GapFact]:
    """The last event of each series, unless it leaves the gap as it was before the week."""
    first: dict[object, GapFact] = {}
    last: dict[object, GapFact] = {}
    for one in gaps:
        first.setdefault(one.series, one)
        last[one.series] = one
    return [one for series, one in last.items() if one.behind is first[series].behind]


def _gaps(found: Sequence[GapFact]) -> list[WeeklyGapItem]:
    items = [
        document_of(
            WeeklyGapItem,
            vars(one.series) | vars(one) | {"stake_us": one.own - one.sota if one.series.metric in TIMES else None},
        )
        for one in found
    ]
    return _first(items, lambda one: -abs(one.stake_us or 0.0))


def _first(items: Iterable[Item], key: Callable[[Item], float]) -> list[Item]:
    return sorted(items, key=key)[:MAX_ROWS]


def _equal_code(rate: Rate) -> WeeklyEqualCodeItem:
    known = rate.comparisons > 0
    return WeeklyEqualCodeItem(
        comparisons=rate.comparisons,
        alarmed=rate.alarmed,
        rate=rate.share,
        low=rate.low if known else None,
        high=rate.high if known else None,
        summary=words.equal_code(rate),
    )


def _false_alarms(counts: WeeklyCountItem) -> WeeklyDismissedItem:
    decided = counts.fixed + counts.accepted + counts.dismissed
    rate = Rate(decided, counts.dismissed, counts.dismissed)
    return WeeklyDismissedItem(
        decided=decided,
        dismissed=counts.dismissed,
        rate=rate.share,
        low=rate.low if decided else None,
        high=rate.high if decided else None,
        summary=words.false_alarms(rate),
    )
