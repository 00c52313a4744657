"""A week: what the ledger knows of it, its document, and that as Markdown for an issue, a chat or a mail.

Pure.  Times of facts are seconds since the epoch.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kernelwatch.documents.base import moment
from kernelwatch.documents.weekly import (
    WeeklyCountItem,
    WeeklyDecisionItem,
    WeeklyDismissedItem,
    WeeklyDocument,
    WeeklyDriftItem,
    WeeklyEqualCodeItem,
    WeeklyFailureItem,
    WeeklyGapItem,
    WeeklyMeasuredItem,
    WeeklyMoverItem,
    WeeklyRegressionItem,
    WeeklyReleaseItem,
    WeeklyTotalItem,
)
from service.db.models import GapEvent, RegressionRow
from service.domain.metrics import signed
from service.domain.regressions.lifecycle import Action
from service.domain.states import OPEN_REGRESSIONS, RegressionState
from service.domain.text import code, counted, escaped, listed, short
from service.domain.verdicts.calibration import Rate
from service.domain.weekly.weeks import TIMES, ConfirmedChange, Week, movers, time_at_stake, totals
from service.reports.schema.base import columns, document_of
from service.reports.views import Drift
from service.reports.weekly import words

MAX_ROWS = 20  # of each list
Item = TypeVar("Item")
_TEMPLATES = Environment(  # noqa: S701  Markdown, in which texts from elsewhere pass `escaped` or `code`
    loader=FileSystemLoader(Path(__file__).parent.parent / "templates"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"code": code, "escaped": escaped, "short": short, "signed": signed}
_TEMPLATES.globals |= {"counted": counted, "words": words}


@dataclass(frozen=True)
class RegressionFact:
    """A regression, with its state at the end of the week; its assignee is today's."""

    row: RegressionRow
    target: str
    revision: str
    subject: str
    median: float | None  # of the run that showed it
    state: RegressionState


@dataclass(frozen=True)
class EventFact:
    """An event of a regression in the week."""

    regression_id: int
    at: float
    who: str
    what: Action
    state: RegressionState  # after it
    why: str | None
    revision: str | None  # of the run that showed it


@dataclass(frozen=True)
class GapFact:
    """A case that fell behind SOTA, or is no longer behind."""

    row: GapEvent
    target: str
    revision: str
    subject: str


@dataclass(frozen=True)
class WeekSums:
    """What a digest is made of: a week of one target or of all that the reader may see, on one device or on all."""

    week: Week
    now: float
    target: str | None
    device: str | None
    measured: WeeklyMeasuredItem
    changes: Sequence[ConfirmedChange]
    events: Sequence[EventFact]  # the oldest first
    gaps: Sequence[GapFact]
    equal_code: Rate

    @property
    def finished(self) -> bool:
        return self.now >= self.week.end


@dataclass(frozen=True)
class WeekFacts(WeekSums):
    """Everything that the report of the week shows."""

    regressions: Mapping[int, RegressionFact]
    failed: Sequence[WeeklyFailureItem]  # the newest first
    releases: Sequence[WeeklyReleaseItem]
    drifts: Sequence[Drift]  # the newest first
    drift_count: int  # of all, also where `drifts` has the newest alone


@dataclass(frozen=True)
class WeekDigest:
    """A week in a few sentences, with the numbers in them."""

    week: str
    target: str | None
    device: str | None
    title: str
    headline: str
    summary: str
    counts: Mapping[str, int]  # those of a WeeklyCountItem that the headline says
    totals: Sequence[WeeklyTotalItem]
    equal_code: WeeklyEqualCodeItem


def digest(sums: WeekSums) -> WeekDigest:
    gaps = _last_of_each(sums.gaps)
    opened = sum(one.row.behind_sota for one in gaps)
    ended = Counter(event.what for event in _decided(sums.events).values())
    counts = {
        "gaps_opened": opened,
        "gaps_closed": len(gaps) - opened,
        "opened": len(_opened(sums.events)),
        "fixed": ended[Action.FIX],
        "dismissed": ended[Action.DISMISS],
        "accepted": ended[Action.ACKNOWLEDGE],
    }
    return WeekDigest(
        week=str(sums.week),
        target=sums.target,
        device=sums.device,
        title=words.title(sums.week, sums.target, sums.device),
        headline=_headline(counts, sums),
        summary=words.summary(sums.week, sums.measured, finished=sums.finished),
        counts=counts,
        totals=[WeeklyTotalItem.model_validate(one) for one in totals(movers(sums.changes))],
        equal_code=_equal_code(sums.equal_code),
    )


