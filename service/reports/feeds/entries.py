"""The entries of an Atom feed (RFC 4287), as values.  Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from kernelwatch.documents.weekly import WeeklyFailureItem
from service.domain.changepoints.segmentation import Change
from service.domain.metrics import metric_of, percent
from service.domain.regressions.lifecycle import Action
from service.domain.text import interval, one_line, short
from service.reports.imported import ImportedKey, ImportedSeries
from service.reports.views import Drift
from service.reports.weekly import words
from service.reports.weekly.report import WeekDigest

SCHEME_YEAR = 2026  # of the ids of feeds; those of entries have the day of what happened
# Actions that a feed has entries for, with their words; those by people say who.
CHANGES: Mapping[Action, str] = {
    Action.OPEN: "opened",
    Action.FIX: "fixed",
    Action.LEAVE: "closed",
    Action.REMOVE: "removed",
    Action.MEASURE_AGAIN: "open again",
    Action.DISMISS: "dismissed",
    Action.ACKNOWLEDGE: "accepted",
    Action.EXPIRE: "open again",
    Action.UNDO: "open again",
    Action.RETURN: "open again",
    Action.REOPEN: "open again",
}
_BY_PEOPLE = (Action.ACKNOWLEDGE, Action.DISMISS, Action.REOPEN)
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # characters that XML 1.0 cannot hold
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.ASCII)


@dataclass(frozen=True)
class RegressionsChanged:
    """One action on the regressions of an incident: all that changed at the same moment, and the largest of them."""

    event_id: int  # the first
    what: Action
    at: float
    who: str
    why: str | None
    target: str
    device: str
    count: int
    regression_id: int
    case: str
    ratio: float
    cause: str | None
    revision: str  # that made it slower
    subject: str
    shown_by: str | None  # the revision of the run that showed the action


@dataclass(frozen=True)
class RunDrifts:
    """Configurations that changed without a commit in one run: the first of them, and how many there are."""

    first: Drift
    count: int


@dataclass(frozen=True)
class FeedEntry:
    """An entry; its texts hold no character that XML cannot hold."""

    id: str
    title: str
    updated: float
    path: str  # of its page
    summary: str
    category: str


def authority(address: str) -> str:
    """The name of the server in tag: URIs (RFC 4151), which have no port."""
    host = (urlsplit(address).hostname or "").lower()
    return host if _NAME.fullmatch(host) else "kernelwatch.invalid"


def feed_id(host: str, target_id: int | None) -> str:
    """The id of a feed; a target keeps it when it is renamed."""
    return f"tag:{host},{SCHEME_YEAR}:feeds/{'all' if target_id is None else target_id}"


def imported_feed_id(host: str, key: ImportedKey) -> str:
    """The id of the feed of a series that was measured elsewhere."""
    return f"{feed_id(host, key.target_id)}/imported/{key.digest}"


def regressions_changed(host: str, one: RegressionsChanged) -> FeedEntry:
    """`norms on h200: 34 regressions opened at 3f2a7c1b22, the largest 21.4 % slower`."""
    size, noun = percent(one.ratio, metric_of(one.case)), f"regression{'s' * (one.count != 1)}"
    did = f"{one.target} on {one.device}: {one.count} {noun} {CHANGES[one.what]}"
    match one.what:
        case Action.OPEN:
            title = f"{did} at {short(one.revision)}, {'the largest ' if one.count > 1 else ''}{size}"
        case Action.FIX if one.shown_by is not None:
            title = f"{did} by {short(one.shown_by)}"
        case what if what in _BY_PEOPLE:
            title = f"{did} by {one.who}"
        case _:
            title = did
    slowed = f"{one.case}: {size} at {short(one.revision)} {one.subject}"
    parts = (slowed, one.cause if one.what is Action.OPEN else one.why)
    return FeedEntry(
        id=_tag(host, one.at, f"regression-event/{one.event_id}"),
        title=_text(title),
        updated=one.at,
        path=f"/regressions/{one.regression_id}",
        summary=_text(". ".join(part for part in parts if part)),
        category=CHANGES[one.what].replace(" ", "-"),
    )


def run_failed(host: str, one: WeeklyFailureItem) -> FeedEntry:
    """`norms on h200: the build of 3f2a7c1b22 failed`."""
    at = one.at.timestamp()
    what = f"the build of {short(one.revision)} failed" if one.build else f"run {one.run_id} was given up"
    return FeedEntry(
        id=_tag(host, at, f"run/{one.run_id}/failed"),
        title=_text(f"{one.target} on {one.device}: {what}"),
        updated=at,
        path=f"/runs/{one.run_id}",
        summary=_text(f"{short(one.revision)} {one.subject}{f'. {one.reason}' if one.reason else ''}"),
        category="failed-run",
    )


def configurations_drifted(host: str, one: RunDrifts) -> FeedEntry:
    """`norms on h200: 3 configurations changed without a commit`."""
    noun = f"configuration{'s' * (one.count != 1)}"
    first = one.first
    more = f" and {one.count - 1:,} more" if one.count > 1 else ""
    runs = f"Run {first.run_id} against run {first.earlier_run_id}, both of {short(first.revision)}"
    return FeedEntry(
        id=_tag(host, first.at, f"run/{first.run_id}/drifts"),
        title=_text(f"{first.target} on {first.device}: {one.count:,} {noun} changed without a commit"),
        updated=first.at,
        path=f"/targets/{quote(first.target, safe='')}/facts#drifts",
        summary=_text(f"{first.case} of {first.provider}: {first.before} → {first.now}{more}. {runs}"),
        category="configuration-drift",
    )


def imported_changed(host: str, key: ImportedKey, series: ImportedSeries, change: Change) -> FeedEntry:
    """`norms on h200: forward by Triton 8.9 % worse at 3f2a7c1b22, measured elsewhere`."""
    first = series.revisions[change.ordinal]
    size = f"{abs(change.ratio - 1) * 100:.1f} % {'worse' if series.worse(change) else 'better'}"
    what = f"{key.case} by {key.provider} {size} at {short(first.revision)}, measured elsewhere"
    between = interval(change.low, change.high) or f"{change.ratio:.3f}"
    return FeedEntry(
        id=_tag(host, first.at, f"imported/{key.target_id}/{key.digest}/{quote(first.revision)}"),
        title=_text(f"{key.target} on {key.device}: {what}"),
        updated=first.at,
        path=key.path,
        summary=_text(f"Found in the history, and advisory. Ratio {between}"),
        category="imported-change",
    )


def week_ended(host: str, week: WeekDigest, ended_at: float, target_id: int | None) -> FeedEntry:
    """The report of a week that is over."""
    stakes = [f"{words.total(one)}." for one in week.totals]
    return FeedEntry(
        id=_tag(host, ended_at, f"weekly/{week.week}/{'all' if target_id is None else target_id}"),
        title=_text(f"{week.title}: {week.headline}"),
        updated=ended_at,
        path=words.path(week.week, week.target, week.device),
        summary=_text(" ".join([week.summary, *stakes, f"{week.equal_code.summary}."]), most=2000),
        category="weekly-report",
    )


def _tag(host: str, at: float, specific: str) -> str:
    return f"tag:{host},{datetime.fromtimestamp(at, UTC):%Y-%m-%d}:{specific}"


def _text(text: str, most: int = 500) -> str:
    return _NOT_XML.sub("", one_line(text, most))
