"""The weekly report in a terminal."""

from collections.abc import Callable

from kernelwatch.client.models import (
    WeeklyDocument,
    WeeklyDriftItem,
    WeeklyFailureItem,
    WeeklyGapItem,
    WeeklyMoverItem,
    WeeklyRegressionItem,
    WeeklyReleaseItem,
    WeeklyTotalItem,
)
from service.commands.output.views import Column, Part, Table, View, text
from service.domain.metrics import metric_of, ratio_text, signed
from service.domain.text import short
from service.reports.weekly import words

TOTALS = (
    Column[WeeklyTotalItem]("target", lambda one: one.target),
    Column[WeeklyTotalItem]("device", lambda one: one.device),
    Column[WeeklyTotalItem]("metric", lambda one: one.metric),
    Column[WeeklyTotalItem]("time at stake", lambda one: words.at_stake(one.net_us), right=True),
    Column[WeeklyTotalItem]("slower", lambda one: str(one.slower_cases), right=True),
    Column[WeeklyTotalItem]("faster", lambda one: str(one.faster_cases), right=True),
)
MOVERS = (
    Column[WeeklyMoverItem]("case", lambda one: one.case),
    Column[WeeklyMoverItem]("cases", lambda one: str(one.cases), right=True),
    Column[WeeklyMoverItem]("time at stake", lambda one: words.at_stake(one.stake_us), right=True),
    Column[WeeklyMoverItem]("change", lambda one: signed(one.ratio), right=True),
    Column[WeeklyMoverItem]("target", lambda one: one.target, spare=1),
    Column[WeeklyMoverItem]("device", lambda one: one.device, spare=2),
    Column[WeeklyMoverItem]("provider", lambda one: one.provider, spare=4),
    Column[WeeklyMoverItem]("since", lambda one: short(one.revision), spare=3),
    Column[WeeklyMoverItem]("cause", lambda one: one.cause or "", below=True),
)
REGRESSIONS = (
    Column[WeeklyRegressionItem]("ids", lambda one: _ids(one.regression_ids)),
    Column[WeeklyRegressionItem]("case", lambda one: one.case),
    Column[WeeklyRegressionItem]("cases", lambda one: str(one.cases), right=True, spare=4),
    Column[WeeklyRegressionItem]("time at stake", lambda one: words.at_stake(one.stake_us), right=True),
    Column[WeeklyRegressionItem]("change", lambda one: signed(one.ratio, metric_of(one.case)), right=True),
    Column[WeeklyRegressionItem]("state", lambda one: one.state, spare=1),
    Column[WeeklyRegressionItem]("target", lambda one: one.target, spare=2),
    Column[WeeklyRegressionItem]("device", lambda one: one.device, spare=3),
    Column[WeeklyRegressionItem]("opened", lambda one: f"{one.opened_at:%Y-%m-%d}", spare=5),
    Column[WeeklyRegressionItem]("assignee", lambda one: one.assignee or "unassigned", spare=6),
    Column[WeeklyRegressionItem]("why", lambda one: one.reason or one.cause or "", below=True),
)
GAPS = (
    Column[WeeklyGapItem]("case", lambda one: one.case),
    Column[WeeklyGapItem]("time at stake", lambda one: words.at_stake(one.stake_us), right=True),
    Column[WeeklyGapItem]("times SOTA", lambda one: ratio_text(one.ratio, metric_of(one.case)), right=True),
    Column[WeeklyGapItem]("before", lambda one: ratio_text(one.ratio_before, metric_of(one.case)), right=True, spare=3),
    Column[WeeklyGapItem]("target", lambda one: one.target, spare=1),
    Column[WeeklyGapItem]("device", lambda one: one.device, spare=2),
)
FAILED = (
    Column[WeeklyFailureItem]("run", lambda one: str(one.run_id), right=True),
    Column[WeeklyFailureItem]("revision", lambda one: short(one.revision)),
    Column[WeeklyFailureItem]("target", lambda one: one.target, spare=1),
    Column[WeeklyFailureItem]("device", lambda one: one.device, spare=2),
    Column[WeeklyFailureItem]("why", lambda one: one.reason or "", below=True),
)

RELEASES = (
    Column[WeeklyReleaseItem]("target", lambda one: one.target),
    Column[WeeklyReleaseItem]("version", lambda one: one.version),
    Column[WeeklyReleaseItem]("released", lambda one: f"{one.at:%Y-%m-%d}"),
    Column[WeeklyReleaseItem]("run", lambda one: "" if one.run_id is None else str(one.run_id), right=True),
)
DRIFTS = (
    Column[WeeklyDriftItem]("case", lambda one: one.case),
    Column[WeeklyDriftItem]("run", lambda one: str(one.run_id), right=True),
    Column[WeeklyDriftItem]("before", lambda one: one.before, below=True),
    Column[WeeklyDriftItem]("now", lambda one: one.now, below=True),
    Column[WeeklyDriftItem]("target", lambda one: one.target, spare=1),
    Column[WeeklyDriftItem]("device", lambda one: one.device, spare=2),
    Column[WeeklyDriftItem]("revision", lambda one: short(one.revision), spare=3),
)


def report(week: WeeklyDocument, markdown: Callable[[], str]) -> View:
    """A week; its CSV is the cases that moved."""
    counts = week.counts
    parts: list[Part] = [
        text((f"{week.title}: {week.headline}", "bold")),
        text(week.summary),
    ]
    tables = (
        Table(WeeklyTotalItem, week.totals, TOTALS, "Time at stake of one pass over the cases"),
        Table(WeeklyMoverItem, week.slower, MOVERS, f"Slower: {counts.slower}"),
        Table(WeeklyMoverItem, week.faster, MOVERS, f"Faster: {counts.faster}"),
        Table(WeeklyRegressionItem, week.opened, REGRESSIONS, f"Opened: {counts.opened}"),
        Table(WeeklyRegressionItem, week.fixed, REGRESSIONS, f"Fixed: {counts.fixed}"),
        Table(WeeklyRegressionItem, week.accepted, REGRESSIONS, f"Accepted: {counts.accepted}"),
        Table(WeeklyRegressionItem, week.dismissed, REGRESSIONS, f"Dismissed: {counts.dismissed}"),
        Table(WeeklyRegressionItem, week.open, REGRESSIONS, f"Open: {counts.open}"),
        Table(WeeklyGapItem, week.gaps_opened, GAPS, f"Fell behind SOTA: {counts.gaps_opened}"),
        Table(WeeklyGapItem, week.gaps_closed, GAPS, f"No longer behind SOTA: {counts.gaps_closed}"),
        Table(WeeklyFailureItem, week.failed, FAILED, "Failed runs"),
        Table(WeeklyReleaseItem, week.releases, RELEASES, "Releases"),
        Table(WeeklyDriftItem, week.drifts, DRIFTS, f"Configurations that changed without a commit: {counts.drifts}"),
    )
    parts += [table for table in tables if table.rows]
    parts += [text(f"{week.equal_code.summary}."), text(f"{week.false_alarms.summary}.")]
    moved = Table(WeeklyMoverItem, [*week.slower, *week.faster], ())
    return View(week, parts, markdown=markdown, table=moved)


def _ids(ids: list[int]) -> str:
    return str(ids[0]) if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more"