def compose(facts: WeekFacts) -> WeeklyDocument:
    """Select, sum and sort; every number of a rendering is in the document."""
    brief = digest(facts)
    found = movers(facts.changes)
    course = _course(facts)
    gaps = _last_of_each(facts.gaps)
    crossed = {
        "gaps_opened": [one for one in gaps if one.row.behind_sota],
        "gaps_closed": [one for one in gaps if not one.row.behind_sota],
    }
    moved = {
        "slower": [one for one in found if one.stake_us > 0],
        "faster": [one for one in found if one.stake_us < 0],
    }
    in_list = [one for one in facts.regressions.values() if one.row.id in course]
    counts = WeeklyCountItem(
        **{name: len(rows) for name, rows in moved.items()},
        **brief.counts,
        regressions=len(in_list),
        open=len(course.open),
        unassigned=sum(facts.regressions[one].row.assignee is None for one in course.open),
        drifts=facts.drift_count,
    )
    return WeeklyDocument(
        week=brief.week,
        first_day=facts.week.monday,
        last_day=facts.week.sunday,
        finished=facts.finished,
        target=facts.target,
        device=facts.device,
        title=brief.title,
        headline=brief.headline,
        summary=brief.summary,
        counts=counts,
        measured=facts.measured,
        totals=list(brief.totals),
        **{name: _moved(rows) for name, rows in moved.items()},
        regressions=_grouped(in_list, course),
        **{name: _gaps(rows) for name, rows in crossed.items()},
        failed=list(facts.failed),
        releases=list(facts.releases),
        drifts=[WeeklyDriftItem.model_validate(one) for one in facts.drifts],
        equal_code=brief.equal_code,
        false_alarms=_false_alarms(counts),
    )


def _headline(counts: Mapping[str, int], facts: WeekSums) -> str:
    """`2 regressions opened, 1 fixed and 1 accepted; 1 gap to SOTA closed`."""
    said = [(counts[what], what) for what in ("opened", "fixed", "dismissed", "accepted") if counts[what]]
    parts = list[str]()
    if said:
        (first, what), *rest = said
        noun = f"{first} regression{'s' * (first != 1)} {what}"
        parts.append(listed([noun, *(f"{n} {word}" for n, word in rest)]))
    gaps = [(n, what) for what in ("opened", "closed") if (n := counts[f"gaps_{what}"])]
    if gaps:
        (first, what), *rest = gaps
        parts.append(listed([f"{first} gap{'s' * (first != 1)} to SOTA {what}", *(f"{n} {word}" for n, word in rest)]))
    if parts:
        return "; ".join(parts)
    if not facts.measured.runs:
        return "Nothing was measured" if facts.finished else "Nothing was measured yet"
    return "No regression opened, none fixed"


@dataclass(frozen=True)
class _Course:
    """What happened to regressions in the week, by their ids."""

    opened: Collection[int]
    decided: Mapping[int, EventFact]  # those whose last state is fixed, dismissed or accepted, with that event
    open: Collection[int]  # at the end of the week

    def __contains__(self, regression_id: int) -> bool:
        return regression_id in self.opened or regression_id in self.decided or regression_id in self.open


_DECISIONS = {
    Action.FIX: RegressionState.FIXED,
    Action.DISMISS: RegressionState.DISMISSED,
    Action.ACKNOWLEDGE: RegressionState.ACKNOWLEDGED,
}


def _course(facts: WeekFacts) -> _Course:
    events = [one for one in facts.events if one.regression_id in facts.regressions]
    return _Course(
        opened=_opened(events),
        decided=_decided(events),
        open={number for number, one in facts.regressions.items() if one.state in OPEN_REGRESSIONS},
    )


def _opened(events: Iterable[EventFact]) -> set[int]:
    return {one.regression_id for one in events if one.what is Action.OPEN}


def _decided(events: Sequence[EventFact]) -> dict[int, EventFact]:
    final = {one.regression_id: one.state for one in events}
    return {one.regression_id: one for one in events if _DECISIONS.get(one.what) is final[one.regression_id]}


def _grouped(found: Iterable[RegressionFact], course: _Course) -> list[WeeklyRegressionItem]:
    """One item for each incident: those of which something happened first, then the most time at stake."""
    groups = defaultdict[int, list[RegressionFact]](list)
    for one in found:
        groups[one.row.incident_id or -one.row.id].append(one)
    items = [_group(group, course) for group in groups.values()]
    happened = [bool(one.opened or one.decisions) for one in items]
    order = sorted(zip(happened, items, strict=True), key=lambda pair: (not pair[0], *_by_stake(pair[1])))
    return [item for _, item in order][:MAX_ROWS]


def _by_stake(one: WeeklyRegressionItem) -> tuple[float, list[int]]:
    return -(one.stake_us or 0.0), one.regression_ids


def _group(group: Sequence[RegressionFact], course: _Course) -> WeeklyRegressionItem:
    rows = [one.row for one in group]
    stakes = {
        one.row.id: time_at_stake(one.median, one.row.ratio) if one.row.metric in TIMES else None for one in group
    }
    first = max(group, key=lambda one: (stakes[one.row.id] or 0.0, one.row.ratio, -one.row.id))
    known = [one for one in stakes.values() if one is not None]
    assignees = {row.assignee for row in rows}
    of_group = {
        "regression_ids": sorted(stakes),
        "cases": len(group),
        "opened": sum(row.id in course.opened for row in rows),
        "open": sum(row.id in course.open for row in rows),
        "decisions": _decisions([course.decided[row.id] for row in rows if row.id in course.decided]),
        "stake_us": sum(known) if known else None,
        "state": min((one.state for one in group), key=list(RegressionState).index),
        "opened_at": min(row.opened_at for row in rows),
        "cause": first.row.cause_text,
        "assignee": listed(sorted(one for one in assignees if one)) if assignees - {None} else None,
        "due_at": min((row.due_at for row in rows if row.due_at is not None), default=None),
    }
    return document_of(WeeklyRegressionItem, columns(first.row) | vars(first) | of_group)


def _decisions(events: Iterable[EventFact]) -> list[WeeklyDecisionItem]:
    """One item for what was decided alike."""
    alike = defaultdict[tuple[RegressionState, str | None, str | None, str | None], list[float]](list)
    for event in sorted(events, key=lambda event: event.at):
        by_fix = event.what is Action.FIX
        who, why = (None, None) if by_fix else (event.who, event.why)
        alike[event.state, who, why, event.revision if by_fix else None].append(event.at)
    return [
        WeeklyDecisionItem(state=state, cases=len(times), at=moment(times[-1]), who=who, reason=why, revision=revision)
        for (state, who, why, revision), times in alike.items()
    ]


def _moved(found: Iterable[ConfirmedChange]) -> list[WeeklyMoverItem]:
    """One item for each metric and revision, the most time at stake first."""
    groups = defaultdict[tuple[int, str], list[ConfirmedChange]](list)
    for one in found:
        groups[one.run_id, one.series.metric].append(one)
    return _first(map(_revision_moved, groups.values()), lambda one: -abs(one.stake_us))


def _revision_moved(group: Sequence[ConfirmedChange]) -> WeeklyMoverItem:
    first = max(group, key=lambda one: abs(one.stake_us))
    series = first.series
    of_group = {"cases": len(group), "stake_us": sum(one.stake_us for one in group), "case_stake_us": first.stake_us}
    named = {"metric": series.metric.value, "cause": first.why}
    return document_of(WeeklyMoverItem, vars(series) | vars(first) | of_group | named)


def _last_of_each(gaps: Sequence[GapFact]) -> list[GapFact]:
    """The last event of each series, unless it leaves the gap as it was before the week."""
    first: dict[int, GapFact] = {}
    last: dict[int, GapFact] = {}
    for one in gaps:
        first.setdefault(one.row.series_id, one)
        last[one.row.series_id] = one
    return [one for series, one in last.items() if one.row.behind_sota is first[series].row.behind_sota]


def _gaps(found: Sequence[GapFact]) -> list[WeeklyGapItem]:
    items = []
    for one in found:
        stake_us = one.row.own - one.row.sota if one.row.metric in TIMES else None
        items.append(document_of(WeeklyGapItem, columns(one.row) | vars(one) | {"stake_us": stake_us}))
    return _first(items, lambda one: -abs(one.stake_us or 0.0))


def _first(items: Iterable[Item], key: Callable[[Item], float]) -> list[Item]:
    return sorted(items, key=key)[:MAX_ROWS]


def _equal_code(rate: Rate) -> WeeklyEqualCodeItem:
    summary = words.equal_code(rate)
    return WeeklyEqualCodeItem(comparisons=rate.comparisons, alarmed=rate.alarmed, **_of_rate(rate), summary=summary)


def _false_alarms(counts: WeeklyCountItem) -> WeeklyDismissedItem:
    decided = counts.fixed + counts.accepted + counts.dismissed
    rate = Rate(decided, counts.dismissed, counts.dismissed)
    summary = words.false_alarms(rate)
    return WeeklyDismissedItem(decided=decided, dismissed=counts.dismissed, **_of_rate(rate), summary=summary)


def _of_rate(rate: Rate) -> dict[str, float | None]:
    low, high = (rate.low, rate.high) if rate.comparisons else (None, None)
    return {"rate": rate.share, "low": low, "high": high}


def markdown(week: WeeklyDocument, address: str) -> str:
    """The report; `address` is that of the dashboard."""
    return _TEMPLATES.get_template("weekly.md").render(week=week, n=week.counts, address=address).rstrip() + "\n"
